#include "worker/file_reads.h"

#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/crash_point.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "worker/heap.h"
#include "worker/held_files.h"
#include "worker/io_ring.h"
#include "worker/work_requests.h"

namespace baton {
namespace {

constexpr uint32_t kMostReads = 1024;
constexpr uint32_t kMostRetryMs = 999;  // an itimerspec has them as nanoseconds

absl::Status CheckService(const Capacity& capacity) {
  if (!capacity.outside_effects) {
    return absl::FailedPreconditionError(
        "reads of a worker that died may still write into its heap when its successor begins: set "
        "the service's outside_effects, so that a successor waits until the process is gone");
  }
  if (capacity.shard_heap_bytes == 0) {
    return absl::FailedPreconditionError(
        "the service has no heaps, where pieces of files are: set its shard_heap_bytes");
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const FileReads::Options& options) {
  if (options.most_reads < 1 || options.most_reads > kMostReads) {
    return Invalid("most_reads: ", options.most_reads, ", 1 to ", kMostReads);
  }
  if (options.most_bytes < FileReads::kMostPieceBytes) {
    return Invalid("most_bytes: ", options.most_bytes, ", at least ", FileReads::kMostPieceBytes);
  }
  return absl::OkStatus();
}

}  // namespace

class FileReads::Core {
 public:
  Core(Worker& worker, const Options& options)
      : worker_(worker), options_(options), reads_(options.most_reads) {
    for (uint32_t i = options.most_reads; i-- > 0;) free_.push_back(i);
  }
  ~Core();

  absl::Status Open();

  void Add(FileRequester* requester);
  void Remove(FileRequester* requester);

  absl::StatusOr<Piece> Start(FileRequester& requester, int fd, uint64_t offset, uint32_t header,
                              uint32_t length);
  void Submit(FileRequester& requester);
  void Release(uint32_t index);
  void WakeSoon(FileRequester& requester);
  void RetryLater(FileRequester& requester, uint32_t milliseconds);
  void Finish(const Shard& shard);
  Progress ProgressOf(uint32_t index) const;
  absl::Status ErrorOf(uint32_t index) const;
  Statistics statistics() const;

  Worker& worker() const { return worker_; }
  bool uses_io_uring() const { return ring_ != nullptr; }
  const std::string& reason() const { return reason_; }

 private:
  enum class State : uint8_t { kFree, kUnderWay, kRead, kFailed };
  struct Read {
    State state = State::kFree;
    bool cancelled = false;
    int fd = -1;
    int error = 0;                       // of a failed one; 0: the file has ended
    FileRequester* requester = nullptr;  // null: it is gone, and the memory is freed with the read
    Shard* shard = nullptr;              // null: the memory is not ours any more
    uint64_t epoch = 0;                  // of the shard
    Buffer memory;
    // The part that has not been read.
    uint8_t* to = nullptr;
    uint64_t offset = 0;
    uint32_t left = 0;
  };

  bool MayTake(FileRequester& requester, uint64_t bytes);
  void Push(uint32_t index);
  void ReadNow(uint32_t index);
  void Complete(uint32_t index, int32_t result);
  void End(uint32_t index, State state, int error);
  void Free(uint32_t index);
  void Cancel(uint32_t index);
  void Drive();
  void SubmitAndReap();
  void MarkDue(FileRequester* requester);
  void Signal();
  void OnEvent();
  void OnTimer();
  void WakeWaiting();
  void Wake(uint64_t id);

