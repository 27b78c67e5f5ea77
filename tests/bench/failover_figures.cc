#include "tests/bench/failover_figures.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/harness/quantile.h"

namespace baton::bench {
namespace {

constexpr double kHandoffBar = 1.5;  // of most connections, to that of fewest
constexpr double kBallastBar = 3;    // of a hot crash with memory, to that without

constexpr NamedEvent kEvents[] = {
    {FailoverEvent::kHandoff, "handoff", "planned handoff"},
    {FailoverEvent::kHotCrash, "hot_crash", "crash, hot standby"},
    {FailoverEvent::kColdCrash, "cold_crash", "crash, no standby"},
    {FailoverEvent::kHang, "hang", "hang, hot standby"},
};

struct NamedBaseline {
  const char* name;
  const char* title;
};
constexpr NamedBaseline kBaselines[] = {
    {kReconnect, "crash, reconnect, without Baton"},
    {kStandby, "crash, connected standby, without Baton"},
    {kDrain, "graceful restart, connected standby, without Baton"},
};

struct Part {
  const char* suffix;
  double Blackout::*value;
  bool baton_only;
};
constexpr Part kParts[] = {
    {"_ms", &Blackout::silence, false},      {"_noticed_ms", &Blackout::noticed, true},
    {"_inside_ms", &Blackout::inside, true}, {"_reply_ms", &Blackout::reply, true},
    {"_all_ms", &Blackout::all, false},      {"_quiet_ms", &Blackout::quiet, false},
};

std::string SilenceOf(std::string_view event, uint32_t connections, uint32_t ballast_mib) {
  return NameOf(event, connections, ballast_mib) + "_ms";
}

void CompareNumbers(const FailoverPlan& plan, Suite* suite) {
  const uint32_t most = plan.most_connections(), fewest = plan.fewest_connections();
  if (fewest == most) return;
  for (const NamedEvent& event : plan.Events()) {
    suite->Compare({absl::StrCat(event.name, "_", most, "_to_", fewest),
                    SilenceOf(event.name, most, plan.least_ballast()),
                    SilenceOf(event.name, fewest, plan.least_ballast()), Better::kLess,
                    event.event == FailoverEvent::kHandoff ? kHandoffBar : 0});
  }
}

// With fewest connections the memory weighs most.
void CompareBallast(const FailoverPlan& plan, Suite* suite) {
  const uint32_t fewest = plan.fewest_connections(), least = plan.least_ballast();
  for (const uint32_t ballast_mib : plan.ballast_mib) {
    if (ballast_mib == least) continue;
    for (const NamedEvent& event : plan.Events()) {
      suite->Compare({absl::StrCat(event.name, "_", ballast_mib, "MiB_to_", least),
                      SilenceOf(event.name, fewest, ballast_mib),
                      SilenceOf(event.name, fewest, least), Better::kLess,
                      event.event == FailoverEvent::kHotCrash ? kBallastBar : 0});
    }
  }
}

// Whether one would answer `event` in this way without Baton. Clients can be told of a planned one.
bool Answers(const char* without, FailoverEvent event) {
  const bool planned = event == FailoverEvent::kHandoff;
  return without == kReconnect || planned == (without == kDrain);
}

void CompareWith(const char* without, const FailoverPlan& plan, Suite* suite) {
  if (!plan.Wants(without)) return;
  for (const uint32_t ballast_mib : plan.ballast_mib) {
    for (const uint32_t connections : plan.connections) {
      for (const NamedEvent& event : plan.Events()) {
        if (!Answers(without, event.event)) continue;
        suite->Compare({absl::StrCat(NameOf(event.name, connections, ballast_mib), "_to_", without),
                        SilenceOf(event.name, connections, ballast_mib),
                        SilenceOf(without, connections, ballast_mib), Better::kLess});
      }
    }
  }
}

Line LineOf(const FailoverPlan& plan, std::string_view event, const char* title) {
  Line line{title, {}};
  for (const uint32_t connections : plan.connections) {
    line.points.emplace_back(connections, SilenceOf(event, connections, plan.least_ballast()));
  }
  return line;
}

}  // namespace

bool FailoverPlan::Wants(std::string_view event) const {
  return only.empty() || std::find(only.begin(), only.end(), event) != only.end();
}

std::vector<NamedEvent> FailoverPlan::Events() const {
  std::vector<NamedEvent> events;
  for (const NamedEvent& event : kEvents) {
    if (Wants(event.name)) events.push_back(event);
  }
  return events;
}

uint32_t FailoverPlan::fewest_connections() const {
  return *std::min_element(connections.begin(), connections.end());
}
uint32_t FailoverPlan::most_connections() const {
  return *std::max_element(connections.begin(), connections.end());
}
uint32_t FailoverPlan::least_ballast() const {
  return *std::min_element(ballast_mib.begin(), ballast_mib.end());
}

std::string NameOf(std::string_view event, uint32_t connections, uint32_t ballast_mib) {
  std::string name = absl::StrCat(std::string(event), "_", connections);
  if (ballast_mib != 0) absl::StrAppend(&name, "_", ballast_mib, "MiB");
  return name;
}

void SetFigures(const std::string& name, const std::vector<Blackout>& events, bool baton,
                Round* round) {
  for (const Part& part : kParts) {
    if (part.baton_only && !baton) continue;
    std::vector<double> values;
    for (const Blackout& event : events) values.push_back(event.*part.value);
    round->Set(name + part.suffix, Quantile(values, 0.5), "ms");
  }
  double longest = 0;
  for (const Blackout& event : events) longest = std::max(longest, event.silence);
  round->Set(name + "_longest_ms", longest, "ms", Over::kLargest);
}

void Compare(const FailoverPlan& plan, Suite* suite) {
  CompareNumbers(plan, suite);
  CompareBallast(plan, suite);
  for (const NamedBaseline& baseline : kBaselines) CompareWith(baseline.name, plan, suite);
  Plot plot{"blackout", "Longest silence at the peer", "connections", "ms to the first reply", {}};
  for (const NamedEvent& event : plan.Events()) {
    plot.lines.push_back(LineOf(plan, event.name, event.title));
  }
  for (const NamedBaseline& baseline : kBaselines) {
    if (plan.Wants(baseline.name)) {
      plot.lines.push_back(LineOf(plan, baseline.name, baseline.title));
    }
  }
  suite->Draw(std::move(plot));
}

}  // namespace baton::bench
