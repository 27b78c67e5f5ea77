// Shared receive queues of the rdma device.
#ifndef LIB_VERBS_RDMA_SHARED_RECEIVE_QUEUE_H_
#define LIB_VERBS_RDMA_SHARED_RECEIVE_QUEUE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "lib/verbs/rdma/device_core.h"
#include "lib/verbs/rdma/objects.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

class RdmaSharedReceiveQueue final : public SharedReceiveQueue {
 public:
  static absl::StatusOr<std::unique_ptr<RdmaSharedReceiveQueue>> Create(
      DeviceCore* core, uint32_t entries, uint32_t max_scatter_gather);
  ~RdmaSharedReceiveQueue() override {
    core_->ForgetEventsOf(this);
    if (core_->forked) (void)queue_.release();
  }

  absl::Status PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) override;
  absl::Status ArmLimit(uint32_t limit) override;

  ibv_srq* queue() const { return queue_.get(); }

 private:
  RdmaSharedReceiveQueue(DeviceCore* core, uint32_t max_scatter_gather)
      : core_(core), max_scatter_gather_(max_scatter_gather) {}

  DeviceCore* const core_;
  const uint32_t max_scatter_gather_;
  VerbsSharedQueue queue_;
};

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_SHARED_RECEIVE_QUEUE_H_