  Worker& worker_;
  const Options options_;
  FileDescriptor event_, timer_;
  std::unique_ptr<IoRing> ring_;  // null: pread
  std::string reason_;
  std::vector<Read> reads_;
  std::vector<uint32_t> free_;
  std::vector<uint32_t> queued_;  // for pread
  uint64_t bytes_ = 0;
  uint32_t under_way_ = 0;
  uint64_t started_ = 0, repeated_ = 0;
  // Requesters by number: a callback may destroy any of them.
  std::unordered_map<uint64_t, FileRequester*> requesters_;
  uint64_t next_id_ = 1;
  std::vector<uint64_t> due_, woken_, retries_;
  uint32_t retry_ms_ = 0;             // of the timer, if there are retries
  std::deque<uint64_t> waiting_;      // for a piece, in the order in which they asked
  uint64_t first_ = 0;                // may take one before those that wait
  FileRequester* current_ = nullptr;  // looks at its pieces by itself
};

// ---------------------------------------------------------------- beginning and end

absl::Status FileReads::Core::Open() {
  event_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_) return ErrnoStatus(errno, "eventfd (see RLIMIT_NOFILE)");
  timer_.Reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer_) return ErrnoStatus(errno, "timerfd_create (see RLIMIT_NOFILE)");
  if (options_.use_io_uring) {
    absl::StatusOr<std::unique_ptr<IoRing>> ring = IoRing::Open(options_.most_reads, event_.get());
    if (ring.ok()) {
      ring_ = *std::move(ring);
    } else {
      reason_ = std::string(MessageOf(ring.status()));
    }
  } else {
    reason_ = "it was not asked for";
  }
  BATON_RETURN_IF_ERROR(worker_.Watch(event_.get(), [this] { OnEvent(); }));
  const absl::Status watched = worker_.Watch(timer_.get(), [this] { OnTimer(); });
  if (!watched.ok()) worker_.Unwatch(event_.get());
  return watched;
}

// The Worker may be gone, with its shards and the mapping of their heaps. A read into memory that
// is not mapped fails.
FileReads::Core::~Core() {
  if (ring_ == nullptr) return;
  for (uint32_t i = 0; i < reads_.size(); ++i) {
    reads_[i].requester = nullptr;
    reads_[i].shard = nullptr;
    if (reads_[i].state == State::kUnderWay) Cancel(i);
  }
  for (SubmitAndReap(); under_way_ > 0; SubmitAndReap()) ring_->Wait();
}

void FileReads::Core::Add(FileRequester* requester) {
  requester->id_ = next_id_++;
  requesters_[requester->id_] = requester;
}

// Lists that have its number skip it. That of those that wait may be looked at only much later.
void FileReads::Core::Remove(FileRequester* requester) {
  for (uint32_t i = 0; i < reads_.size(); ++i) {
    if (reads_[i].state != State::kFree && reads_[i].requester == requester) Release(i);
  }
  requesters_.erase(requester->id_);
  if (requester->waits_) {
    std::erase(waiting_, requester->id_);
    if (!waiting_.empty() && !free_.empty()) Signal();  // it was the next one, maybe
  }
  SubmitAndReap();  // the cancellations
}

// ---------------------------------------------------------------- reads

// Requesters that wait take turns, each for one piece.
bool FileReads::Core::MayTake(FileRequester& requester, uint64_t bytes) {
  const bool is_next = waiting_.empty() || first_ == requester.id_;
  if (is_next && !free_.empty() && bytes_ + bytes <= options_.most_bytes) {
    if (first_ == requester.id_) first_ = 0;
    return true;
  }
  if (!requester.waits_) {
    requester.waits_ = true;
    waiting_.push_back(requester.id_);
  }
  return false;
}

