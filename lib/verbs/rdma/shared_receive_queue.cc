#include "lib/verbs/rdma/shared_receive_queue.h"

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/verbs/rdma/posting.h"

namespace baton::verbs::rdma {

absl::StatusOr<std::unique_ptr<RdmaSharedReceiveQueue>> RdmaSharedReceiveQueue::Create(
    DeviceCore* core, uint32_t entries, uint32_t max_scatter_gather) {
  std::unique_ptr<RdmaSharedReceiveQueue> queue(
      new RdmaSharedReceiveQueue(core, max_scatter_gather));
  ibv_srq_init_attr wanted = {};
  wanted.srq_context = queue.get();
  wanted.attr.max_wr = entries;
  wanted.attr.max_sge = max_scatter_gather;
  queue->queue_.reset(ibv_create_srq(core->domain.get(), &wanted));
  if (!queue->queue_) {
    return ErrnoStatus(errno, absl::StrCat("ibv_create_srq with ", entries, " receives of ",
                                           max_scatter_gather, " scatter-gather entries"));
  }
  return queue;
}

absl::Status RdmaSharedReceiveQueue::PostReceive(absl::Span<const ReceiveRequest> requests,
                                                 size_t* posted) {
  return PostInChains<ibv_recv_wr>(
      requests, posted,
      [this](const ReceiveRequest& request) {
        return CheckSges(request.sges.size(), max_scatter_gather_);
      },
      TranslateReceive,
      [this](ibv_recv_wr* chain, size_t count, size_t* taken) {
        ibv_recv_wr* bad = nullptr;
        const int error = ibv_post_srq_recv(queue_.get(), chain, &bad);
        *taken = TakenOf(chain, bad, count);
        return error == 0 ? absl::OkStatus() : CannotPost(error, "shared receive");
      });
}

absl::Status RdmaSharedReceiveQueue::ArmLimit(uint32_t limit) {
  ibv_srq_attr attributes = {};
  attributes.srq_limit = limit;
  const int error = ibv_modify_srq(queue_.get(), &attributes, IBV_SRQ_LIMIT);
  return error == 0 ? absl::OkStatus()
                    : ErrnoStatus(error, absl::StrCat("ibv_modify_srq to limit ", limit));
}

}  // namespace baton::verbs::rdma
