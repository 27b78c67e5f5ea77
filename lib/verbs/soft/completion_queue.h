#ifndef LIB_VERBS_SOFT_COMPLETION_QUEUE_H_
#define LIB_VERBS_SOFT_COMPLETION_QUEUE_H_

#include <cstdint>
#include <vector>

#include "lib/verbs/soft/engine.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

class SoftCompletionQueue final : public CompletionQueue {
 public:
  SoftCompletionQueue(Engine* engine, uint32_t entries) : engine_(engine), entries_(entries) {}
  ~SoftCompletionQueue() override { ClearFired(); }

  absl::StatusOr<int> Poll(absl::Span<Completion> completions) override;
  absl::Status RequestNotification() override;

  // False when the queue was, or is now, overrun.
  bool Push(const Completion& completion);

 private:
  void Grow();
  void Fire();
  void ClearFired();

  Engine* const engine_;
  const uint32_t entries_;        // the bound
  std::vector<Completion> ring_;  // grows up to it; size: a power of two, or 0
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  bool overrun_ = false;
  bool armed_ = false;
  bool fired_ = false;  // counted in the engine's pending work
};

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_COMPLETION_QUEUE_H_
