// Keeps threads of tests on processors.
#ifndef TESTS_HARNESS_PROCESSORS_H_
#define TESTS_HARNESS_PROCESSORS_H_

#include <sched.h>

#include <cstddef>
#include <vector>

#include "lib/base/check.h"

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

// The calling thread runs on this processor from now on.
inline void StayOn(int processor) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(processor), &one);
  BATON_CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
}
inline void StayHere() { StayOn(sched_getcpu()); }

}  // namespace baton::harness

#endif  // TESTS_HARNESS_PROCESSORS_H_
