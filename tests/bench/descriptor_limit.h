// Descriptors for as many connections of the soft device as a benchmark holds: one each, here and
// in the keepers, which inherit the limit.
#ifndef TESTS_BENCH_DESCRIPTOR_LIMIT_H_
#define TESTS_BENCH_DESCRIPTOR_LIMIT_H_

#include <cstdint>

#include "absl/status/status.h"

namespace baton::bench {

// Raises RLIMIT_NOFILE to its hard limit. kResourceExhausted: that is too low.
absl::Status RaiseDescriptorLimit(uint64_t connections);

}  // namespace baton::bench

#endif  // TESTS_BENCH_DESCRIPTOR_LIMIT_H_
