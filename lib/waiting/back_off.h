// The pauses between attempts that fail: each is twice as long as the one before, up to a limit.
#ifndef LIB_WAITING_BACK_OFF_H_
#define LIB_WAITING_BACK_OFF_H_

#include <algorithm>
#include <chrono>

namespace baton {

// Thread-compatible.
class BackOff {
 public:
  using Duration = std::chrono::nanoseconds;

  // REQUIRES: 0 < first <= most.
  BackOff(Duration first, Duration most) : first_(first), most_(most) {}

  // Returns the pause before the next attempt.
  Duration Next() {
    last_ = std::clamp(last_ * 2, first_, most_);
    return last_;
  }

  // The next pause is the first one again. The caller resets after an attempt has succeeded.
  void Reset() { last_ = Duration::zero(); }

  // Applies from the next pause on. REQUIRES: 0 < first <= most.
  void SetLimits(Duration first, Duration most) {
    first_ = first;
    most_ = most;
  }

 private:
  Duration first_;
  Duration most_;
  Duration last_ = Duration::zero();  // zero: none since the reset
};

}  // namespace baton

#endif  // LIB_WAITING_BACK_OFF_H_
