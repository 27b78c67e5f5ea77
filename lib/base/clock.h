// The two clocks that Baton uses.
#ifndef LIB_BASE_CLOCK_H_
#define LIB_BASE_CLOCK_H_

#include <time.h>

#include <cstdint>

namespace baton {

// Returns the time of CLOCK_MONOTONIC, which all processes of a machine share.
inline uint64_t MonotonicNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

// Wall-clock time for display, in microseconds since 1970-01-01 UTC. Do not use it to measure
// intervals.
inline int64_t UnixMicroseconds() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

}  // namespace baton

#endif  // LIB_BASE_CLOCK_H_