absl::StatusOr<FileReads::Piece> FileReads::Core::Start(FileRequester& requester, int fd,
                                                        uint64_t offset, uint32_t header,
                                                        uint32_t length) {
  Shard& shard = *requester.shard_;
  const uint64_t bytes = uint64_t{header} + length;
  if (length == 0 || bytes > kMostPieceBytes) {
    return Invalid("length: ", length, " bytes and ", header, " before them, 1 to ",
                   kMostPieceBytes, " in all");
  }
  if (!MayTake(requester, bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("other transfers have all ", options_.most_reads, " pieces or ",
                     options_.most_bytes, " bytes that the worker's FileReads may have"));
  }
  const absl::StatusOr<Buffer> memory = shard.heap().AllocateScratch(bytes);
  if (!memory.ok()) {
    if (absl::IsResourceExhausted(memory.status())) RetryLater(requester, kRetryMs);
    return memory.status();
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  reads_[index] = {.state = State::kUnderWay,
                   .fd = fd,
                   .requester = &requester,
                   .shard = &shard,
                   .epoch = shard.epoch(),
                   .memory = *memory,
                   .to = shard.heap().At(*memory) + header,
                   .offset = offset,
                   .left = length};
  bytes_ += bytes;
  ++under_way_;
  ++started_;
  Push(index);
  return Piece{index, *memory};
}

void FileReads::Core::Push(uint32_t index) {
  const Read& read = reads_[index];
  if (ring_ == nullptr) return queued_.push_back(index);
  ring_->PushRead(index, read.fd, read.to, read.left, read.offset);
}

void FileReads::Core::Submit(FileRequester& requester) {
  current_ = &requester;
  SubmitAndReap();
  current_ = nullptr;
  BATON_CRASH_POINT("file-reads-submitted");
}

void FileReads::Core::SubmitAndReap() {
  Drive();
  if (!due_.empty()) Signal();
}

void FileReads::Core::Drive() {
  if (ring_ == nullptr) {
    for (const uint32_t index : std::exchange(queued_, {})) ReadNow(index);
  } else {
    // A short read begins again, and may complete in Submit, which gives no event for it.
    do {
      ring_->Submit([this](uint64_t tag) { ReadNow(static_cast<uint32_t>(tag)); });
      ring_->Reap(
          [this](uint64_t tag, int32_t result) { Complete(static_cast<uint32_t>(tag), result); });
    } while (ring_->has_pushed());
  }
}

void FileReads::Core::ReadNow(uint32_t index) {
  while (reads_[index].state == State::kUnderWay) {
    const Read& read = reads_[index];
    if (read.requester == nullptr) return End(index, State::kFailed, ECANCELED);
    const ssize_t bytes = pread(read.fd, read.to, read.left, static_cast<off_t>(read.offset));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return End(index, State::kFailed, bytes < 0 ? errno : 0);
    Read& taken = reads_[index];
    taken.to += bytes;
    taken.offset += static_cast<uint64_t>(bytes);
    taken.left -= static_cast<uint32_t>(bytes);
    if (taken.left == 0) return End(index, State::kRead, 0);
    ++repeated_;
  }
}

void FileReads::Core::Complete(uint32_t index, int32_t result) {
  Read& read = reads_[index];
  if (read.requester == nullptr || read.cancelled) return End(index, State::kFailed, ECANCELED);
  if (result == -EAGAIN || result == -EINTR) return ReadNow(index);
  if (result <= 0) return End(index, State::kFailed, -result);
  const uint32_t bytes = std::min(static_cast<uint32_t>(result), read.left);
  read.to += bytes;
  read.offset += bytes;
  read.left -= bytes;
  if (read.left == 0) return End(index, State::kRead, 0);
  ++repeated_;
  Push(index);
}

void FileReads::Core::End(uint32_t index, State state, int error) {
  Read& read = reads_[index];
  read.state = state;
  read.error = error;
  --under_way_;
  if (read.requester == nullptr) return Free(index);
  if (read.requester != current_) MarkDue(read.requester);
}

void FileReads::Core::Cancel(uint32_t index) {
  if (ring_ == nullptr || std::exchange(reads_[index].cancelled, true)) return;
  ring_->PushCancel(index);
}

void FileReads::Core::Release(uint32_t index) {
  Read& read = reads_[index];
  read.requester = nullptr;
  if (read.state != State::kUnderWay) return Free(index);
  if (ring_ != nullptr) {
    Cancel(index);
    return Signal();  // the next Poll submits it
  }
  std::erase(queued_, index);
  End(index, State::kFailed, ECANCELED);
}

// Nothing writes to the memory any more.
void FileReads::Core::Free(uint32_t index) {
  Read& read = reads_[index];
  bytes_ -= read.memory.length;
  // Scratch memory of another epoch has ended by itself.
  if (read.shard != nullptr && read.shard->epoch() == read.epoch) {
    read.shard->heap().Free(read.memory).IgnoreError();
  }
  read = Read();
  free_.push_back(index);
  if (!waiting_.empty()) Signal();
}

// A requester that still wants a piece finds that its read was cancelled.
void FileReads::Core::Finish(const Shard& shard) {
  const auto ours = [&](const Read& read) {
    return read.state == State::kUnderWay && read.shard == &shard;
  };
  for (uint32_t i = 0; i < reads_.size(); ++i) {
    if (ours(reads_[i])) Cancel(i);
  }
  SubmitAndReap();
  while (std::any_of(reads_.begin(), reads_.end(), ours)) {
    ring_->Wait();
    SubmitAndReap();
  }
  for (Read& read : reads_) {
    if (read.state == State::kFree || read.shard != &shard) continue;
    if (shard.epoch() == read.epoch) read.shard->heap().Free(read.memory).IgnoreError();
    read.shard = nullptr;
    read.state = State::kFailed;
    read.error = ECANCELED;
  }
}

FileReads::Progress FileReads::Core::ProgressOf(uint32_t index) const {
  switch (reads_[index].state) {
    case State::kUnderWay:
      return Progress::kUnderWay;
    case State::kRead:
      return Progress::kRead;
    default:
      return Progress::kFailed;
  }
}

absl::Status FileReads::Core::ErrorOf(uint32_t index) const {
  const Read& read = reads_[index];
  if (read.state != State::kFailed) return absl::OkStatus();
  const std::string what = absl::StrCat("reading the file at byte ", read.offset);
  if (read.error != 0) return ErrnoStatus(read.error, what);
  return absl::OutOfRangeError(absl::StrCat(what, ": it ends there, and ", read.left,
                                            " more bytes were to be sent: it was truncated"));
}

FileReads::Statistics FileReads::Core::statistics() const {
  return {started_, repeated_, under_way_, static_cast<uint32_t>(reads_.size() - free_.size()),
          bytes_};
}

// ---------------------------------------------------------------- waking

void FileReads::Core::MarkDue(FileRequester* requester) {
  if (std::exchange(requester->due_, true)) return;
  due_.push_back(requester->id_);
}

void FileReads::Core::Signal() { eventfd_write(event_.get(), 1); }

void FileReads::Core::WakeSoon(FileRequester& requester) {
  MarkDue(&requester);
  Signal();
}

void FileReads::Core::RetryLater(FileRequester& requester, uint32_t milliseconds) {
  const bool is_armed = !retries_.empty();
  if (!std::exchange(requester.retries_, true)) retries_.push_back(requester.id_);
  // One timer is for all: none waits longer because of another.
  if (is_armed && milliseconds >= retry_ms_) return;
  retry_ms_ = std::clamp(milliseconds, uint32_t{1}, kMostRetryMs);
  const itimerspec soon = {{}, {0, long{1'000'000} * retry_ms_}};
  (void)timerfd_settime(timer_.get(), 0, &soon, nullptr);
}

void FileReads::Core::OnTimer() {
  uint64_t expirations = 0;
  (void)!read(timer_.get(), &expirations, sizeof(expirations));
  for (const uint64_t id : std::exchange(retries_, {})) {
    const auto found = requesters_.find(id);
    if (found == requesters_.end()) continue;
    found->second->retries_ = false;
    MarkDue(found->second);
  }
  if (!due_.empty()) Signal();
}

void FileReads::Core::OnEvent() {
  eventfd_t value = 0;
  (void)eventfd_read(event_.get(), &value);
  Drive();
  woken_.clear();
  woken_.swap(due_);
  for (const uint64_t id : woken_) {
    if (const auto found = requesters_.find(id); found != requesters_.end()) {
      found->second->due_ = false;
      Wake(id);
    }
  }
  WakeWaiting();
}

// Each is woken once, and asks again if it wants another piece.
void FileReads::Core::WakeWaiting() {
  for (size_t count = waiting_.size(); count > 0 && !waiting_.empty() && !free_.empty(); --count) {
    const uint64_t id = waiting_.front();
    waiting_.pop_front();
    const auto found = requesters_.find(id);
    if (found == requesters_.end()) continue;
    found->second->waits_ = false;
    first_ = id;
    Wake(id);
    const bool is_refused =
        std::exchange(first_, 0) == id && !waiting_.empty() && waiting_.back() == id;
    if (!is_refused) continue;
    // It stays the next one. Free signals when there is more.
    waiting_.pop_back();
    return waiting_.push_front(id);
  }
  if (!waiting_.empty() && !free_.empty()) Signal();
}

// The shard is committed, so that what the last callback has staged is in the committed state.
void FileReads::Core::Wake(uint64_t id) {
  FileRequester& requester = *requesters_.at(id);
  if (requester.shard_->epoch() == 0) return;
  if (requester.shard_->commit_mode() != CommitMode::kManual && !requester.shard_->Commit().ok()) {
    return RetryLater(requester, kRetryMs);
  }
  const auto wake = requester.wake_;  // it may destroy the requester
  (*wake)();
}

// ---------------------------------------------------------------- the interface

FileRequester::FileRequester(FileReads* reads, Shard* shard, std::function<void()> wake)
    : reads_(reads),
      shard_(shard),
      wake_(std::make_shared<const std::function<void()>>(std::move(wake))) {
  reads_->core_->Add(this);
}

FileRequester::~FileRequester() { reads_->core_->Remove(this); }

FileReads::FileReads(std::unique_ptr<Core> core)
    : core_(std::move(core)), held_files_(std::make_unique<HeldFiles>(this)) {}
FileReads::~FileReads() = default;

absl::StatusOr<std::unique_ptr<FileReads>> FileReads::Create(Worker& worker,
                                                             const Options& options) {
  BATON_RETURN_IF_ERROR(CheckService(worker.capacity()));
  BATON_RETURN_IF_ERROR(CheckOptions(options));
  auto core = std::make_unique<Core>(worker, options);
  BATON_RETURN_IF_ERROR(core->Open());
  return std::unique_ptr<FileReads>(new FileReads(std::move(core)));
}

bool FileReads::uses_io_uring() const { return core_->uses_io_uring(); }
const std::string& FileReads::fallback_reason() const { return core_->reason(); }
FileReads::Statistics FileReads::statistics() const { return core_->statistics(); }
Worker& FileReads::worker() const { return core_->worker(); }
void FileReads::Finish(Shard& shard) {
  held_files_->Forget(shard);
  core_->Finish(shard);
}

absl::StatusOr<FileReads::Piece> FileReads::Start(FileRequester& requester, int fd, uint64_t offset,
                                                  uint32_t header, uint32_t length) {
  return core_->Start(requester, fd, offset, header, length);
}
void FileReads::Submit(FileRequester& requester) { core_->Submit(requester); }
FileReads::Progress FileReads::ProgressOf(const Piece& piece) const {
  return core_->ProgressOf(piece.read);
}
absl::Status FileReads::ErrorOf(const Piece& piece) const { return core_->ErrorOf(piece.read); }
void FileReads::Release(const Piece& piece) { core_->Release(piece.read); }
void FileReads::WakeSoon(FileRequester& requester) { core_->WakeSoon(requester); }
void FileReads::RetryLater(FileRequester& requester, uint32_t milliseconds) {
  core_->RetryLater(requester, milliseconds);
}

}  // namespace baton
