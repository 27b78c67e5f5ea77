// Monotonic time, comparable between the processes of one machine (CLOCK_MONOTONIC).
#ifndef LIB_BASE_CLOCK_H_
#define LIB_BASE_CLOCK_H_

#include <time.h>

#include <cstdint>

namespace baton {

inline uint64_t MonotonicNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace baton

#endif  // LIB_BASE_CLOCK_H_
