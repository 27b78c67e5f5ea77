// What the demonstration does to the service, and what its peers saw of it.
#ifndef TESTS_DEMO_EVENT_H_
#define TESTS_DEMO_EVENT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace baton::demo {

enum class EventKind : uint8_t {
  kQuiet,  // nothing is done: what the machine alone makes of the traffic
  kHandoff,
  kUpgradeStart,  // the program starts, beside the one that serves
  kUpgrade,
  kBadUpgrade,
  kCrashHot,
  kHang,
  kCrashCold,
  kControlKill,
  kKeeperKill,
  kBatonUpgrade,
  kBatondKill,
  kPoison,
  // Without Baton.
  kBaseline,      // a kill, and clients connect anew to a warm successor
  kStandbyDrain,  // a planned restart, and clients move to the connections that they have
  kStandbyCrash   // a kill, likewise
};

// How the demonstration names and draws events of one kind.
struct EventLook {
  const char* name;    // in JSON
  const char* title;   // for people
  const char* colour;  // as SVG and CSS write it; readable on white and on black
};
const EventLook& LookOf(EventKind kind);
inline const char* EventKindName(EventKind kind) { return LookOf(kind).name; }
inline const char* EventTitle(EventKind kind) { return LookOf(kind).title; }

struct Event {
  EventKind kind = EventKind::kHandoff;
  uint64_t monotonic_us = 0;  // CLOCK_MONOTONIC, when it was done to the service
  double blackout_us = 0;     // longest silence on any connection around it, to the first reply
  std::string problem;        // empty: it ended as it should
};

// Events of one kind, one blackout for each.
struct BlackoutStatistics {
  size_t count = 0;
  size_t ok = 0;
  double p50_us = 0;
  double p99_us = 0;
  double max_us = 0;
};
BlackoutStatistics Summarize(const std::vector<Event>& events, EventKind kind);

}  // namespace baton::demo

#endif  // TESTS_DEMO_EVENT_H_
