// Results for people and for programs: ratios first.
#ifndef TESTS_BENCH_REPORT_H_
#define TESTS_BENCH_REPORT_H_

#include <cstddef>
#include <string>

#include "tests/bench/results.h"

namespace baton::bench {

// In which others used less of the machine than this, in cores, a round counts as quiet.
inline constexpr double kQuietCores = 0.1;

// The figure that a workload is there for.
struct Metric {
  std::string_view name;
  size_t workload;
  double Sample::*value;
  double factor;  // to `unit`
  std::string_view unit;
  bool more_is_better;
};
inline constexpr std::array<Metric, 7> kMetrics = {{
    {"echo_64B_p50", 0, &Sample::p50_us, 1, "us", false},
    {"echo_64B_p99", 0, &Sample::p99_us, 1, "us", false},
    {"write_64B_p50", 1, &Sample::p50_us, 1, "us", false},
    {"write_64B_p99", 1, &Sample::p99_us, 1, "us", false},
    {"messages_64B", 2, &Sample::per_second, 1, "per second", true},
    {"write_4KiB", 3, &Sample::per_second, 4096 * 1e-6, "MB/s", true},
    {"write_64KiB", 4, &Sample::per_second, 65536 * 1e-6, "MB/s", true},
}};

// Over the quiet rounds; over all when none was.
double MedianOf(const Results& results, const Metric& metric, SideName side);
// Of the ratios of the rounds, brokered to `reference`.
double MedianRatio(const Results& results, const Metric& metric, SideName side, SideName reference);

std::string ToTable(const Results& results);
std::string ToJson(const Results& results);

}  // namespace baton::bench

#endif  // TESTS_BENCH_REPORT_H_
