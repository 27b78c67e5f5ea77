// What a process holds of the machine.
#ifndef TESTS_BENCH_FOOTPRINT_H_
#define TESTS_BENCH_FOOTPRINT_H_

#include <sys/types.h>

#include <cstdint>

#include "absl/status/statusor.h"

namespace baton::bench {

struct Footprint {
  // Heap, stacks and written data: nobody else's. An arena is none of it, nor is program text.
  uint64_t private_bytes = 0;
  uint64_t resident_bytes = 0;      // with all that it shares
  uint64_t proportional_bytes = 0;  // with its part of what it shares
  uint32_t descriptors = 0;
};
// kNotFound: there is no such process.
absl::StatusOr<Footprint> ReadFootprint(pid_t pid);

}  // namespace baton::bench

#endif  // TESTS_BENCH_FOOTPRINT_H_
