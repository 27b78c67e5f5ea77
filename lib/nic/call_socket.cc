#include "lib/nic/call_socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/nic/control_socket.h"

namespace baton::nic {
namespace {

// Longer than a NIC starves if many processes want its processor, because all connections end with
// the NIC.
constexpr uint64_t kPatienceNs = 4'000'000'000;
constexpr uint64_t kLastPatienceNs = 200'000'000;
constexpr uint64_t kNsPerMs = 1'000'000;

absl::Status StatusOf(const control::Reply& reply) {
  return absl::Status(CodeOf(reply.error), TextOf(reply.text));
}

}  // namespace

absl::StatusOr<CallSocket> CallSocket::Open(FileDescriptor socket, control::Op op,
                                            std::function<void()> turn) {
  CallSocket opened(std::move(socket), std::move(turn));
  control::OpenObjects open;
  open.header = {static_cast<uint16_t>(op), sizeof(open), ++opened.last_tag_};
  if (!SendMessage(opened.file(), open)) return opened.Lost("it is not there");
  BATON_RETURN_IF_ERROR(opened.Wait(opened.file(), opened.last_tag_).status());
  BATON_RETURN_IF_ERROR(opened.AddSocket());
  return opened;
}

CallSocket CallSocket::Inherit(FileDescriptor file, FileDescriptor calls, uint32_t last_tag) {
  CallSocket inherited(std::move(file), {});
  inherited.calls_ = std::move(calls);
  inherited.last_tag_ = last_tag;
  inherited.forked_ = true;
  return inherited;
}

absl::Status CallSocket::AfterFork() {
  forked_ = true;
  return AddSocket();
}

// The reply comes on a socket of this process alone, because others may share the file's.
absl::Status CallSocket::AddSocket() {
  BATON_ASSIGN_OR_RETURN(SocketPair pair, MakeSocketPair(SOCK_SEQPACKET));
  control::AddSocket request;
  request.header = {static_cast<uint16_t>(control::Op::kAddSocket), sizeof(request), ++last_tag_};
  if (!SendMessage(file(), request, pair.theirs.get())) return Lost("it is not there");
  pair.theirs.Reset();
  BATON_ASSIGN_OR_RETURN(Answer answer, Wait(pair.ours.get(), last_tag_));
  calls_ = std::move(answer.descriptor);
  number_ = answer.value;
  return absl::OkStatus();
}

absl::Status CallSocket::BeginTakeOver() {
  formers_.push_back(number_);
  return AddSocket();
}

absl::Status CallSocket::TakeOver() {
  for (const uint32_t former : formers_) {
    BATON_RETURN_IF_ERROR(Call(control::EndSocket{.number = former}).status());
  }
  formers_.clear();
  return absl::OkStatus();
}

absl::Status CallSocket::Lost(absl::string_view why) {
  lost_ = true;
  return absl::UnavailableError(absl::StrCat("the NIC is lost: ", why));
}

absl::Status CallSocket::AwaitReadable(int socket, uint64_t deadline_ns) const {
  const uint64_t now = MonotonicNanoseconds();
  const uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
  pollfd entry = {socket, POLLIN, 0};
  if (poll(&entry, 1, static_cast<int>(left / kNsPerMs + 1)) < 0 && errno != EINTR) {
    return ErrnoStatus(errno, "poll of the NIC's reply");
  }
  return absl::OkStatus();
}

absl::StatusOr<CallSocket::Answer> CallSocket::Wait(int socket, uint32_t tag) {
  uint64_t deadline = MonotonicNanoseconds() + kPatienceNs;
  bool last = false;
  ControlMessage message;
  for (;;) {
    bool late = !turn_ && MonotonicNanoseconds() > deadline;  // decided before the last look
    // Both processes may have been frozen, and the NIC may have had no time to reply since.
    if (late && !std::exchange(last, true)) {
      deadline = MonotonicNanoseconds() + kLastPatienceNs;
      late = false;
    }
    if (turn_) turn_();
    const Received received = Receive(socket, &message);
    if (received == Received::kMessage) break;
    if (received == Received::kNoDescriptor) {
      return absl::ResourceExhaustedError("no descriptor is free: raise RLIMIT_NOFILE");
    }
    if (received != Received::kNothing) return Lost("it has closed the connection");
    if (late) return Lost("it did not reply within 4 s");
    if (!turn_) BATON_RETURN_IF_ERROR(AwaitReadable(socket, deadline));
  }
  control::Reply reply;
  control::Event event;
  const bool has_event = message.size == sizeof(reply) + sizeof(event);
  if (message.size != sizeof(reply) && !has_event) return Lost("its reply is none");
  std::memcpy(&reply, message.bytes.data(), sizeof(reply));
  if (reply.tag != tag) return Lost("its reply is to another request");
  if (reply.error != 0) return StatusOf(reply);
  Answer answer = {reply.value, reply.more, std::move(message.passed), {}};
  if (has_event) {
    std::memcpy(&event, message.bytes.data() + sizeof(reply), sizeof(event));
    answer.event = event;
  }
  return answer;
}

absl::StatusOr<CallSocket::Answer> CallSocket::Exchange(absl::Span<const uint8_t> message,
                                                        int passed) {
  if (given_up_) {
    return absl::FailedPreconditionError(
        "only the process that opened the device does that, and this one was forked from it");
  }
  if (lost_) return Lost("an earlier call found it so");
  if (!Send(calls_.get(), message, passed)) return Lost("it is not there");
  return Wait(calls_.get(), last_tag_);
}

}  // namespace baton::nic
