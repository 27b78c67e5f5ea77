// Decides how long a wait yields before it sleeps. A thread that sleeps has to be woken, which
// takes as long as many messages. A thread that yields burns a processor until another thread wants
// it, and with a real-time priority even then.
//
// So the time depends on the waits before. While they end soon, a wait yields up to a limit, and no
// thread sleeps between two messages of a dialogue. Otherwise a wait yields only briefly: messages
// that come now and then cost little, and silence costs nothing.
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

  // A factor of the limit. It is more than 1, because a thread that slept has also waited for its
  // wake-up, which must not count as a pause.
  static constexpr uint64_t kSoon = 4;

  // `most_microseconds` is the limit; 0: a wait never yields. A wait ended soon if it took less
  // than `soon` times the limit.
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
