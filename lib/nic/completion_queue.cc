#include "lib/nic/completion_queue.h"

#include <utility>

#include "lib/base/clock.h"
#include "lib/base/pauses.h"
#include "lib/nic/call.h"

namespace baton::nic {

CompletionQueue::CompletionQueue(const verbs::mlx5::FoundCompletionQueue& memory,
                                 const __be32* arm_record, std::shared_ptr<FileDescriptor> channel,
                                 OnFailure on_failure)
    : CompletionWriter(memory),
      entry_count_(memory.entry_count),
      arm_record_(arm_record),
      channel_(std::move(channel)),
      on_failure_(std::move(on_failure)) {}

bool CompletionQueue::Write(const verbs::mlx5::Executed& executed) {
  const bool fits = CompletionWriter::Write(executed);
  if (!fits) Fail("it is overrun");
  if (armed_) MakeEvent();
  return fits;
}

void CompletionQueue::Fail(absl::string_view why) {
  CompletionWriter::Fail();
  if (on_failure_) std::exchange(on_failure_, {})(why);
}

bool CompletionQueue::HasCompletionBehind(uint32_t arm) const {
  const uint32_t behind = (written() - arm) & verbs::mlx5::kConsumedMask;
  return behind > 0 && behind <= entry_count_;
}

void CompletionQueue::Arm(uint32_t value) {
  if (value == stale_) return;
  armed_ = true;
  arm_ = value;
  if (HasCompletionBehind(value)) MakeEvent();
}

void CompletionQueue::ArmByRecord() { Arm(verbs::mlx5::LoadRecord(arm_record_)); }

void CompletionQueue::DelayOwnerBytes(uint32_t most_us, uint64_t seed) {
  most_delay_us_ = most_us;
  random_.seed(static_cast<std::minstd_rand::result_type>(seed));
}

void CompletionQueue::BeforeOwnerByte() {
  if (most_delay_us_ == 0) return;
  const uint64_t end = MonotonicNanoseconds() + random_() % (uint64_t{most_delay_us_} * 1000);
  while (MonotonicNanoseconds() < end) Pause();
}

void CompletionQueue::MakeEvent() {
  armed_ = false;
  stale_ = arm_;
  if (channel_ != nullptr) Notify(*channel_);
}

}  // namespace baton::nic
