#include "worker/file_sender.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/crash_point.h"
#include "lib/base/crc32c.h"
#include "lib/base/status.h"
#include "worker/heap.h"
#include "worker/work_requests.h"

namespace baton {
namespace {

constexpr uint32_t kPageBytes = 4096;
constexpr uint32_t kMostDepth = 64;
constexpr uint32_t kHeaderBytes = sizeof(stream::PieceHeader);
// The peer can release some pieces while others come.
constexpr uint32_t kPiecesPerRing = 4;
constexpr int kRounds = 2;
// A transaction has so many bytes of the file at most, or one piece. A device may send them while
// it is told of them (Soft-RoCE), and the next ones are read and staged meanwhile.
constexpr uint64_t kBytesPerTransaction = 1 << 20;

// A memfd of which regions are made.
bool IsSealed(int fd) {
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & kNeeded) == kNeeded;
}

// The time of the last status change (st_ctim) is not compared: renaming or deleting a file changes
// it, and a transfer goes on after both.
//
// A device's driver that registers a memfd makes its pages writable in another mapping, and the
// kernel takes that for a change (fault_dirty_shared_page): so its time says nothing.
bool IsSameFile(int fd, const FileTransfer& one, const FileTransfer& other) {
  const bool is_same_time =
      one.mtime_seconds == other.mtime_seconds && one.mtime_nanoseconds == other.mtime_nanoseconds;
  return one.device == other.device && one.inode == other.inode && one.size == other.size &&
         (is_same_time || IsSealed(fd));
}

// A read by O_DIRECT writes into memory by the device, even after the process is gone.
absl::Status PrepareDescriptor(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return ErrnoStatus(errno, "file: fcntl");
  if ((flags & O_ACCMODE) == O_WRONLY || (flags & O_PATH) != 0) {
    return Invalid("file: it is not open for reading");
  }
  if ((flags & O_DIRECT) != 0) {
    return Invalid(
        "file: it is open with O_DIRECT, and the device could write into memory after the worker's "
        "death: open it without");
  }
  // A read of what is not in memory would fail instead of waiting in the kernel.
  if ((flags & O_NONBLOCK) != 0 && fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "file: fcntl");
  }
  return absl::OkStatus();
}

// Returns why RegisterMemory would refuse the file, after calls of the keeper for each transfer.
absl::Status CheckRegistrable(int fd) {
  if (!IsSealed(fd)) {
    return Invalid("file: it is no memfd that is sealed with F_SEAL_SHRINK and F_SEAL_GROW");
  }
  if ((fcntl(fd, F_GET_SEALS) & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
    return Invalid("file: it is a memfd that is sealed against writing, which devices need");
  }
  if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
    return Invalid("file: it is a memfd, and not open for writing, which devices need");
  }
  return absl::OkStatus();
}

}  // namespace

FileSender::FileSender(FileReads& reads, Connection& connection, FileDescriptor file,
                       const FileTransfer& state, std::function<void()> wake,
                       const Options& options)
    : reads_(reads),
      connection_(&connection),
      file_(std::move(file)),
      options_(options),
      state_(state),
      read_to_(state.next),
      requester_(&reads, &connection.shard(), std::move(wake)) {
  pieces_.reserve(options.depth);
}

FileSender::~FileSender() {
  reads_.held_files().End(*connection_, state_.held, std::move(region_));
}

absl::StatusOr<FileTransfer> FileSender::Identify(int fd) {
  BATON_RETURN_IF_ERROR(PrepareDescriptor(fd));
  struct stat file = {};
  if (fstat(fd, &file) != 0) return ErrnoStatus(errno, "file: fstat");
  if (!S_ISREG(file.st_mode)) return Invalid("file: it is not a regular file");
  FileTransfer identity = {};
  identity.version = kFileTransferVersion;
  identity.device = file.st_dev;
  identity.inode = file.st_ino;
  identity.size = static_cast<uint64_t>(file.st_size);
  identity.mtime_seconds = file.st_mtim.tv_sec;
  identity.mtime_nanoseconds = static_cast<uint32_t>(file.st_mtim.tv_nsec);
  return identity;
}

absl::Status FileSender::Check(const FileReads& reads, const Connection& connection,
                               const Options& options) {
  if (&connection.shard().worker() != &reads.worker()) {
    return Invalid("reads: they are another worker's than the connection is");
  }
  return CheckOptions(options);
}

