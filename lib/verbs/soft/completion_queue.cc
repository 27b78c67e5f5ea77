#include "lib/verbs/soft/completion_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace baton::verbs::soft {

absl::StatusOr<int> SoftCompletionQueue::Poll(absl::Span<Completion> completions) {
  ClearFired();
  if (overrun_) {
    return absl::DataLossError(
        absl::StrCat("completion queue of ", entries_,
                     " entries was overrun and is unusable: make it as large as all that can be "
                     "outstanding on its queue pairs"));
  }
  const uint64_t count = std::min<uint64_t>(completions.size(), tail_ - head_);
  for (uint64_t i = 0; i < count; ++i) completions[i] = ring_[head_++ & (ring_.size() - 1)];
  return static_cast<int>(count);
}

absl::Status SoftCompletionQueue::RequestNotification() {
  armed_ = true;
  return absl::OkStatus();
}

bool SoftCompletionQueue::Push(const Completion& completion) {
  if (tail_ - head_ >= entries_ && !overrun_) {
    overrun_ = true;
    engine_->Tell(DeviceEventType::kCompletionQueueFailed, "completion queue overrun");
  }
  if (!overrun_) {
    if (tail_ - head_ == ring_.size()) Grow();
    ring_[tail_++ & (ring_.size() - 1)] = completion;
  }
  Fire();
  return !overrun_;
}

void SoftCompletionQueue::Grow() {
  std::vector<Completion> ring(std::max<size_t>(64, ring_.size() * 2));
  for (uint64_t i = head_; i != tail_; ++i) {
    ring[i & (ring.size() - 1)] = ring_[i & (ring_.size() - 1)];
  }
  ring_.swap(ring);
}

void SoftCompletionQueue::Fire() {
  if (!armed_) return;
  armed_ = false;
  if (fired_) return;
  fired_ = true;
  engine_->AddPending(1);
}

void SoftCompletionQueue::ClearFired() {
  if (!fired_) return;
  fired_ = false;
  engine_->RemovePending(1);
}

}  // namespace baton::verbs::soft
