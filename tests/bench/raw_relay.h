// What any broker costs: the server in a process of its own, which the one that has the queue pair
// tells of completions, and which tells that one what to post. There is nothing between the two but
// a ring each way; nothing is checked, and nothing outlives anybody.
#ifndef TESTS_BENCH_RAW_RELAY_H_
#define TESTS_BENCH_RAW_RELAY_H_

#include "absl/status/status.h"
#include "tests/bench/raw_connection.h"

namespace baton::bench {

// Serves `connection`, which is to be accepted; both sides poll and yield, until they rest. Returns
// with an error alone. The other process ends with this one. It is to be called while the process
// has no other thread.
absl::Status ServeThroughRelay(RawConnection& connection);

}  // namespace baton::bench

#endif  // TESTS_BENCH_RAW_RELAY_H_
