#include "lib/nic/client.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "lib/nic/control_socket.h"

namespace baton::nic {
namespace {

using verbs::mlx5::CompletionQueueLayout;
using verbs::mlx5::QueuePairLayout;

constexpr uint64_t kPatienceNs = 2'000'000'000;
constexpr uint64_t kNsPerMs = 1'000'000;

template <typename Message>
control::RequestHeader HeaderOf(uint32_t tag) {
  return {static_cast<uint16_t>(Message::kOp), sizeof(Message), tag};
}

// Translates the NIC's errnos. kUnavailable is none of them: it says that the NIC is lost.
absl::Status StatusOf(const control::Reply& reply) {
  const auto code = [error = static_cast<int>(reply.error)] {
    switch (error) {
      case ENOENT:
        return absl::StatusCode::kNotFound;
      case ENOSPC:
        return absl::StatusCode::kResourceExhausted;
      case EBUSY:
        return absl::StatusCode::kFailedPrecondition;
      case EINVAL:
        return absl::StatusCode::kInvalidArgument;
      default:
        return absl::StatusCode::kInternal;
    }
  }();
  const char* const end = std::find(std::begin(reply.text), std::end(reply.text), '\0');
  return absl::Status(
      code, absl::StrCat("the NIC refuses: ", absl::string_view(reply.text, end - reply.text),
                         " (errno ", reply.error, ")"));
}

control::Place Behind(control::Place place, uint64_t offset) {
  place.offset += offset;
  return place;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  FileDescriptor made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!made) return ErrnoStatus(errno, "a socket (see RLIMIT_NOFILE)");
  if (connect(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("connecting to the NIC at ", path));
  }
  return Open(std::move(made));
}

absl::StatusOr<std::unique_ptr<Client>> Client::Open(FileDescriptor socket,
                                                     std::function<void()> turn) {
  std::unique_ptr<Client> client(new Client(std::move(socket), std::move(turn)));
  control::OpenObjects open;
  open.header = HeaderOf<control::OpenObjects>(++client->last_tag_);
  if (!SendMessage(client->file(), open)) return client->Lost("it is not there");
  BATON_RETURN_IF_ERROR(client->Wait(client->file(), client->last_tag_).status());
  BATON_RETURN_IF_ERROR(client->Attach());
  return client;
}

absl::Status Client::AfterFork() {
  forked_ = true;
  return Attach();
}

// The reply comes on a socket of this process alone, because others may share the file's.
absl::Status Client::Attach() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "a socket for the NIC's replies (see RLIMIT_NOFILE)");
  }
  const FileDescriptor ours(ends[0]);
  FileDescriptor theirs(ends[1]);
  control::Attach attach;
  attach.header = HeaderOf<control::Attach>(++last_tag_);
  if (!SendMessage(file(), attach, theirs.get())) return Lost("it is not there");
  theirs.Reset();
  BATON_ASSIGN_OR_RETURN(Made made, Wait(ours.get(), last_tag_));
  calls_ = std::move(made.descriptor);
  return absl::OkStatus();
}

absl::Status Client::Lost(absl::string_view why) {
  lost_ = true;
  return absl::UnavailableError(absl::StrCat("the NIC is lost: ", why));
}

absl::Status Client::AwaitReadable(int socket, uint64_t deadline_ns) const {
  if (turn_) {
    turn_();
    return absl::OkStatus();
  }
  const uint64_t now = MonotonicNanoseconds();
  const uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
  pollfd entry = {socket, POLLIN, 0};
  if (poll(&entry, 1, static_cast<int>(left / kNsPerMs + 1)) < 0 && errno != EINTR) {
    return ErrnoStatus(errno, "poll of the NIC's reply");
  }
  return absl::OkStatus();
}

absl::StatusOr<Client::Made> Client::Wait(int socket, uint32_t tag) {
  const uint64_t deadline = MonotonicNanoseconds() + kPatienceNs;
  ControlMessage message;
  for (;;) {
    const Received received = Receive(socket, &message);
    if (received == Received::kMessage) break;
    if (received != Received::kNothing) return Lost("it has closed the connection");
    if (MonotonicNanoseconds() > deadline) return Lost("it did not reply within 2 s");
    BATON_RETURN_IF_ERROR(AwaitReadable(socket, deadline));
  }
  control::Reply reply;
  if (message.size != sizeof(reply)) return Lost("its reply is none");
  std::memcpy(&reply, message.bytes.data(), sizeof(reply));
  if (reply.tag != tag) return Lost("its reply is to another request");
  if (reply.error == 0) return Made{reply.value, std::move(message.passed)};
  return StatusOf(reply);
}

