// What the soft device itself holds of the heap for a connection.
#ifndef TESTS_BENCH_SOFT_BYTES_H_
#define TESTS_BENCH_SOFT_BYTES_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace baton::bench {

// Of one side of a connection that has sent and received a message, with `depth` receives posted
// and completion queues for twice that of each: the mean of `connections` in this process, both of
// whose sides are here. The kernel's sockets are not in it.
absl::StatusOr<double> SoftBytesPerConnection(uint32_t connections, uint32_t depth);

}  // namespace baton::bench

#endif  // TESTS_BENCH_SOFT_BYTES_H_
