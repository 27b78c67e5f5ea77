// How long tests wait for what has to happen. Only what fails waits to the end.
#ifndef TESTS_HARNESS_WAIT_UNTIL_H_
#define TESTS_HARNESS_WAIT_UNTIL_H_

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton::harness {

// The number of seconds that one second here takes in the machine of `./run vm`, which is emulated.
inline int Slowness() { return std::getenv("BATON_VM") == nullptr ? 1 : 10; }

// `limit` is for a machine that is not emulated.
template <typename Rep, typename Period>
std::chrono::duration<Rep, Period> Patient(std::chrono::duration<Rep, Period> limit) {
  return limit * Slowness();
}

// Until `condition` holds. Its result, not the time that passes, is what a test may rely on. `what`
// completes "waited … for". A look is often a call through control and the keeper to the driver,
// and takes the processors from what is waited for: the pause between two is a millisecond at
// first, and grows with the time that was waited, to ten.
inline absl::Status WaitUntil(const std::string& what, const std::function<bool()>& condition,
                              std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  constexpr std::chrono::nanoseconds kFirstPause = std::chrono::milliseconds(1);
  constexpr std::chrono::nanoseconds kMostPause = std::chrono::milliseconds(10);
  constexpr int kWaitedPerPause = 8;
  timeout = Patient(timeout);
  const auto begun = std::chrono::steady_clock::now();
  while (!condition()) {
    const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - begun;
    if (waited > timeout) {
      return absl::DeadlineExceededError(
          absl::StrCat("waited ", timeout.count(), " ms in vain for ", what));
    }
    std::this_thread::sleep_for(std::clamp(waited / kWaitedPerPause, kFirstPause, kMostPause));
  }
  return absl::OkStatus();
}

}  // namespace baton::harness

#endif  // TESTS_HARNESS_WAIT_UNTIL_H_
