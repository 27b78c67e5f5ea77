// The wait of owners that have no worker library. It is the library's: some looks, a yield, a look
// at the clock, and again.
#ifndef TESTS_BENCH_POLLING_WAIT_H_
#define TESTS_BENCH_POLLING_WAIT_H_

#include <sched.h>

#include <cstdint>

#include "absl/status/status.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "tests/bench/queue_owner.h"

namespace baton::bench {

// A native worker makes so many between two yields (kLooksPerYield in worker_impl.cc).
inline constexpr int kLooks = 4;

// `look` returns whether it has found something, or an error. Ends when it has, and after
// QueueOwner::kWaitMs.
template <typename Look>
absl::Status PollingWait(const Look& look) {
  const uint64_t deadline = MonotonicNanoseconds() + QueueOwner::kWaitMs * uint64_t{1'000'000};
  do {
    for (int i = 0; i < kLooks; ++i) {
      BATON_ASSIGN_OR_RETURN(const bool found, look());
      if (found) return absl::OkStatus();
    }
    sched_yield();
  } while (MonotonicNanoseconds() < deadline);
  return absl::OkStatus();
}

}  // namespace baton::bench

#endif  // TESTS_BENCH_POLLING_WAIT_H_
