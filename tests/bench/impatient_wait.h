// How a side without Baton waits for another processor, which is how Baton's waits begin.
#ifndef TESTS_BENCH_IMPATIENT_WAIT_H_
#define TESTS_BENCH_IMPATIENT_WAIT_H_

#include <sched.h>

#include <cstdint>

#include "lib/base/pauses.h"

namespace baton::bench {

// After the `looks`-th look in vain, from 1 on.
inline void PauseOrYield(uint32_t looks) {
  if (looks < kLooksBeforeYield) {
    Pause();
  } else {
    sched_yield();
  }
}

}  // namespace baton::bench

#endif  // TESTS_BENCH_IMPATIENT_WAIT_H_
