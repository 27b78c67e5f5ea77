#include "tests/bench/raw_connection.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::bench {
namespace {

constexpr int kResolveTimeoutMs = 5000;
constexpr int kBacklog = 4;
constexpr uint8_t kRetries = 7, kReads = 16;

constexpr int kSlotBits = 8;

absl::Status MakeNonblocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "fcntl of a channel");
}

absl::Status MakeQueuePair(rdma_cm_id* id, ibv_pd* domain, ibv_cq* completions, uint32_t depth) {
  ibv_qp_init_attr wanted = {};
  wanted.send_cq = wanted.recv_cq = completions;
  wanted.qp_type = IBV_QPT_RC;
  wanted.sq_sig_all = 1;
  wanted.cap = {depth, depth, 1, 1, 0};
  if (rdma_create_qp(id, domain, &wanted) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "rdma_create_qp");
}

}  // namespace

absl::StatusOr<sockaddr_in> AddressOf(const std::string& host, uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(host, " is not an IPv4 address"));
  }
  return address;
}

rdma_conn_param ConnectionParameters() {
  rdma_conn_param parameters = {};
  parameters.responder_resources = kReads;
  parameters.initiator_depth = kReads;
  parameters.retry_count = kRetries;
  parameters.rnr_retry_count = kRetries;
  return parameters;
}

absl::StatusOr<CmId> MakeId(rdma_event_channel* channel) {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) != 0) {
    return ErrnoStatus(errno, "rdma_create_id");
  }
  return CmId(id);
}

absl::StatusOr<std::unique_ptr<RawListener>> RawListener::Create(const std::string& host) {
  BATON_ASSIGN_OR_RETURN(CmId id, MakeId(nullptr));
  BATON_ASSIGN_OR_RETURN(sockaddr_in address, AddressOf(host, 0));
  if (rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&address)) != 0) {
    return ErrnoStatus(errno, "rdma_bind_addr");
  }
  if (rdma_listen(id.get(), kBacklog) != 0) return ErrnoStatus(errno, "rdma_listen");
  return std::unique_ptr<RawListener>(new RawListener(std::move(id)));
}

uint16_t RawListener::port() const { return ntohs(rdma_get_src_port(id_.get())); }

absl::StatusOr<CmId> RawListener::NextRequest() {
  rdma_cm_id* id = nullptr;
  if (rdma_get_request(id_.get(), &id) != 0) return ErrnoStatus(errno, "rdma_get_request");
  return CmId(id);
}

absl::StatusOr<std::unique_ptr<RawConnection>> RawConnection::Create(CmId id) {
  BATON_ASSIGN_OR_RETURN(examples::SharedMemory memory,
                         examples::SharedMemory::Allocate(kSlabBytes));
  std::unique_ptr<RawConnection> connection(new RawConnection(std::move(memory)));
  connection->id_ = std::move(id);
  BATON_RETURN_IF_ERROR(connection->MakeQueues());
  return connection;
}

absl::Status RawConnection::MakeQueues() {
  ibv_context* const context = id_->verbs;
  domain_.reset(ibv_alloc_pd(context));
  if (!domain_) return ErrnoStatus(errno, "ibv_alloc_pd");
  region_.reset(ibv_reg_mr(domain_.get(), slab(), kSlabBytes,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                               IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
  if (!region_) return ErrnoStatus(errno, "ibv_reg_mr");
  channel_.reset(ibv_create_comp_channel(context));
  if (!channel_) return ErrnoStatus(errno, "ibv_create_comp_channel");
  completions_.reset(ibv_create_cq(context, 2 * kBatch, nullptr, channel_.get(), 0));
  if (!completions_) return ErrnoStatus(errno, "ibv_create_cq");
  return MakeQueuePair(id_.get(), domain_.get(), completions_.get(), kBatch);
}

absl::StatusOr<std::unique_ptr<RawConnection>> RawConnection::Connect(const std::string& host,
                                                                      uint16_t port) {
  BATON_ASSIGN_OR_RETURN(CmId id, MakeId(nullptr));
  BATON_ASSIGN_OR_RETURN(sockaddr_in address, AddressOf(host, port));
  if (rdma_resolve_addr(id.get(), nullptr, reinterpret_cast<sockaddr*>(&address),
                        kResolveTimeoutMs) != 0) {
    return ErrnoStatus(errno, absl::StrCat("rdma_resolve_addr of ", host));
  }
  if (rdma_resolve_route(id.get(), kResolveTimeoutMs) != 0) {
    return ErrnoStatus(errno, absl::StrCat("rdma_resolve_route to ", host));
  }
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<RawConnection> connection, Create(std::move(id)));
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    BATON_RETURN_IF_ERROR(
        connection->Receive(slot, kReceiveOffset + slot * sizeof(Message), sizeof(Message)));
  }
  BATON_RETURN_IF_ERROR(connection->Flush());
  rdma_conn_param parameters = ConnectionParameters();
  if (rdma_connect(connection->id_.get(), &parameters) != 0) {
    return ErrnoStatus(errno, absl::StrCat("rdma_connect to ", host, ":", port));
  }
  return connection;
}

