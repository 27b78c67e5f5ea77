#include "tests/bench/file_link.h"

#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "tests/bench/bench_file.h"

namespace baton::bench {
namespace {

constexpr uint64_t kMinuteNs = 60'000'000'000;
constexpr int kSleepMs = 50;
constexpr uint32_t kSends = 64;  // WRITEs that may be under way
constexpr uint32_t kControlMessages = 4;
// Longer files are several WRITEs, all of which are under way at once.
constexpr uint64_t kWriteBytes = 1 << 20;

// Work requests that are no WRITEs.
constexpr uint64_t kSentControl = UINT64_MAX;
constexpr uint64_t kReceivedControl = UINT64_MAX - 1;

// The accepting end's private data.
struct Target {
  uint64_t address;
  uint64_t rkey;
};
// Messages of a check, there and back.
struct CheckMessage {
  uint64_t bytes;
  uint64_t wrong;  // the first offset; bytes: nothing is wrong
};
constexpr size_t kSentAt = 0, kReceivedAt = 64, kControlBytes = 4096;  // in memory for control

uint64_t AddressOf(const uint8_t* memory) { return reinterpret_cast<uintptr_t>(memory); }

absl::Status PostReceive(verbs::QueuePair& queue_pair, const uint8_t* control, uint32_t lkey) {
  const verbs::ScatterGather sge{AddressOf(control + kReceivedAt), sizeof(CheckMessage), lkey};
  verbs::ReceiveRequest request;
  request.wr_id = kReceivedControl;
  request.sges = {&sge, 1};
  size_t posted = 0;
  return queue_pair.PostReceive({&request, 1}, &posted);
}

absl::Status SendControl(verbs::QueuePair& queue_pair, uint8_t* control, uint32_t lkey,
                         const CheckMessage& message) {
  std::memcpy(control + kSentAt, &message, sizeof(message));
  const verbs::ScatterGather sge{AddressOf(control + kSentAt), sizeof(message), lkey};
  verbs::SendRequest request;
  request.wr_id = kSentControl;
  request.sges = {&sge, 1};
  size_t posted = 0;
  return queue_pair.PostSend({&request, 1}, &posted);
}

// The peer. Its memory has the file, and control behind that.
class Receiver {
 public:
  Receiver(examples::SharedMemory memory, uint64_t bytes)
      : memory_(std::move(memory)), bytes_(bytes) {}

  absl::Status Open(const verbs::testing::Fabric& fabric) {
    BATON_RETURN_IF_ERROR(end_.Open(fabric, kSends + kControlMessages, kControlMessages));
    BATON_ASSIGN_OR_RETURN(region_,
                           end_.device().RegisterMemory(memory_.base(), memory_.bytes(),
                                                        verbs::kLocalWrite | verbs::kRemoteWrite));
    BATON_ASSIGN_OR_RETURN(listener_, end_.device().Listen({fabric.host, 0}, 1));
    return absl::OkStatus();
  }
  uint16_t port() const { return listener_->address().port; }

  // Returns when the sender has gone.
  absl::Status Serve() {
    BATON_ASSIGN_OR_RETURN(verbs::CmEvent request,
                           end_.AwaitEvent(verbs::CmEventType::kConnectRequest));
    BATON_RETURN_IF_ERROR(PostReceive(end_.queue_pair(), control(), region_->lkey()));
    const Target target{AddressOf(memory_.base()), region_->rkey()};
    verbs::ConnectionParameters parameters;
    parameters.private_data.assign(reinterpret_cast<const char*>(&target), sizeof(target));
    BATON_RETURN_IF_ERROR(request.new_id->Accept(&end_.queue_pair(), parameters));
    end_.Keep(std::move(request.new_id));
    for (;;) {
      const std::optional<verbs::CmEvent> event = end_.NextEvent();
      if (event.has_value() && event->type == verbs::CmEventType::kDisconnected) break;
      const auto taken = end_.TurnOrSleep();
      if (!taken.ok()) break;  // flushed
      for (const verbs::Completion& done : *taken) {
        if (done.wr_id == kReceivedControl) BATON_RETURN_IF_ERROR(Answer());
      }
    }
    return absl::OkStatus();
  }

 private:
  uint8_t* control() const { return memory_.base() + bytes_; }

  absl::Status Answer() {
    CheckMessage check;
    std::memcpy(&check, control() + kReceivedAt, sizeof(check));
    check.bytes = std::min(check.bytes, bytes_);
    check.wrong = FirstWrong({memory_.base(), check.bytes}).value_or(check.bytes);
    std::memset(memory_.base(), 0, check.bytes);
    BATON_RETURN_IF_ERROR(PostReceive(end_.queue_pair(), control(), region_->lkey()));
    return SendControl(end_.queue_pair(), control(), region_->lkey(), check);
  }

