#include "lib/verbs/soft/shared_receive_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::verbs::soft {

absl::Status SoftSharedReceiveQueue::PostReceive(absl::Span<const ReceiveRequest> requests,
                                                 size_t* posted) {
  *posted = 0;
  for (const ReceiveRequest& request : requests) {
    if (request.sges.size() > max_sges_) {
      return absl::InvalidArgumentError(
          absl::StrCat("receive with ", request.sges.size(),
                       " scatter-gather entries; the shared queue was made for ", max_sges_));
    }
    if (ring_.full()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("shared receive queue full: ", entries_, " requests are in it"));
    }
    PushReceive(request, &ring_);
    ++*posted;
  }
  return absl::OkStatus();
}

absl::Status SoftSharedReceiveQueue::ArmLimit(uint32_t limit) {
  if (limit > entries_) {
    return absl::InvalidArgumentError(
        absl::StrCat("limit ", limit, " of a shared receive queue of ", entries_));
  }
  limit_ = limit;
  return absl::OkStatus();
}

bool SoftSharedReceiveQueue::Take(WorkRing<ReceiveWork>* ring) {
  if (ring_.empty()) return false;
  const uint64_t head = ring_.head();
  ring->Push({ring_.sges(head), ring_[head].sge_count}) = ring_[head];
  ring_.Pop();
  if (ring_.tail() - ring_.head() < limit_) {
    limit_ = 0;
    DeviceEvent event;
    event.type = DeviceEventType::kSharedReceiveQueueLow;
    event.shared_receive_queue = this;
    event.text = "limit of a shared receive queue reached";
    engine_->Tell(std::move(event));
  }
  return true;
}

}  // namespace baton::verbs::soft
