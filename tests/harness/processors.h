// Threads of tests and their processors: which they run on, and how they wait for another one.
#ifndef TESTS_HARNESS_PROCESSORS_H_
#define TESTS_HARNESS_PROCESSORS_H_

#include <sched.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/base/check.h"
#include "lib/base/pauses.h"

namespace baton::harness {

// Returns processors that this process may run on, at most two.
inline std::vector<int> TwoProcessors() {
  cpu_set_t allowed;
  std::vector<int> two;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return two;
  for (int i = 0; i < CPU_SETSIZE && two.size() < 2; ++i) {
    if (CPU_ISSET(i, &allowed)) two.push_back(i);
  }
  return two;
}

// -1, both: this process may run on one processor only, and nothing is bound to any.
struct ProcessorPair {
  int ours = -1;
  int others = -1;
};
inline ProcessorPair FindProcessorPair() {
  const std::vector<int> two = TwoProcessors();
  return two.size() < 2 ? ProcessorPair() : ProcessorPair{two[0], two[1]};
}

// The calling thread runs on this processor from now on.
inline void StayOn(int processor) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(processor), &one);
  BATON_CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
}
inline void StayHere() { StayOn(sched_getcpu()); }

// Does the same as StayOn. -1: the thread may run on every processor.
inline void RunOnProcessor(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int processors = static_cast<int>(sysconf(_SC_NPROCESSORS_CONF));
  for (int i = 0; i < processors; ++i) {
    if (processor < 0 || i == processor) CPU_SET(static_cast<size_t>(i), &set);
  }
  // Where it may not run there it runs where it may.
  (void)sched_setaffinity(0, sizeof(set), &set);
}

// How a side without Baton waits for another processor, which is how Baton's waits begin: called
// after the `looks`-th look in vain, from 1 on.
inline void PauseOrYield(uint32_t looks) {
  if (looks < kLooksBeforeYield) {
    Pause();
  } else {
    sched_yield();
  }
}

}  // namespace baton::harness

#endif  // TESTS_HARNESS_PROCESSORS_H_
