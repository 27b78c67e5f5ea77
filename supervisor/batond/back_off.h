#ifndef SUPERVISOR_BATOND_BACK_OFF_H_
#define SUPERVISOR_BATOND_BACK_OFF_H_

#include <algorithm>
#include <chrono>

namespace baton {

// How long to wait before a process that died is started again: 10 ms, doubling with each death up
// to 5 s, and 10 ms again after it has lived for 10 s.
class BackOff {
 public:
  static constexpr std::chrono::milliseconds kFirst{10};
  static constexpr std::chrono::milliseconds kMost{5'000};
  static constexpr std::chrono::seconds kHealthyAfter{10};

  // The process died after it had lived for `lived`.
  std::chrono::milliseconds Next(std::chrono::nanoseconds lived) {
    if (lived >= kHealthyAfter) next_ = kFirst;
    const std::chrono::milliseconds now = next_;
    next_ = std::min(next_ * 2, kMost);
    return now;
  }

 private:
  std::chrono::milliseconds next_ = kFirst;
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_BACK_OFF_H_
