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
  ActResult baseline;  // clients connect anew
  ActResult standby;   // clients have connections to a standby
  double seconds = 0;
};

// Nothing was lost, duplicated, reordered, corrupt or, with Baton, disconnected, and every event
// that was asked for ended as it should.
bool IsOk(const DemoResult& result);

// Median gap of clients that connect anew over the median blackout of `kind`; 0 when either is
// missing.
double RatioToBaseline(const DemoResult& result, EventKind kind);
// The same of clients that have connections to a standby: a restart that they are told of for an
// event that is planned, a kill for a hot crash.
double RatioToStandby(const DemoResult& result, EventKind kind);
// Returns true if the ratios of handoffs and upgrades to clients that connect anew, and of hot
// crashes to a standby, are at least options.required_ratio. An event that was never done has no
// part in it. A restart that clients are told of makes no gap, so handoffs and upgrades are not
// required to beat it.
bool HasRequiredRatio(const DemoResult& result);

std::string ToJson(const DemoResult& result);
std::string ToTable(const DemoResult& result);

// Draws throughput and silences over time into "<directory>/timeline.svg", from the timelines
// "baton.csv" and "baseline.csv" in it.
absl::Status Draw(const DemoResult& result, const std::string& directory);

}  // namespace baton::demo

#endif  // TESTS_DEMO_REPORT_H_
