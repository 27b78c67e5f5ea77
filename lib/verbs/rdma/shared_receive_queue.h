// Shared receive queues of the rdma device.
#ifndef LIB_VERBS_RDMA_SHARED_RECEIVE_QUEUE_H_
#define LIB_VERBS_RDMA_SHARED_RECEIVE_QUEUE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/verbs/rdma/device_core.h"
#include "lib/verbs/rdma/objects.h"
#include "lib/verbs/rdma/posting.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

class RdmaSharedReceiveQueue final : public SharedReceiveQueue {
 public:
  static absl::StatusOr<std::unique_ptr<RdmaSharedReceiveQueue>> Create(
      DeviceCore* core, uint32_t entries, uint32_t max_scatter_gather);
  // Makes an object for a described queue (Device::Describe).
  RdmaSharedReceiveQueue(DeviceCore* core, const BatonInheritedSharedReceiveQueue& described)
      : core_(core),
        max_scatter_gather_(described.max_scatter_gather),
        queue_(static_cast<ibv_srq*>(described.queue)) {}
  ~RdmaSharedReceiveQueue() override {
    core_->ForgetEventsOf(this);
    if (core_->leaves_objects()) (void)queue_.release();  // it ends with the device
  }

  absl::Status PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) override;
  absl::Status ArmLimit(uint32_t limit) override;
  void Describe(BatonInheritedSharedReceiveQueue* described) const override {
    *described = {};
    described->queue = queue_.get();
    described->max_scatter_gather = max_scatter_gather_;
  }

  ibv_srq* queue() const { return queue_.get(); }

 private:
  RdmaSharedReceiveQueue(DeviceCore* core, uint32_t max_scatter_gather)
      : core_(core), max_scatter_gather_(max_scatter_gather) {}

  DeviceCore* const core_;
  const uint32_t max_scatter_gather_;
  VerbsSharedQueue queue_;
};

inline absl::StatusOr<std::unique_ptr<RdmaSharedReceiveQueue>> RdmaSharedReceiveQueue::Create(
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

inline absl::Status RdmaSharedReceiveQueue::PostReceive(absl::Span<const ReceiveRequest> requests,
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

inline absl::Status RdmaSharedReceiveQueue::ArmLimit(uint32_t limit) {
  ibv_srq_attr attributes = {};
  attributes.srq_limit = limit;
  const int error = ibv_modify_srq(queue_.get(), &attributes, IBV_SRQ_LIMIT);
  return error == 0 ? absl::OkStatus()
                    : ErrnoStatus(error, absl::StrCat("ibv_modify_srq to limit ", limit));
}

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_SHARED_RECEIVE_QUEUE_H_
