#include "tests/bench/raw_group.h"

#include <fcntl.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"

namespace baton::bench {
namespace {

constexpr int kSlotBits = 8;

absl::Status MakeNonblocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "fcntl of a channel");
}

}  // namespace

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
  ibv_qp_init_attr wanted = {};
  wanted.send_cq = wanted.recv_cq = completions_.get();
  wanted.qp_type = IBV_QPT_RC;
  wanted.sq_sig_all = 1;
  wanted.cap = {kEchoDepth, kEchoDepth, 1, 1, 0};
  if (rdma_create_qp(id.get(), domain_.get(), &wanted) != 0) {
    return ErrnoStatus(errno, "rdma_create_qp");
  }
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
