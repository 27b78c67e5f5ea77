#include "tests/bench/loopback.h"

#include <fcntl.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
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
#include "lib/verbs/mlx5/doorbell.h"
#include "tests/bench/queue_owner.h"
#include "tests/lib/nic/harness.h"
#include "tests/lib/nic/oracle/uverbs_device.h"
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
constexpr size_t kPageBytes = 4096;

class LibraryOwner final : public QueueOwner {
 public:
  LibraryOwner(std::unique_ptr<nic::Client> client, QueuePairNumbers* numbers)
      : client_(std::move(client)), numbers_(numbers) {
    Open();
    Make();
    PrepareRequests();
    Init();
    for (uint32_t i = 0; i < kEchoDepth; ++i) Receive();
    BATON_CHECK(Flush().ok());
  }
  ~LibraryOwner() override {
    BATON_CHECK(ibv_destroy_qp(queue_pair_) == 0 && ibv_destroy_cq(completions_) == 0);
    BATON_CHECK(ibv_dereg_mr(region_) == 0 && ibv_dealloc_pd(domain_) == 0);
    BATON_CHECK(ibv_dealloc_td(thread_domain_) == 0 && ibv_dealloc_pd(protection_domain_) == 0);
    BATON_CHECK(ibv_close_device(context_) == 0);
  }

  uint16_t port() const override { return 1; }
  bool established() const override { return established_; }
  absl::Status Establish() override {
    const uint32_t peer = numbers_->connector.load();
    if (peer == 0) return absl::OkStatus();
    Connect(peer);
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
  uint8_t* Allocate(size_t size, size_t alignment) {
    const size_t at_least = std::max<size_t>(alignment, verbs::mlx5::kLineBytes);
    used_ = (used_ + at_least - 1) / at_least * at_least;
    uint8_t* const at = arena_.begin() + used_;
    used_ += size;
    BATON_CHECK(used_ <= arena_.bytes());
    return at;
  }

  // All queues lie where the NIC reaches them. One thread has them, so libmlx5 takes no locks.
  void Open() {
    context_ = device_.Open();
    protection_domain_ = ibv_alloc_pd(context_);
    ibv_td_init_attr thread = {};
    thread_domain_ = ibv_alloc_td(context_, &thread);
    ibv_parent_domain_init_attr parent = {};
    parent.pd = protection_domain_;
    parent.td = thread_domain_;
    parent.comp_mask =
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    parent.alloc = [](ibv_pd*, void* self, size_t size, size_t alignment, uint64_t) -> void* {
      return static_cast<LibraryOwner*>(self)->Allocate(size, alignment);
    };
    parent.free = [](ibv_pd*, void*, void*, uint64_t) {};
    parent.pd_context = this;
    domain_ = ibv_alloc_parent_domain(context_, &parent);
    buffers_ = Allocate(size_t{kBuffers} * kEchoBytes, kPageBytes);
    region_ = ibv_reg_mr(protection_domain_, buffers_, size_t{kBuffers} * kEchoBytes,
                         IBV_ACCESS_LOCAL_WRITE);
    BATON_CHECK(thread_domain_ != nullptr && domain_ != nullptr && region_ != nullptr);
  }

  void Make() {
    ibv_cq_init_attr_ex queue = {};
    queue.cqe = 2 * kEchoDepth;
    queue.wc_flags = IBV_WC_STANDARD_FLAGS;
    queue.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
    queue.parent_domain = domain_;
    mlx5dv_cq_init_attr entries = {};
    ibv_cq_ex* const made = mlx5dv_create_cq(context_, &queue, &entries);
    BATON_CHECK(made != nullptr);
    completions_ = ibv_cq_ex_to_cq(made);
    ibv_qp_init_attr_ex pair = {};
    pair.send_cq = pair.recv_cq = completions_;
    pair.qp_type = IBV_QPT_RC;
    pair.sq_sig_all = 1;
    pair.cap = {kEchoDepth, kEchoDepth, 1, 1, 0};
    pair.comp_mask = IBV_QP_INIT_ATTR_PD;
    pair.pd = domain_;
    mlx5dv_qp_init_attr more = {};
    more.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
    more.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;  // the NIC does not
    queue_pair_ = mlx5dv_create_qp(context_, &pair, &more);
    BATON_CHECK(queue_pair_ != nullptr);
  }

  void PrepareRequests() {
    for (uint32_t i = 0; i < kEchoDepth; ++i) {
      receive_buffers_[i] = send_buffers_[i] = {0, kEchoBytes, region_->lkey};
      receives_[i] = {0, nullptr, &receive_buffers_[i], 1};
      sends_[i].sg_list = &send_buffers_[i];
      sends_[i].num_sge = 1;
      sends_[i].opcode = IBV_WR_SEND;
    }
  }

  void Init() {
    ibv_qp_attr init = {};
    init.qp_state = IBV_QPS_INIT;
    init.port_num = 1;
    init.qp_access_flags = IBV_ACCESS_LOCAL_WRITE;
    BATON_CHECK(
        ibv_modify_qp(queue_pair_, &init,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
  }

  void Connect(uint32_t peer) {
    ibv_qp_attr receive = {};
    receive.qp_state = IBV_QPS_RTR;
    receive.path_mtu = IBV_MTU_1024;
    receive.dest_qp_num = peer;
    receive.max_dest_rd_atomic = 1;
    receive.min_rnr_timer = 1;
    receive.ah_attr.is_global = 1;
    receive.ah_attr.port_num = 1;
    BATON_CHECK(ibv_modify_qp(queue_pair_, &receive,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                  IBV_QP_MIN_RNR_TIMER) == 0);
    ibv_qp_attr send = {};
    send.qp_state = IBV_QPS_RTS;
    send.timeout = 14;
    send.retry_cnt = send.rnr_retry = 7;
    send.max_rd_atomic = 1;
    BATON_CHECK(ibv_modify_qp(queue_pair_, &send,
                              IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
  }

  uint64_t AddressOf(uint32_t buffer) const {
    return reinterpret_cast<uintptr_t>(buffers_ + size_t{buffer} * kEchoBytes);
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
      device_.Scan();
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
  nic::SharedFile arena_{kArenaBytes};
  size_t used_ = sizeof(verbs::mlx5::DoorbellPage);
  nic::oracle::UverbsDevice device_{client_.get(), &arena_};
  ibv_context* context_ = nullptr;
  ibv_pd* protection_domain_ = nullptr;
  ibv_td* thread_domain_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_mr* region_ = nullptr;
  uint8_t* buffers_ = nullptr;
  ibv_cq* completions_ = nullptr;
  ibv_qp* queue_pair_ = nullptr;
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
