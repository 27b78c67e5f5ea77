// Time that passes when a test says so.
#ifndef TESTS_HARNESS_STOPPED_CLOCK_H_
#define TESTS_HARNESS_STOPPED_CLOCK_H_

#include <cstdint>

namespace baton::harness {

// While it lives CLOCK_MONOTONIC stands still for the whole process: what waits for it to pass
// waits for ever. Of a program that links this, clock_gettime(2) is its own.
class StoppedClock {
 public:
  StoppedClock();
  ~StoppedClock();
  StoppedClock(const StoppedClock&) = delete;
  StoppedClock& operator=(const StoppedClock&) = delete;

  void Pass(uint64_t nanoseconds);
};

// While it lives CLOCK_REALTIME is so many seconds ahead of what it is, for the whole process: as
// somebody has set it. Negative: behind.
class SetClock {
 public:
  explicit SetClock(int64_t seconds);
  ~SetClock();
  SetClock(const SetClock&) = delete;
  SetClock& operator=(const SetClock&) = delete;
};

}  // namespace baton::harness

#endif  // TESTS_HARNESS_STOPPED_CLOCK_H_
