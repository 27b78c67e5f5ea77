// What the demonstration does to the service, what its peers saw of it, and where that is reported
// while it is done.
#ifndef TESTS_DEMO_EVENT_H_
#define TESTS_DEMO_EVENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/demo/timeline.h"

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
  double silence_us = 0;      // longest silence on any connection around it, to the first reply
  std::string problem;        // empty: it ended as it should
};

// Events of one kind, one silence for each.
struct SilenceStatistics {
  size_t count = 0;
  size_t ok = 0;
  double p50_us = 0;
  double p99_us = 0;
  double max_us = 0;
};
SilenceStatistics Summarize(const std::vector<Event>& events, EventKind kind);

// The demonstration reports here what it does, while it does it. The calls come from one thread,
// outside of what is measured.
class Progress {
 public:
  virtual ~Progress() = default;

  // A service and its peers start, with Baton or without. `timeline_path` is the file that the peer
  // will write.
  virtual void BeginAct(const std::string& title, bool with_baton,
                        const std::string& timeline_path) = 0;
  // The act's peer has ended and has counted so much.
  virtual void EndAct(const Counters& counters) = 0;
  virtual void Begin(EventKind kind) = 0;
  // `event` of the kind that began has ended.
  virtual void End(const Event& event) = 0;
  // A line for people.
  virtual void Note(const std::string& line) = 0;
  // Others are about to write to standard error.
  virtual void Yield() = 0;
};

// Prints a line for each event to standard error, under a heading for each kind.
std::unique_ptr<Progress> MakePlainProgress();

}  // namespace baton::demo

#endif  // TESTS_DEMO_EVENT_H_
