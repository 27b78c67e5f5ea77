// What the demonstration prints and draws.
#ifndef TESTS_DEMO_REPORT_H_
#define TESTS_DEMO_REPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
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
// The same of the service on Baton alone.
bool IsBatonOk(const DemoResult& result);

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
// Returns one sentence of what was shown, or of what failed.
std::string ToSentence(const DemoResult& result);

// Names of the peers' timelines (scenario.h) in the directory that the demonstration writes to.
inline constexpr char kBatonTimeline[] = "baton.csv";
inline constexpr char kBaselineTimeline[] = "baseline.csv";
inline constexpr char kStandbyTimeline[] = "standby.csv";

// Draws throughput and silences over time into "<directory>/timeline.svg", from the timelines of
// the services on Baton and of clients that connect anew.
absl::Status Draw(const DemoResult& result, const std::string& directory);
// Returns the same picture in about two thirds of the bytes. `svg` is gnuplot's and has lines
// alone: it uses no symbol for points.
std::string Compact(const std::string& svg);

// A page that needs no other file: the sentence, the table, the timelines that are in `directory`,
// to zoom into, and their data.
std::string ToPage(const DemoResult& result, const std::string& directory);
// Writes it to "<directory>/demo.html".
absl::Status WritePage(const DemoResult& result, const std::string& directory);

// ---- Numbers for people.

// Returns "254,843".
inline std::string Grouped(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t i = text.size(); i > 3;) text.insert(i -= 3, ",");
  return text;
}

// Returns "0.9 ms", "262 ms".
inline std::string Milliseconds(double us) {
  return absl::StrFormat("%.*f ms", us < 99'950 ? 1 : 0, us / 1000);
}

}  // namespace baton::demo

#endif  // TESTS_DEMO_REPORT_H_
