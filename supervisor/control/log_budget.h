// Bounds the log lines that others can cause: a caller that is refused a million times must not
// fill the disk.
//
// Thread-safe.
#ifndef SUPERVISOR_CONTROL_LOG_BUDGET_H_
#define SUPERVISOR_CONTROL_LOG_BUDGET_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/token_bucket.h"

namespace baton {

class LogBudget {
 public:
  // If one more line may be written, returns how many were withheld before it; else nothing.
  std::optional<uint64_t> Take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (lines_.TryTake(MonotonicNanoseconds())) return std::exchange(suppressed_, 0);
    ++suppressed_;
    return std::nullopt;
  }

 private:
  static constexpr double kBurst = 20;
  static constexpr double kPerSecond = 2;

  std::mutex mutex_;
  TokenBucket lines_{kPerSecond, kBurst, MonotonicNanoseconds()};
  uint64_t suppressed_ = 0;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_LOG_BUDGET_H_