absl::StatusOr<std::unique_ptr<RawConnection>> RawConnection::Take(CmId request) {
  return Create(std::move(request));
}

absl::Status RawConnection::Accept() {
  rdma_conn_param parameters = ConnectionParameters();
  return rdma_accept(id_.get(), &parameters) == 0 ? absl::OkStatus()
                                                  : ErrnoStatus(errno, "rdma_accept");
}

absl::Status RawConnection::Receive(uint32_t slot, size_t offset, uint32_t length) {
  if (receive_count_ == kBatch) BATON_RETURN_IF_ERROR(Flush());
  ibv_sge& buffer = receive_buffers_[receive_count_];
  buffer = {reinterpret_cast<uint64_t>(slab() + offset), length, region_->lkey};
  receives_[receive_count_] = {slot, nullptr, &buffer, 1};
  if (receive_count_ > 0) receives_[receive_count_ - 1].next = &receives_[receive_count_];
  ++receive_count_;
  return absl::OkStatus();
}

absl::StatusOr<ibv_send_wr*> RawConnection::NextSend(size_t offset, uint32_t length) {
  if (send_count_ == kBatch) BATON_RETURN_IF_ERROR(Flush());
  ibv_sge& buffer = send_buffers_[send_count_];
  buffer = {reinterpret_cast<uint64_t>(slab() + offset), length, region_->lkey};
  ibv_send_wr& request = sends_[send_count_];
  request = {};
  request.sg_list = &buffer;
  request.num_sge = 1;
  if (send_count_ > 0) sends_[send_count_ - 1].next = &request;
  ++send_count_;
  return &request;
}

absl::Status RawConnection::Send(size_t offset, uint32_t length) {
  BATON_ASSIGN_OR_RETURN(ibv_send_wr * request, NextSend(offset, length));
  request->opcode = IBV_WR_SEND;
  return absl::OkStatus();
}

absl::Status RawConnection::Remote(Op op, size_t offset, uint32_t length, uint64_t remote_address,
                                   uint32_t rkey) {
  BATON_ASSIGN_OR_RETURN(ibv_send_wr * request, NextSend(offset, length));
  if (op == Op::kFetchAdd) {
    request->opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    request->wr.atomic = {remote_address, /*compare_add=*/1, /*swap=*/0, rkey};
    return absl::OkStatus();
  }
  request->opcode = op == Op::kRead ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  request->wr.rdma.remote_addr = remote_address;
  request->wr.rdma.rkey = rkey;
  return absl::OkStatus();
}

absl::Status RawConnection::Flush() {
  if (std::exchange(receive_count_, 0) > 0) {
    ibv_recv_wr* refused = nullptr;
    const int error = ibv_post_recv(id_->qp, receives_.data(), &refused);
    if (error != 0) return ErrnoStatus(error, "ibv_post_recv");
  }
  if (std::exchange(send_count_, 0) > 0) {
    ibv_send_wr* refused = nullptr;
    const int error = ibv_post_send(id_->qp, sends_.data(), &refused);
    if (error != 0) return ErrnoStatus(error, "ibv_post_send");
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const ibv_wc>> RawConnection::Poll() {
  const int count = ibv_poll_cq(completions_.get(), static_cast<int>(taken_.size()), taken_.data());
  if (count < 0) return ErrnoStatus(errno, "ibv_poll_cq");
  for (int i = 0; i < count; ++i) {
    if (taken_[i].status != IBV_WC_SUCCESS) {
      return absl::UnavailableError(
          absl::StrCat("a work request failed: ", ibv_wc_status_str(taken_[i].status)));
    }
  }
  return absl::MakeConstSpan(taken_.data(), static_cast<size_t>(count));
}

absl::StatusOr<absl::Span<const ibv_wc>> RawConnection::Await() {
  for (;;) {
    const int error = ibv_req_notify_cq(completions_.get(), /*solicited_only=*/0);
    if (error != 0) return ErrnoStatus(error, "ibv_req_notify_cq");
    BATON_ASSIGN_OR_RETURN(const absl::Span<const ibv_wc> taken, Poll());
    if (!taken.empty()) return taken;
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(channel_.get(), &queue, &context) != 0) {
      return ErrnoStatus(errno, "ibv_get_cq_event");
    }
    ibv_ack_cq_events(queue, 1);
  }
}

absl::StatusOr<EventChannel> OpenEventChannel() {
  EventChannel channel(rdma_create_event_channel());
  if (!channel) return ErrnoStatus(errno, "rdma_create_event_channel");
  BATON_RETURN_IF_ERROR(MakeNonblocking(channel->fd));
  return channel;
}

absl::StatusOr<CmEventPointer> NextEvent(rdma_event_channel* channel) {
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(channel, &event) == 0) return CmEventPointer(event);
  if (errno == EAGAIN || errno == EINTR) return CmEventPointer();
  return ErrnoStatus(errno, "rdma_get_cm_event");
}