  examples::SharedMemory memory_;
  const uint64_t bytes_;
  FileEnd end_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::Listener> listener_;
};

absl::Status ReceiveFiles(const verbs::testing::Fabric& fabric, uint64_t bytes, int port_pipe) {
  BATON_ASSIGN_OR_RETURN(examples::SharedMemory memory,
                         examples::SharedMemory::Allocate(bytes + kControlBytes));
  Receiver receiver(std::move(memory), bytes);
  BATON_RETURN_IF_ERROR(receiver.Open(fabric));
  const uint16_t port = receiver.port();
  if (write(port_pipe, &port, sizeof(port)) != sizeof(port)) {
    return ErrnoStatus(errno, "telling the port");
  }
  return receiver.Serve();
}

}  // namespace

// ---- FileEnd

absl::Status FileEnd::Open(const verbs::testing::Fabric& fabric, uint32_t sends,
                           uint32_t receives) {
  BATON_ASSIGN_OR_RETURN(device_, verbs::testing::OpenDevice(fabric));
  BATON_ASSIGN_OR_RETURN(queue_, device_->CreateCompletionQueue(2 * (sends + receives)));
  verbs::QueuePairOptions options;
  options.send_queue = options.receive_queue = queue_.get();
  options.max_send_requests = sends;
  options.max_receive_requests = receives;
  BATON_ASSIGN_OR_RETURN(queue_pair_, device_->CreateQueuePair(options));
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const verbs::Completion>> FileEnd::Turn() {
  device_->Progress();
  for (verbs::CmEvent event; device_->NextEvent(&event); event = {}) {
    events_.push_back(std::move(event));
  }
  for (verbs::DeviceEvent event; device_->NextDeviceEvent(&event);) {
  }
  BATON_ASSIGN_OR_RETURN(const int count, queue_->Poll(absl::MakeSpan(taken_)));
  const absl::Span<const verbs::Completion> taken(taken_.data(), static_cast<size_t>(count));
  for (const verbs::Completion& done : taken) {
    if (done.status == verbs::CompletionStatus::kSuccess) continue;
    return absl::InternalError(absl::StrCat("a work request completed with ",
                                            View(verbs::CompletionStatusName(done.status))));
  }
  return taken;
}

absl::StatusOr<absl::Span<const verbs::Completion>> FileEnd::TurnOrSleep() {
  constexpr int kTurns = 64;  // before it sleeps
  for (int i = 0; i < kTurns; ++i) {
    BATON_ASSIGN_OR_RETURN(const absl::Span<const verbs::Completion> taken, Turn());
    if (!taken.empty() || !events_.empty()) return taken;
    sched_yield();
  }
  BATON_RETURN_IF_ERROR(queue_->RequestNotification());
  BATON_ASSIGN_OR_RETURN(const absl::Span<const verbs::Completion> taken, Turn());
  if (!taken.empty() || !events_.empty()) return taken;
  pollfd wait = {device_->event_fd(), POLLIN, 0};
  (void)poll(&wait, 1, kSleepMs);
  return Turn();
}

std::optional<verbs::CmEvent> FileEnd::NextEvent() {
  if (events_.empty()) return std::nullopt;
  verbs::CmEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

absl::StatusOr<verbs::CmEvent> FileEnd::AwaitEvent(verbs::CmEventType type) {
  const uint64_t deadline = MonotonicNanoseconds() + kMinuteNs;
  while (MonotonicNanoseconds() < deadline) {
    BATON_RETURN_IF_ERROR(TurnOrSleep().status());
    std::optional<verbs::CmEvent> event = NextEvent();
    if (!event.has_value()) continue;
    if (event->type == type) return *std::move(event);
    BATON_RETURN_IF_ERROR(event->status);
    return absl::InternalError("the peers of a file have not connected");
  }
  return absl::DeadlineExceededError("the peers of a file have not connected within a minute");
}

// ---- FileLink

absl::StatusOr<std::unique_ptr<FileLink>> FileLink::Start(const verbs::testing::Fabric& fabric,
                                                          uint64_t bytes) {
  BATON_ASSIGN_OR_RETURN(examples::SharedMemory control,
                         examples::SharedMemory::Allocate(kControlBytes));
  std::unique_ptr<FileLink> link(new FileLink(std::move(control)));
  BATON_RETURN_IF_ERROR(link->Fork(fabric, bytes));
  return link;
}

FileLink::~FileLink() {
  if (peer_ == 0) return;
  kill(peer_, SIGKILL);
  waitpid(peer_, nullptr, 0);
}

absl::Status FileLink::Fork(const verbs::testing::Fabric& fabric, uint64_t bytes) {
  BATON_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, "fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    pipe.reading.Reset();
    const absl::Status status = ReceiveFiles(fabric, bytes, pipe.writing.get());
    if (!status.ok()) std::fprintf(stderr, "file peer: %s\n", status.ToString().c_str());
    _exit(status.ok() ? 0 : 1);
  }
  peer_ = child;
  pipe.writing.Reset();
  uint16_t port = 0;
  if (read(pipe.reading.get(), &port, sizeof(port)) != sizeof(port)) {
    return absl::InternalError("the peer of files has ended; standard error says why");
  }
  return Connect(fabric, port);
}

absl::Status FileLink::Connect(const verbs::testing::Fabric& fabric, uint16_t port) {
  BATON_RETURN_IF_ERROR(end_.Open(fabric, kSends + kControlMessages, kControlMessages));
  BATON_ASSIGN_OR_RETURN(control_region_, device().RegisterMemory(control_.base(), control_.bytes(),
                                                                  verbs::kLocalWrite));
  BATON_RETURN_IF_ERROR(PostReceive(end_.queue_pair(), control_.base(), control_region_->lkey()));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::ConnectionId> id,
                         device().Connect({fabric.host, port}, &end_.queue_pair(), {}));
  end_.Keep(std::move(id));
  BATON_ASSIGN_OR_RETURN(const verbs::CmEvent established,
                         end_.AwaitEvent(verbs::CmEventType::kEstablished));
  Target target = {};
  if (established.private_data.size() < sizeof(target)) {
    return absl::InternalError("the peer of files has not named its memory");
  }
  std::memcpy(&target, established.private_data.data(), sizeof(target));
  remote_address_ = target.address;
  rkey_ = static_cast<uint32_t>(target.rkey);
  return absl::OkStatus();
}

// One turn, after which others get the processor if nothing has completed.
absl::Status FileLink::Take() {
  BATON_ASSIGN_OR_RETURN(const absl::Span<const verbs::Completion> taken, end_.Turn());
  for (const verbs::Completion& done : taken) {
    if (done.wr_id == kReceivedControl) {
      ++answers_;
    } else if (done.wr_id != kSentControl) {
      completed_ = done.wr_id;
    }
  }
  if (taken.empty()) sched_yield();
  return absl::OkStatus();
}

absl::Status FileLink::Write(const uint8_t* from, uint32_t lkey, uint64_t bytes, uint64_t offset) {
  for (uint64_t done = 0; done < bytes;) {
    if (posted_ >= kSends) BATON_RETURN_IF_ERROR(AwaitWrite(posted_ - kSends + 1));
    const uint64_t part = std::min(bytes - done, kWriteBytes);
    const verbs::ScatterGather sge{AddressOf(from + done), static_cast<uint32_t>(part), lkey};
    verbs::SendRequest request;
    request.wr_id = posted_ + 1;
    request.opcode = verbs::Opcode::kWrite;
    request.remote_address = remote_address_ + offset + done;
    request.rkey = rkey_;
    request.sges = {&sge, 1};
    size_t posted = 0;
    BATON_RETURN_IF_ERROR(end_.queue_pair().PostSend({&request, 1}, &posted));
    ++posted_;
    done += part;
  }
  return absl::OkStatus();
}

absl::Status FileLink::AwaitWrite(uint64_t number) {
  const uint64_t deadline = MonotonicNanoseconds() + kMinuteNs;
  while (completed_ < number) {
    BATON_RETURN_IF_ERROR(Take());
    if (MonotonicNanoseconds() > deadline) {
      return absl::DeadlineExceededError("a WRITE has not completed within a minute");
    }
  }
  return absl::OkStatus();
}

absl::Status FileLink::Check(uint64_t bytes) {
  const uint64_t before = answers_;
  const uint64_t deadline = MonotonicNanoseconds() + kMinuteNs;
  BATON_RETURN_IF_ERROR(SendControl(end_.queue_pair(), control_.base(), control_region_->lkey(),
                                    CheckMessage{bytes, 0}));
  while (answers_ == before) {
    BATON_RETURN_IF_ERROR(Take());
    if (MonotonicNanoseconds() > deadline) {
      return absl::DeadlineExceededError("the peer of files does not answer");
    }
  }
  CheckMessage answer = {};
  std::memcpy(&answer, control_.base() + kReceivedAt, sizeof(answer));
  BATON_RETURN_IF_ERROR(PostReceive(end_.queue_pair(), control_.base(), control_region_->lkey()));
  if (answer.bytes == bytes && answer.wrong == bytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the peer has a file of ", answer.bytes,
                                          " bytes that is wrong at ", answer.wrong));
}

}  // namespace baton::bench
