// How long a wait yields before it sleeps. Who sleeps has to be woken, which takes as long as many
// messages; who yields burns a processor until somebody else wants it, and under a real-time
// priority even then.
//
// So it depends on the waits before. While they end soon, a wait yields up to a limit, and nobody
// sleeps between two messages of a dialogue. When they do not, it gives up early: what comes now
// and then costs little, and what does not come nothing.
//
// Thread-compatible.
#ifndef LIB_WAITING_YIELD_BUDGET_H_
#define LIB_WAITING_YIELD_BUDGET_H_

#include <algorithm>
#include <cstdint>

namespace baton {

class YieldBudget {
 public:
  static constexpr uint64_t kLeastNs = 10'000;

  // Times the limit: who slept has waited for waking up as well, and that is to be told from a
  // pause.
  static constexpr uint64_t kSoon = 4;

  // The limit; 0: it never yields. A wait ended soon if it did within `soon` times that.
  explicit YieldBudget(uint32_t most_microseconds, uint64_t soon = kSoon)
      : most_ns_(uint64_t{most_microseconds} * 1000),
        soon_ns_(soon * most_ns_),
        ns_(std::min(kLeastNs, most_ns_)) {}

  uint64_t nanoseconds() const { return ns_; }

  // Reports a wait that ended after `waited_ns`, including the sleep.
  void NoteWait(uint64_t waited_ns) {
    ns_ = waited_ns < soon_ns_ ? most_ns_ : std::min(std::max(ns_ / 2, kLeastNs), most_ns_);
  }

 private:
  const uint64_t most_ns_;
  const uint64_t soon_ns_;
  uint64_t ns_;
};

}  // namespace baton

#endif  // LIB_WAITING_YIELD_BUDGET_H_
