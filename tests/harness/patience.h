// How long tests wait for what has to happen. Only what fails waits to the end.
#ifndef TESTS_HARNESS_PATIENCE_H_
#define TESTS_HARNESS_PATIENCE_H_

#include <chrono>
#include <cstdlib>

namespace baton::harness {

// What takes one second here takes so many in the machine of `./run vm`, which is emulated.
inline int Slowness() { return std::getenv("BATON_VM") == nullptr ? 1 : 10; }

// `limit` is for a machine that is not emulated.
template <typename Rep, typename Period>
std::chrono::duration<Rep, Period> Patient(std::chrono::duration<Rep, Period> limit) {
  return limit * Slowness();
}

}  // namespace baton::harness

#endif  // TESTS_HARNESS_PATIENCE_H_