template <typename Message>
absl::StatusOr<Client::Made> Client::Call(Message message, int passed) {
  if (lost_) return Lost("an earlier call found it so");
  message.header = HeaderOf<Message>(++last_tag_);
  if (!SendMessage(calls_.get(), message, passed)) return Lost("it is not there");
  return Wait(calls_.get(), last_tag_);
}

absl::StatusOr<uint32_t> Client::AddFile(int memfd) {
  BATON_ASSIGN_OR_RETURN(const Made made, Call(control::File(), memfd));
  return made.number;
}

absl::StatusOr<uint32_t> Client::AddRegion(const control::Place& place, uint64_t length,
                                           uint64_t address, uint32_t access, uint32_t domain) {
  control::Region message;
  message.place = place;
  message.length = length;
  message.address = address;
  message.access = access;
  message.domain = domain;
  BATON_ASSIGN_OR_RETURN(const Made made, Call(message));
  return made.number;
}

absl::StatusOr<Client::Made> Client::AddRegister(const control::Place& page) {
  control::Register message;
  message.page = page;
  return Call(message);
}

absl::StatusOr<Client::Made> Client::AddChannel() { return Call(control::Channel()); }

absl::StatusOr<uint32_t> Client::AddCompletionQueue(const control::Place& place,
                                                    const CompletionQueueLayout& layout,
                                                    uint32_t reg, uint32_t channel) {
  control::CompletionQueue message;
  message.entries = Behind(place, CompletionQueueLayout::kEntries);
  message.records = Behind(place, CompletionQueueLayout::kRecords);
  message.entry_count = layout.entry_count;
  message.entry_bytes = sizeof(mlx5_cqe64);
  message.reg = reg;
  message.channel = channel;
  return Add(message);
}

absl::StatusOr<uint32_t> Client::Add(const control::CompletionQueue& message) {
  BATON_ASSIGN_OR_RETURN(const Made made, Call(message));
  return made.number;
}

absl::StatusOr<uint32_t> Client::Add(const control::QueuePair& message) {
  BATON_ASSIGN_OR_RETURN(const Made made, Call(message));
  return made.number;
}

absl::StatusOr<uint32_t> Client::AddQueuePair(const control::Place& place,
                                              const QueuePairLayout& layout,
                                              const QueuePairOptions& options) {
  control::QueuePair message;
  message.sends = Behind(place, QueuePairLayout::kSends);
  message.receives = Behind(place, layout.receives());
  message.records = Behind(place, QueuePairLayout::kRecords);
  message.send_slots = layout.send_slots;
  message.receive_slots = layout.receive_slots;
  message.receive_bytes = layout.receive_bytes;
  message.domain = options.domain;
  message.reg = options.reg;
  message.send_queue = options.send_queue;
  message.receive_queue = options.receive_queue;
  return Add(message);
}

absl::Status Client::ConnectQueuePair(uint32_t number, uint32_t peer, uint32_t rnr_retry_count,
                                      uint32_t rnr_timer_us) {
  control::Modify message;
  message.number = number;
  message.state = static_cast<uint32_t>(verbs::QueuePairState::kReadyToSend);
  message.peer = peer;
  message.rnr_retry_count = rnr_retry_count;
  message.rnr_timer_us = rnr_timer_us;
  return Call(message).status();
}

absl::Status Client::Modify(uint32_t qp_number, verbs::QueuePairState state) {
  control::Modify message;
  message.number = qp_number;
  message.state = static_cast<uint32_t>(state);
  return Call(message).status();
}

absl::StatusOr<verbs::QueuePairState> Client::Query(uint32_t qp_number) {
  control::Query message;
  message.number = qp_number;
  BATON_ASSIGN_OR_RETURN(const Made made, Call(message));
  if (made.number > static_cast<uint32_t>(verbs::QueuePairState::kError)) {
    return Lost("it has a state that is none");
  }
  return static_cast<verbs::QueuePairState>(made.number);
}

absl::Status Client::Destroy(control::Kind kind, uint32_t number) {
  control::Destroy message;
  message.kind = static_cast<uint32_t>(kind);
  message.number = number;
  return Call(message).status();
}

void Client::DestroyQueuePair(uint32_t qp_number) {
  if (!forked_) (void)Destroy(control::Kind::kQueuePair, qp_number);
}

}  // namespace baton::nic
