// What the demonstration prints and draws.
#ifndef TESTS_DEMO_REPORT_H_
#define TESTS_DEMO_REPORT_H_

#include <string>

#include "absl/status/status.h"
#include "tests/demo/scenario.h"

namespace baton::demo {

struct DemoResult {
  DemoOptions options;
  ActResult baton;
  ActResult baseline;
  double seconds = 0;
};

// Nothing was lost, duplicated, reordered, corrupt or, with Baton, disconnected, and every event
// that was asked for ended as it should.
bool IsOk(const DemoResult& result);

// Median gap of the baseline over the median blackout of `kind`; 0 when either is missing.
double RatioToBaseline(const DemoResult& result, EventKind kind);
// Of handoffs and of hot crashes, whatever there was of them, at least options.required_ratio.
bool HasRequiredRatio(const DemoResult& result);

std::string ToJson(const DemoResult& result);
std::string ToTable(const DemoResult& result);

// Draws throughput and silences over time into "<directory>/timeline.svg", from the timelines
// "baton.csv" and "baseline.csv" in it.
absl::Status Draw(const DemoResult& result, const std::string& directory);

}  // namespace baton::demo

#endif  // TESTS_DEMO_REPORT_H_
