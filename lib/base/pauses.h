// These are the pauses of threads that wait: between two looks, between two attempts, and before a
// thread sleeps.
#ifndef LIB_BASE_PAUSES_H_
#define LIB_BASE_PAUSES_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace baton {

// The number of looks that a wait makes before it first yields its processor: half a microsecond.
// The other side answers within that if it is awake, and a thread that needs the processor does not
// wait longer than a wake-up takes.
inline constexpr uint32_t kLooksBeforeYield = 24;

// Pauses between two looks at memory that another processor is about to write.
inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The pauses between attempts that fail: each is twice as long as the one before, up to a limit.
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

// Decides how long a wait yields before it sleeps. A thread that sleeps has to be woken, which
// takes as long as many messages. A thread that yields burns a processor until another thread wants
// it, and with a real-time priority even then.
//
// So the time depends on the waits before. While they end soon, a wait yields up to a limit, and no
// thread sleeps between two messages of a dialogue. Otherwise a wait yields only briefly: messages
// that come now and then cost little, and silence costs nothing.
//
// Thread-compatible.
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
  uint64_t most_ns_;
  uint64_t soon_ns_;
  uint64_t ns_;
};

}  // namespace baton

#endif  // LIB_BASE_PAUSES_H_
