// The demonstration does these things to the service, and reports meanwhile what its peers see of
// them.
#ifndef TESTS_DEMO_SCENARIO_H_
#define TESTS_DEMO_SCENARIO_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "tests/harness/peer_process.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::demo {

// ---- A peer's timeline: the file that baton-peer writes (worker/examples/peer/timeline.h).

// Since the peer's start.
struct Counters {
  uint64_t lost = 0;
  uint64_t duplicated = 0;
  uint64_t reordered = 0;
  uint64_t corrupt = 0;
  uint64_t wrong_total = 0;
  uint64_t disconnects = 0;
};

struct Bucket {
  static constexpr uint64_t kMicroseconds = 5000;

  uint64_t start_us = 0;  // CLOCK_MONOTONIC
  uint64_t replies = 0;
  uint64_t silence_us = 0;  // the longest that ended in the bucket, or went on at its end
  Counters counters;        // at the bucket's end
};

// Follows the file while the peer writes it.
class TimelineReader {
 public:
  explicit TimelineReader(std::string path) : path_(std::move(path)) {}

  // Returns the buckets that were written since the last call; none as long as there is no file.
  // Skips lines that it cannot parse.
  std::vector<Bucket> Read();

 private:
  std::string path_;
  FileDescriptor file_;
  std::string rest_;  // of a line that is not complete
};

// Returns all of a file whose peer has ended. kNotFound: it has no bucket.
absl::StatusOr<std::vector<Bucket>> ReadTimeline(const std::string& path);

// Returns about `count` buckets in the place of `buckets`: each has the replies of those that it
// stands for, the longest of their silences and the counters of the last. `microseconds` returns
// the length of the result's buckets.
std::vector<Bucket> Thin(const std::vector<Bucket>& buckets, size_t count, uint64_t* microseconds);

enum class EventKind : uint8_t {
  kQuiet,  // nothing is done: what the machine alone makes of the traffic
  kHandoff,
  kUpgradeStart,  // the program starts, beside the one that serves
  kUpgrade,
  kBadUpgrade,
  kCrashHot,
  kHang,
  kCrashCold,
  kDriverKill,  // the broker
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

// ---- The demonstration's three acts: the ledger on Baton, and the same ledger without, for
// clients that connect anew and for clients that have connections to a standby.

// The mode says who drives the service's queues. With kBrokered its driver does, for workers that
// are programs. With kNative the workers do, which the driver forks.
enum class Mode : uint8_t { kBrokered, kNative };
inline const char* ModeName(Mode mode) { return mode == Mode::kNative ? "native" : "brokered"; }

struct DemoOptions {
  Mode mode = Mode::kBrokered;
  verbs::testing::Fabric fabric = verbs::testing::FabricUnderTest();
  uint32_t connections = 64;
  uint32_t shards = 4;
  uint64_t rate = 0;  // messages per second; 0: such that half of the processor time is used
  uint32_t handoffs = 20;
  uint32_t upgrades = 20;
  uint32_t bad_upgrades = 6;
  uint32_t crashes = 20;
  uint32_t hangs = 5;
  uint32_t cold_crashes = 3;
  uint32_t driver_kills = 20;
  uint32_t control_kills = 1;
  uint32_t keeper_kills = 3;
  uint32_t baton_upgrades = 3;
  uint32_t batond_kills = 3;
  uint32_t poisons = 3;
  uint32_t baseline_runs = 10;
  int realtime_priority = -1;  // 0: none; -1: to be chosen
  double required_ratio = 0;
  std::string binary_directory;

  // How often each kind of event is to be done with Baton, in this order.
  std::vector<std::pair<EventKind, uint32_t>> Wanted() const {
    return {{EventKind::kHandoff, handoffs},
            {EventKind::kUpgrade, upgrades},
            {EventKind::kBadUpgrade, bad_upgrades},
            {EventKind::kCrashHot, crashes},
            {EventKind::kHang, hangs},
            {EventKind::kCrashCold, cold_crashes},
            {EventKind::kDriverKill, HasBrokers() ? driver_kills : 0},
            {EventKind::kControlKill, control_kills},
            {EventKind::kKeeperKill, keeper_kills},
            {EventKind::kBatonUpgrade, baton_upgrades},
            {EventKind::kBatondKill, batond_kills},
            {EventKind::kPoison, poisons}};
  }

  // Others than workers drive the queues, in a process that may die.
  bool HasBrokers() const { return mode == Mode::kBrokered && fabric.device == "soft"; }

  // The flag, for programs that take it.
  std::vector<std::string> PriorityArguments() const {
    if (realtime_priority <= 0) return {};
    return {"--realtime-priority", std::to_string(realtime_priority)};
  }
};

// Blackouts as Baton measures them for each shard. A blackout lasts from the release or the noticed
// death to the successor's first commit.
struct InsideBlackout {
  double p50_us = 0;
  double p99_us = 0;
  double max_us = 0;
};

// What one act came to.
struct ActResult {
  std::vector<Event> events;
  uint64_t start_us = 0;       // CLOCK_MONOTONIC, of the traffic
  uint64_t rate = 0;           // messages per second
  double cores_used = 0;       // while nothing happened
  double cores_of_others = 0;  // on average: what measured times have to be judged by
  InsideBlackout handoff_inside;
  InsideBlackout failover_inside;
  harness::JsonObject peer;    // its final line
  bool peer_finished = false;  // `peer` is there
  absl::Status status;         // why the act ended early
};

// Returns the peer's counts. REQUIRES: act.peer_finished.
inline Counters CountersOf(const ActResult& act) {
  return {.lost = act.peer.Count("lost"),
          .duplicated = act.peer.Count("duplicated"),
          .reordered = act.peer.Count("reordered"),
          .corrupt = act.peer.Count("corrupt"),
          .wrong_total = act.peer.Count("wrong_total"),
          .disconnects = act.peer.Count("disconnects")};
}

// 64 connections under traffic, while workers are replaced and killed, and control and batond
// are killed. The peer writes what it sees to `timeline_path`. The result's events go
// as far as the act came.
ActResult RunWithBaton(const DemoOptions& options, const std::string& timeline_path,
                       Progress* progress);

// The same traffic and processes killed likewise, with a warm successor each, without Baton.
ActResult RunBaseline(const DemoOptions& options, uint64_t rate, const std::string& timeline_path,
                      Progress* progress);

// The same traffic without Baton, as well as clients can do: each connection has a spare one, made
// before, to a warm process that listens elsewhere. The process that serves is restarted, told to
// its clients ahead, and killed, options.baseline_runs times each.
ActResult RunStandbyBaseline(const DemoOptions& options, uint64_t rate,
                             const std::string& timeline_path, Progress* progress);

}  // namespace baton::demo

#endif  // TESTS_DEMO_SCENARIO_H_