absl::StatusOr<std::unique_ptr<RawGroup>> RawGroup::Create(ibv_context* context,
                                                           uint32_t max_connections) {
  const size_t bytes = size_t{max_connections} * 2 * kEchoDepth * kEchoBytes;
  BATON_ASSIGN_OR_RETURN(examples::SharedMemory memory, examples::SharedMemory::Allocate(bytes));
  std::unique_ptr<RawGroup> group(new RawGroup(max_connections, std::move(memory)));
  BATON_RETURN_IF_ERROR(group->Open(context));
  return group;
}

absl::Status RawGroup::Open(ibv_context* context) {
  domain_.reset(ibv_alloc_pd(context));
  if (!domain_) return ErrnoStatus(errno, "ibv_alloc_pd");
  const size_t bytes = OffsetOf(static_cast<uint32_t>(ids_.size()), false, 0);
  region_.reset(ibv_reg_mr(domain_.get(), memory_.base(), bytes, IBV_ACCESS_LOCAL_WRITE));
  if (!region_) return ErrnoStatus(errno, "ibv_reg_mr");
  channel_.reset(ibv_create_comp_channel(context));
  if (!channel_) return ErrnoStatus(errno, "ibv_create_comp_channel");
  BATON_RETURN_IF_ERROR(MakeNonblocking(channel_->fd));
  const int entries = static_cast<int>(ids_.size() * 2 * kEchoDepth);
  completions_.reset(ibv_create_cq(context, entries, nullptr, channel_.get(), 0));
  if (!completions_) return ErrnoStatus(errno, absl::StrCat("ibv_create_cq of ", entries));
  return absl::OkStatus();
}

size_t RawGroup::OffsetOf(uint32_t connection, bool sent, uint32_t slot) const {
  return ((size_t{connection} * 2 + (sent ? 1 : 0)) * kEchoDepth + slot) * kEchoBytes;
}

uint8_t* RawGroup::sent(uint32_t connection, uint32_t slot) const {
  return memory_.base() + OffsetOf(connection, true, slot);
}

const uint8_t* RawGroup::received(uint32_t connection, uint32_t slot) const {
  return memory_.base() + OffsetOf(connection, false, slot);
}

absl::StatusOr<uint32_t> RawGroup::Add(CmId id) {
  if (size_ == ids_.size()) {
    return absl::ResourceExhaustedError(absl::StrCat("more than ", ids_.size(), " connections"));
  }
  uint32_t connection = size_;  // mostly none was removed
  while (ids_[connection] != nullptr) connection = (connection + 1) % ids_.size();
  BATON_RETURN_IF_ERROR(MakeQueuePair(id.get(), domain_.get(), completions_.get(), kEchoDepth));
  id->context = reinterpret_cast<void*>(uintptr_t{connection});
  ids_[connection] = std::move(id);
  ++size_;
  for (uint32_t slot = 0; slot < kEchoDepth; ++slot) {
    BATON_RETURN_IF_ERROR(Receive(connection, slot));
  }
  return connection;
}

void RawGroup::Remove(uint32_t connection) {
  ids_[connection].reset();
  --size_;
}

absl::Status RawGroup::Receive(uint32_t connection, uint32_t slot) {
  ibv_sge buffer = {reinterpret_cast<uint64_t>(received(connection, slot)), kEchoBytes,
                    region_->lkey};
  ibv_recv_wr request = {uint64_t{connection} << kSlotBits | slot, nullptr, &buffer, 1};
  ibv_recv_wr* refused = nullptr;
  const int error = ibv_post_recv(ids_[connection]->qp, &request, &refused);
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, "ibv_post_recv");
}

absl::Status RawGroup::Send(uint32_t connection, uint32_t slot) {
  ibv_sge buffer = {reinterpret_cast<uint64_t>(sent(connection, slot)), kEchoBytes, region_->lkey};
  ibv_send_wr request = {};
  request.wr_id = uint64_t{connection} << kSlotBits | slot;
  request.sg_list = &buffer;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(ids_[connection]->qp, &request, &refused);
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, "ibv_post_send");
}

absl::StatusOr<absl::Span<const RawGroup::Done>> RawGroup::Poll() {
  const int count =
      ibv_poll_cq(completions_.get(), static_cast<int>(polled_.size()), polled_.data());
  if (count < 0) return ErrnoStatus(errno, "ibv_poll_cq");
  size_t taken = 0;
  for (int i = 0; i < count; ++i) {
    const ibv_wc& done = polled_[i];
    if (done.status == IBV_WC_WR_FLUSH_ERR) continue;
    if (done.status != IBV_WC_SUCCESS) {
      return absl::UnavailableError(
          absl::StrCat("a work request failed: ", ibv_wc_status_str(done.status)));
    }
    done_[taken++] = {done.opcode == IBV_WC_RECV, static_cast<uint32_t>(done.wr_id >> kSlotBits),
                      static_cast<uint32_t>(done.wr_id & ((1U << kSlotBits) - 1))};
  }
  return absl::MakeConstSpan(done_.data(), taken);
}

absl::Status RawGroup::RequestNotification() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(channel_.get(), &queue, &context) == 0) ibv_ack_cq_events(queue, 1);
  const int error = ibv_req_notify_cq(completions_.get(), /*solicited_only=*/0);
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, "ibv_req_notify_cq");
}

}  // namespace baton::bench
