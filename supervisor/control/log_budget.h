// Bounds the log lines that others can cause: a caller that is refused a million times must not
// fill the disk.
//
// Thread-safe.
#ifndef SUPERVISOR_CONTROL_LOG_BUDGET_H_
#define SUPERVISOR_CONTROL_LOG_BUDGET_H_

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "lib/base/clock.h"

namespace baton {

class LogBudget {
 public:
  // Whether one more line may be written. `*suppressed` is how many were withheld before it.
  bool Take(uint64_t* suppressed) {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t now = MonotonicNanoseconds();
    const double seconds = static_cast<double>(now - last_ns_) * 1e-9;
    lines_ = std::min(kBurst, lines_ + seconds * kPerSecond);
    last_ns_ = now;
    if (lines_ < 1) {
      ++suppressed_;
      return false;
    }
    lines_ -= 1;
    *suppressed = suppressed_;
    suppressed_ = 0;
    return true;
  }

 private:
  static constexpr double kBurst = 20;
  static constexpr double kPerSecond = 2;

  std::mutex mutex_;
  double lines_ = kBurst;
  uint64_t last_ns_ = MonotonicNanoseconds();
  uint64_t suppressed_ = 0;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_LOG_BUDGET_H_
