#include "tests/bench/loopback_device.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/nic/control_format.h"
#include "lib/nic/control_socket.h"
#include "tests/lib/verbs/fake_device.h"

namespace baton::bench {
namespace {

using nic::control::AddSocket;
using nic::control::Modify;
using nic::control::Reply;

constexpr int kPatienceMs = 10'000;
constexpr uint32_t kEndless = 7;  // retries of receivers that are not ready
constexpr uint32_t kRnrTimerUs = 100;

// Returns what came with the reply that is next on `socket`.
absl::StatusOr<FileDescriptor> AwaitReply(int socket) {
  pollfd entry = {socket, POLLIN, 0};
  nic::ControlMessage message;
  if (poll(&entry, 1, kPatienceMs) != 1 ||
      nic::Receive(socket, &message) != nic::Received::kMessage || message.size < sizeof(Reply)) {
    return absl::UnavailableError("the NIC does not reply");
  }
  Reply reply;
  std::memcpy(&reply, message.bytes.data(), sizeof(reply));
  if (reply.error == 0) return std::move(message.passed);
  return absl::Status(nic::CodeOf(reply.error), nic::TextOf(reply.text));
}

template <typename Message>
absl::Status Ask(int socket, Message message, int passed = -1) {
  message.header = {static_cast<uint16_t>(Message::kOp), sizeof(message), 1};
  if (nic::SendMessage(socket, message, passed)) return absl::OkStatus();
  return absl::UnavailableError("the NIC is not there");
}

// A call socket of our own: the device has another one of the same file.
absl::StatusOr<FileDescriptor> AddSocketTo(int file) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  const FileDescriptor ours(ends[0]), theirs(ends[1]);
  BATON_RETURN_IF_ERROR(Ask(file, AddSocket(), theirs.get()));
  return AwaitReply(ours.get());
}

}  // namespace

class LoopbackDevice::Id final : public verbs::testing::FakeConnectionId {
 public:
  explicit Id(LoopbackDevice* device) : device_(device) { device_->id_ = this; }
  absl::Status Accept(verbs::QueuePair* queue_pair, const verbs::ConnectionParameters&) override {
    return device_->Accept(queue_pair);
  }

 private:
  LoopbackDevice* const device_;
};

absl::StatusOr<std::unique_ptr<verbs::Device>> LoopbackDevice::Open(NicSockets sockets,
                                                                    QueuePairNumbers* numbers) {
  FileDescriptor file(fcntl(sockets.objects.get(), F_DUPFD_CLOEXEC, 0));
  if (!file) return ErrnoStatus(errno, "a copy of a NIC's socket");
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::Device> inner, OpenDevice(std::move(sockets)));
  std::unique_ptr<LoopbackDevice> device(
      new LoopbackDevice(std::move(inner), std::move(file), numbers));
  BATON_RETURN_IF_ERROR(device->WatchEvents());
  return device;
}

absl::Status LoopbackDevice::WatchEvents() {
  has_event_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  for (const int fd : {has_event_.get(), ForwardingDevice::event_fd()}) {
    epoll_event event = {};
    event.events = EPOLLIN;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return ErrnoStatus(errno, "epoll_ctl");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<verbs::Listener>> LoopbackDevice::Listen(
    const verbs::Address& address, int) {
  if (phase_ != Phase::kNone) return absl::FailedPreconditionError("it listens or connects once");
  const uint64_t deadline = MonotonicNanoseconds() + kPatienceMs * uint64_t{1'000'000};
  while (numbers_->connector.load() == 0) {
    if (MonotonicNanoseconds() > deadline) return absl::DeadlineExceededError("no peer connects");
    sched_yield();
  }
  phase_ = Phase::kListens;
  (void)eventfd_write(has_event_.get(), 1);
  auto listener = std::make_unique<verbs::testing::FakeListener>(verbs::Address{address.host, 1});
  listener_ = listener.get();
  return listener;
}

absl::StatusOr<std::unique_ptr<verbs::ConnectionId>> LoopbackDevice::Connect(
    const verbs::Address&, verbs::QueuePair* queue_pair, const verbs::ConnectionParameters&) {
  if (phase_ != Phase::kNone) return absl::FailedPreconditionError("it listens or connects once");
  phase_ = Phase::kConnects;
  queue_pair_ = queue_pair;
  numbers_->connector.store(queue_pair->number());
  return std::make_unique<Id>(this);
}

absl::Status LoopbackDevice::Accept(verbs::QueuePair* queue_pair) {
  queue_pair_ = queue_pair;
  BATON_RETURN_IF_ERROR(ConnectTo(numbers_->connector.load()));
  numbers_->listener.store(queue_pair->number());
  phase_ = Phase::kAccepted;
  (void)eventfd_write(has_event_.get(), 1);
  return absl::OkStatus();
}

absl::Status LoopbackDevice::ConnectTo(uint32_t peer) {
  BATON_ASSIGN_OR_RETURN(const FileDescriptor calls, AddSocketTo(file_.get()));
  Modify message;
  message.number = queue_pair_->number();
  message.state = static_cast<uint32_t>(verbs::QueuePairState::kReadyToSend);
  message.peer = peer;
  message.rnr_retry_count = kEndless;
  message.rnr_timer_us = kRnrTimerUs;
  BATON_RETURN_IF_ERROR(Ask(calls.get(), message));
  BATON_RETURN_IF_ERROR(AwaitReply(calls.get()).status());
  queue_pair_->NoteConnected(/*reads=*/true);
  return absl::OkStatus();
}

bool LoopbackDevice::NextEvent(verbs::CmEvent* event) {
  *event = {};
  eventfd_t taken = 0;
  if (phase_ == Phase::kListens) {
    (void)eventfd_read(has_event_.get(), &taken);
    event->type = verbs::CmEventType::kConnectRequest;
    event->listener = listener_;
    event->new_id = std::make_unique<Id>(this);
    phase_ = Phase::kRequested;
    return true;
  }
  const bool answered = phase_ == Phase::kConnects && numbers_->listener.load() != 0;
  if (!answered && phase_ != Phase::kAccepted) return false;
  (void)eventfd_read(has_event_.get(), &taken);
  event->type = verbs::CmEventType::kEstablished;
  event->id = id_;
  if (answered) event->status = ConnectTo(numbers_->listener.load());
  if (!event->status.ok()) event->type = verbs::CmEventType::kUnreachable;
  phase_ = Phase::kEstablished;
  return true;
}

}  // namespace baton::bench
