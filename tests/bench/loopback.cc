#include "tests/bench/loopback.h"

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/nic/client.h"
#include "lib/nic/control_format.h"
#include "lib/nic/control_socket.h"
#include "tests/bench/queue_owner.h"
#include "tests/lib/nic/oracle/opened_device.h"
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

namespace {

constexpr uint64_t kArenaBytes = 1 << 20;
constexpr uint32_t kBuffers = 2 * kEchoDepth;
constexpr int kTaken = 64;

class LibraryOwner final : public QueueOwner {
 public:
  LibraryOwner(std::unique_ptr<nic::Client> client, QueuePairNumbers* numbers)
      : client_(std::move(client)), numbers_(numbers) {
    PrepareRequests();
    device_.Init(queue_pair_);
    for (uint32_t i = 0; i < kEchoDepth; ++i) Receive();
    BATON_CHECK(Flush().ok());
  }
  ~LibraryOwner() override {
    BATON_CHECK(ibv_destroy_qp(queue_pair_) == 0 && ibv_destroy_cq(completions_) == 0);
  }

  uint16_t port() const override { return 1; }
  bool established() const override { return established_; }
  absl::Status Establish() override {
    const uint32_t peer = numbers_->connector.load();
    if (peer == 0) return absl::OkStatus();
    nic::oracle::OpenedDevice::Connect(queue_pair_, peer);
    numbers_->listener.store(queue_pair_->qp_num);
    established_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<int> Turn() override {
    if (taken_count_ == 0) BATON_RETURN_IF_ERROR(Poll());
    const int count = std::exchange(taken_count_, 0);
    if (count == 0) return 0;
    for (const ibv_wc& one : absl::MakeSpan(taken_).first(static_cast<size_t>(count))) {
      if (one.opcode == IBV_WC_SEND) {
        ++answered_;
        continue;
      }
      ++received_;
      Receive();
      Send(static_cast<uint32_t>(one.wr_id % kBuffers));
    }
    BATON_RETURN_IF_ERROR(Flush());
    return count;
  }
  absl::Status Wait() override {
    return PollingWait([this]() -> absl::StatusOr<bool> {
      BATON_RETURN_IF_ERROR(Poll());
      return taken_count_ > 0;
    });
  }
  uint64_t received() const override { return received_; }
  uint64_t answered() const override { return answered_; }

 private:
  void PrepareRequests() {
    for (uint32_t i = 0; i < kEchoDepth; ++i) {
      receive_buffers_[i] = send_buffers_[i] = {0, kEchoBytes, device_.region().lkey};
      receives_[i] = {0, nullptr, &receive_buffers_[i], 1};
      sends_[i].sg_list = &send_buffers_[i];
      sends_[i].num_sge = 1;
      sends_[i].opcode = IBV_WR_SEND;
    }
  }

  uint64_t AddressOf(uint32_t buffer) const {
    return reinterpret_cast<uintptr_t>(device_.data() + size_t{buffer} * kEchoBytes);
  }
  void Receive() {
    const size_t at = receive_count_++;
    receive_buffers_[at].addr = AddressOf(static_cast<uint32_t>(next_ % kBuffers));
    receives_[at].wr_id = next_++;
    receives_[at].next = nullptr;
    if (at > 0) receives_[at - 1].next = &receives_[at];
  }
  void Send(uint32_t buffer) {
    const size_t at = send_count_++;
    send_buffers_[at].addr = AddressOf(buffer);
    sends_[at].next = nullptr;
    if (at > 0) sends_[at - 1].next = &sends_[at];
  }

  absl::Status Flush() {
    if (std::exchange(receive_count_, 0) > 0) {
      ibv_recv_wr* bad = nullptr;
      const int error = ibv_post_recv(queue_pair_, receives_.data(), &bad);
      if (error != 0) return ErrnoStatus(error, "ibv_post_recv");
    }
    if (std::exchange(send_count_, 0) > 0) {
      ibv_send_wr* bad = nullptr;
      const int error = ibv_post_send(queue_pair_, sends_.data(), &bad);
      if (error != 0) return ErrnoStatus(error, "ibv_post_send");
      device_.device().Scan();
    }
    return absl::OkStatus();
  }

  absl::Status Poll() {
    taken_count_ = ibv_poll_cq(completions_, kTaken, taken_.data());
    if (taken_count_ < 0) return absl::DataLossError("ibv_poll_cq");
    for (int i = 0; i < taken_count_; ++i) {
      if (taken_[static_cast<size_t>(i)].status == IBV_WC_SUCCESS) continue;
      return absl::InternalError(absl::StrCat(
          "a request failed: ", ibv_wc_status_str(taken_[static_cast<size_t>(i)].status)));
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<nic::Client> client_;
  QueuePairNumbers* const numbers_;
  nic::oracle::OpenedDevice device_{client_.get(), kArenaBytes, size_t{kBuffers} * kEchoBytes,
                                    IBV_ACCESS_LOCAL_WRITE};
  ibv_cq* const completions_ = device_.MakeCompletionQueue(2 * kEchoDepth);
  ibv_qp* const queue_pair_ =
      device_.MakeQueuePair(completions_, {kEchoDepth, kEchoDepth, 1, 1, 0});
  bool established_ = false;

  uint64_t next_ = 0;  // receive
  size_t receive_count_ = 0;
  size_t send_count_ = 0;
  std::array<ibv_sge, kEchoDepth> receive_buffers_, send_buffers_;
  std::array<ibv_recv_wr, kEchoDepth> receives_;
  std::array<ibv_send_wr, kEchoDepth> sends_ = {};
  std::array<ibv_wc, kTaken> taken_;
  int taken_count_ = 0;  // that Wait() has found
  uint64_t received_ = 0;
  uint64_t answered_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<QueueOwner>> StartLibraryOwner(NicSockets sockets,
                                                              QueuePairNumbers* numbers) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<nic::Client> client,
                         nic::Client::Open(std::move(sockets.objects)));
  return std::make_unique<LibraryOwner>(std::move(client), numbers);
}

}  // namespace baton::bench