absl::Status FileSender::CheckOptions(const Options& options) {
  if (options.piece_bytes < kPageBytes || options.piece_bytes > FileReads::kMostPieceBytes ||
      options.piece_bytes % kPageBytes != 0) {
    return Invalid("piece_bytes: ", options.piece_bytes, ": choose a multiple of ", kPageBytes,
                   " up to ", FileReads::kMostPieceBytes);
  }
  if (options.depth < 1 || options.depth > kMostDepth) {
    return Invalid("depth: ", options.depth, ", 1 to ", kMostDepth);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<FileSender>> FileSender::Begin(
    FileReads& reads, Connection& connection, FileDescriptor file, const Range& range,
    std::function<void()> wake, const Options& options) {
  BATON_RETURN_IF_ERROR(Check(reads, connection, options));
  if (!wake) return Invalid("wake: it is empty");
  BATON_ASSIGN_OR_RETURN(FileTransfer state, Identify(file.get()));
  if (range.offset > state.size || range.length > state.size - range.offset) {
    return absl::OutOfRangeError(absl::StrCat("the file has ", state.size, " bytes, and ",
                                              range.length, " from byte ", range.offset,
                                              " were asked for"));
  }
  state.transfer = range.transfer;
  state.next = range.offset;
  state.end = range.offset + range.length;
  return std::unique_ptr<FileSender>(
      new FileSender(reads, connection, std::move(file), state, std::move(wake), options));
}

void FileSender::HoldOnce() {
  if (!std::exchange(may_hold_, false) || state_.held != 0) return;
  if (state_.end - state_.next < options_.hold_from_bytes) return;
  order_ = reads_.held_files().Hold(connection_->shard(), file_.get(), requester_);
}

void FileSender::TakeHeld() {
  if (order_ == nullptr || !order_->done()) return;
  const absl::StatusOr<uint64_t> number = order_->TakeResult();
  order_.reset();
  hold_status_ = number.status();
  if (number.ok()) state_.held = *number;
}

void FileSender::SetHeld(uint64_t held) {
  if (held == 0 || held == state_.held) return;
  order_.reset();
  reads_.held_files().End(*connection_, state_.held, {});
  reads_.held_files().Use(connection_->shard(), held);
  state_.held = held;
}

void FileSender::TakeRegionOnce() {
  if (!std::exchange(may_take_region_, false) || options_.regions == nullptr) return;
  region_status_ = Register();
  if (!region_status_.ok()) mapped_.reset();
}

// The seals make the mapping valid as long as it lives.
absl::Status FileSender::Register() {
  BATON_RETURN_IF_ERROR(CheckRegistrable(file_.get()));
  void* const mapped = mmap(nullptr, state_.size, PROT_READ, MAP_SHARED, file_.get(), /*offset=*/0);
  if (mapped == MAP_FAILED) return ErrnoStatus(errno, "file: mmap");
  mapped_ = MappedMemory(static_cast<uint8_t*>(mapped), Unmap{state_.size});
  BATON_ASSIGN_OR_RETURN(
      region_, options_.regions->Acquire(file_.get(), state_.next, state_.end - state_.next));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<FileSender>> FileSender::Load(
    FileReads& reads, Connection& connection, FileDescriptor file, const FileTransfer& state,
    std::function<void()> wake, const Options& options) {
  BATON_RETURN_IF_ERROR(Check(reads, connection, options));
  if (!wake) return Invalid("wake: it is empty");
  if (state.version != kFileTransferVersion || state.next > state.end || state.end > state.size) {
    return absl::DataLossError(absl::StrCat("connection ", connection.index(),
                                            ": its state is not a transfer's of version ",
                                            kFileTransferVersion));
  }
  BATON_RETURN_IF_ERROR(FindFile(reads, state, &file));
  std::unique_ptr<FileSender> loaded(
      new FileSender(reads, connection, std::move(file), state, std::move(wake), options));
  reads.held_files().Use(connection.shard(), state.held);
  reads.WakeSoon(loaded->requester_);
  return loaded;
}

absl::Status FileSender::CheckSame(int fd, const FileTransfer& state) {
  if (fd < 0) {
    return absl::NotFoundError(
        absl::StrCat("the file of transfer ", state.transfer, " was not found"));
  }
  BATON_ASSIGN_OR_RETURN(const FileTransfer identity, Identify(fd));
  if (IsSameFile(fd, identity, state)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the file is another one than transfer ",
                                                    state.transfer,
                                                    " began with, or was changed: begin anew"));
}

// `*file` comes first, because it needs no keeper.
absl::Status FileSender::FindFile(FileReads& reads, const FileTransfer& state,
                                  FileDescriptor* file) {
  absl::Status status = CheckSame(file->get(), state);
  if (status.ok() || state.held == 0) return status;
  absl::StatusOr<FileDescriptor> held = reads.held_files().Take(state.held);
  if (IsForNow(held.status())) return held.status();
  if (!held.ok()) {
    constexpr char kAndHeld[] = "; the file that is held cannot be had: ";
    return absl::Status(status.code(), absl::StrCat(std::string(status.message()), kAndHeld,
                                                    std::string(held.status().message())));
  }
  BATON_RETURN_IF_ERROR(CheckSame(held->get(), state));
  *file = *std::move(held);
  return absl::OkStatus();
}

absl::Status FileSender::CheckUnchanged() const {
  BATON_ASSIGN_OR_RETURN(const FileTransfer identity, Identify(file_.get()));
  if (IsSameFile(file_.get(), identity, state_)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the file was changed while it was sent, from byte ", state_.next, " on: begin anew"));
}

// The second round sends what was in the kernel's memory, and so was read at once. Pieces are read,
// and none is staged, before the file is held, because a successor may not find it otherwise.
absl::Status FileSender::Advance(Stream& stream) {
  if (done()) return absl::OkStatus();
  TakeRegionOnce();
  HoldOnce();
  TakeHeld();
  uint64_t room = kBytesPerTransaction;
  if (region_) return order_ == nullptr ? SendFromRegion(stream, room) : absl::OkStatus();
  for (int round = 0; round < kRounds; ++round) {
    BATON_RETURN_IF_ERROR(StagePieces(stream, &room));
    if (done()) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const bool has_started, StartReads(stream));
    if (!has_started) return absl::OkStatus();
    reads_.Submit(requester_);
  }
  return StagePieces(stream, &room);
}

// Another message of the application may have taken the room that was there when the reads began.
// Pieces that cannot be sent are read again later, so that no memory waits for a peer.
absl::Status FileSender::StagePieces(Stream& stream, uint64_t* room) {
  if (order_ != nullptr) return absl::OkStatus();
  size_t staged = 0;
  absl::Status status;
  while (staged < pieces_.size() && status.ok()) {
    const Piece& piece = pieces_[staged];
    const FileReads::Progress progress = reads_.ProgressOf(piece.read);
    if (progress == FileReads::Progress::kUnderWay) break;
    if (*room == 0) {
      reads_.WakeSoon(requester_);
      break;
    }
    *room -= std::min<uint64_t>(*room, piece.length);
    status =
        progress == FileReads::Progress::kRead ? Stage(stream, piece) : reads_.ErrorOf(piece.read);
    if (status.ok()) ++staged;
  }
  pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<ptrdiff_t>(staged));
  if (!absl::IsResourceExhausted(status)) return status;
  const uint32_t length = pieces_.front().length + kHeaderBytes;
  DropPieces();
  if (stream.RoomFor(length, 1) > 0) reads_.RetryLater(requester_);  // the transaction is full
  return absl::OkStatus();
}

// The heap gives the memory to nobody else before the send has completed.
absl::Status FileSender::Stage(Stream& stream, const Piece& piece) {
  BATON_CRASH_POINT("file-piece-read");
  if (state_.next + piece.length == state_.end) BATON_RETURN_IF_ERROR(CheckUnchanged());
  uint8_t* const at = connection_->shard().heap().At(piece.read.memory);
  const stream::PieceHeader header = HeaderOf(at + kHeaderBytes, piece.length);
  std::memcpy(at, &header, sizeof(header));
  BATON_RETURN_IF_ERROR(stream.Send({&piece.read.memory, 1}));
  state_.crc = header.crc;
  state_.next += piece.length;
  reads_.Release(piece.read);
  BATON_CRASH_POINT("file-piece-staged");
  return absl::OkStatus();
}

stream::PieceHeader FileSender::HeaderOf(const uint8_t* bytes, uint32_t length) const {
  return {stream::kPieceMagic,
          options_.checksums ? Crc32c(state_.crc, bytes, length) : state_.crc,
          state_.transfer,
          state_.next,
          length,
          options_.checksums ? 0u : stream::kPieceUnchecked};
}

// The completions of what it stages go on with it: as many pieces as the pipeline would stage.
absl::Status FileSender::SendFromRegion(Stream& stream, uint64_t room) {
  for (uint32_t i = 0; i < options_.depth && !done(); ++i) {
    if (room == 0) {
      reads_.WakeSoon(requester_);
      return absl::OkStatus();
    }
    const uint32_t length = NextLength(stream);
    const absl::StatusOr<bool> has_room = stream.AwaitRoom(length + kHeaderBytes);
    if (has_room.ok() && !*has_room) return absl::OkStatus();
    absl::Status status = has_room.status();
    if (status.ok()) status = StageFromRegion(stream, length);
    if (absl::IsResourceExhausted(status)) {  // the heap or the transaction is full
      reads_.RetryLater(requester_);
      return absl::OkStatus();
    }
    BATON_RETURN_IF_ERROR(status);
    room -= std::min<uint64_t>(room, length);
  }
  return absl::OkStatus();
}

// The header is in the heap, and the bytes behind it are where they are.
absl::Status FileSender::StageFromRegion(Stream& stream, uint32_t length) {
  if (state_.next + length == state_.end) BATON_RETURN_IF_ERROR(CheckUnchanged());
  Heap& heap = connection_->shard().heap();
  BATON_ASSIGN_OR_RETURN(const Buffer memory, heap.AllocateScratch(kHeaderBytes));
  const stream::PieceHeader header = HeaderOf(mapped_.get() + state_.next, length);
  std::memcpy(heap.At(memory), &header, sizeof(header));
  const std::array<Buffer, 2> parts = {memory, region_.At(state_.next, length)};
  const absl::Status sent = stream.Send(parts);
  absl::Status freed = heap.Free(memory);  // it is held until the send has completed
  BATON_RETURN_IF_ERROR(sent);
  state_.crc = header.crc;
  state_.next = read_to_ = state_.next + length;
  BATON_CRASH_POINT("file-piece-staged");
  return freed;
}

uint32_t FileSender::NextLength(const Stream& stream) const {
  const uint32_t ring = stream.peer_ring_bytes() / kPiecesPerRing;
  const uint32_t most =
      std::min({options_.piece_bytes, ring, stream.longest_message()}) - kHeaderBytes;
  return static_cast<uint32_t>(std::min<uint64_t>(most, state_.end - read_to_));
}

// Returns whether a read has begun. If not, an event or a wake follows when to try again.
absl::StatusOr<bool> FileSender::StartReads(Stream& stream) {
  const size_t before = pieces_.size();
  while (pieces_.size() < options_.depth && read_to_ < state_.end) {
    const uint32_t length = NextLength(stream);
    // Only the last piece of a transfer is shorter than those before it.
    const uint32_t longest = pieces_.empty() ? length : std::max(length, pieces_.front().length);
    const auto count = static_cast<uint32_t>(pieces_.size() + 1);
    if (stream.RoomFor(longest + kHeaderBytes, count) < count) {
      if (!pieces_.empty()) break;
      const absl::StatusOr<bool> has_room = stream.AwaitRoom(length + kHeaderBytes);
      if (absl::IsResourceExhausted(has_room.status())) {
        reads_.RetryLater(requester_);
        return false;
      }
      BATON_RETURN_IF_ERROR(has_room.status());
      break;
    }
    const absl::StatusOr<FileReads::Piece> read =
        reads_.Start(requester_, file_.get(), read_to_, kHeaderBytes, length);
    if (absl::IsResourceExhausted(read.status())) break;
    BATON_RETURN_IF_ERROR(read.status());
    pieces_.push_back({*read, length});
    read_to_ += length;
  }
  return pieces_.size() > before;
}

void FileSender::DropPieces() {
  for (const Piece& piece : pieces_) reads_.Release(piece.read);
  pieces_.clear();
  read_to_ = state_.next;
}

}  // namespace baton
