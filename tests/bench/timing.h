// How long operations took.
#ifndef TESTS_BENCH_TIMING_H_
#define TESTS_BENCH_TIMING_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/harness/quantile.h"

namespace baton::bench {

struct Timing {
  double seconds = 0;  // of all
  double p50_us = 0;   // of one
  double p99_us = 0;
  double p999_us = 0;
};

// `took_ns`: of each, and reordered. An error: there are none.
inline absl::StatusOr<Timing> TimingOf(uint64_t all_ns, std::vector<uint32_t>& took_ns) {
  if (took_ns.empty()) return absl::InternalError("no operation was timed");
  return Timing{static_cast<double>(all_ns) * 1e-9, *Quantile(took_ns, 0.5) * 1e-3,
                *Quantile(took_ns, 0.99) * 1e-3, *Quantile(took_ns, 0.999) * 1e-3};
}

}  // namespace baton::bench

#endif  // TESTS_BENCH_TIMING_H_
