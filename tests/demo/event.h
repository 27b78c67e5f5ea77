// What the demonstration does to the service, and what its peers saw of it.
#ifndef TESTS_DEMO_EVENT_H_
#define TESTS_DEMO_EVENT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/quantile.h"

namespace baton::demo {

enum class EventKind : uint8_t {
  kQuiet,  // nothing is done: what the machine alone makes of the traffic
  kHandoff,
  kUpgradeStart,  // of the program, beside the one that serves
  kUpgrade,
  kBadUpgrade,
  kCrashHot,
  kHang,
  kCrashCold,
  kControlKill,
  kPoison,
  // Without Baton.
  kBaseline,      // a kill, and clients connect anew to a warm successor
  kStandbyDrain,  // a planned restart, and clients move to the connections that they have
  kStandbyCrash   // a kill, likewise
};

inline const char* EventKindName(EventKind kind) {
  switch (kind) {
    case EventKind::kQuiet:
      return "quiet";
    case EventKind::kHandoff:
      return "handoff";
    case EventKind::kUpgradeStart:
      return "upgrade_start";
    case EventKind::kUpgrade:
      return "upgrade";
    case EventKind::kBadUpgrade:
      return "bad_upgrade";
    case EventKind::kCrashHot:
      return "crash_hot";
    case EventKind::kHang:
      return "hang";
    case EventKind::kCrashCold:
      return "crash_cold";
    case EventKind::kControlKill:
      return "control_kill";
    case EventKind::kPoison:
      return "poison";
    case EventKind::kBaseline:
      return "baseline";
    case EventKind::kStandbyDrain:
      return "standby_drain";
    case EventKind::kStandbyCrash:
      return "standby_crash";
  }
  return "";
}

struct Event {
  EventKind kind = EventKind::kHandoff;
  uint64_t monotonic_us = 0;  // CLOCK_MONOTONIC, when it was done to the service
  double blackout_us = 0;     // longest silence on any connection around it, to the first reply
  std::string problem;        // empty: it ended as it should
};

// Of one kind of event, one value for each.
struct BlackoutStatistics {
  size_t count = 0;
  size_t ok = 0;
  double p50_us = 0;
  double p99_us = 0;
  double max_us = 0;
};

inline BlackoutStatistics Summarize(const std::vector<Event>& events, EventKind kind) {
  BlackoutStatistics statistics;
  std::vector<double> blackouts;
  for (const Event& event : events) {
    if (event.kind != kind) continue;
    ++statistics.count;
    statistics.ok += event.problem.empty() ? 1 : 0;
    blackouts.push_back(event.blackout_us);
  }
  statistics.p50_us = Quantile(blackouts, 0.5).value_or(0);
  statistics.p99_us = Quantile(blackouts, 0.99).value_or(0);
  statistics.max_us = Quantile(blackouts, 1).value_or(0);
  return statistics;
}

}  // namespace baton::demo

#endif  // TESTS_DEMO_EVENT_H_
