// The demonstration's three acts: the ledger on Baton, and the same ledger without, for clients
// that connect anew and for clients that have connections to a standby.
#ifndef TESTS_DEMO_SCENARIO_H_
#define TESTS_DEMO_SCENARIO_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/demo/event.h"
#include "tests/harness/peer_process.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::demo {

// Who operates the service's queues: its keeper, for workers that are programs, or workers that the
// keeper forks.
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
            {EventKind::kControlKill, control_kills},
            {EventKind::kKeeperKill, keeper_kills},
            {EventKind::kBatonUpgrade, baton_upgrades},
            {EventKind::kBatondKill, batond_kills},
            {EventKind::kPoison, poisons}};
  }

  // The flag, for programs that take it.
  std::vector<std::string> PriorityArguments() const {
    if (realtime_priority <= 0) return {};
    return {"--realtime-priority", std::to_string(realtime_priority)};
  }
};

// As Baton measures it, per shard: from release or noticed death to the successor's first commit.
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
// are killed. The peer writes what it sees to `timeline_path` (event.h). The result's events go
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
