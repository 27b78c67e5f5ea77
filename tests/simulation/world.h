// One schedule: a service with its engine, or with its host and brokers, with workers, device and
// peers in one thread. At every step
// the dice say who runs, and at every crash point and device call whether somebody else runs in the
// middle of it. The engine, the driver and the worker library are the real ones.
#ifndef TESTS_SIMULATION_WORLD_H_
#define TESTS_SIMULATION_WORLD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/arena/arena.h"
#include "supervisor/driver/engine/engine.h"
#include "tests/simulation/app.h"
#include "tests/simulation/checker.h"
#include "tests/simulation/client.h"
#include "tests/simulation/context.h"
#include "tests/simulation/sim_device.h"
#include "worker/worker_impl.h"

namespace baton::simulation {

// Defects of Baton that can be made from outside of it, and of applications.
struct Defects {
  bool tail_first = false;         // the tail is stored before the entries
  bool cut_drops_last = false;     // what was published and not yet applied is not part of the cut
  bool bank_reused_early = false;  // a process is taken for dead while it still writes
  bool wakeup_lost = false;        // a worker is not woken
  bool forget_unacknowledged = false;  // EngineOptions::break_recovery
  AppDefects app;
};

struct ScheduleOptions {
  uint64_t seed = 1;
  bool deep = false;     // so much outstanding that the commit log has no room
  bool brokers = false;  // of the service drive its queues, and not the process that has the engine
  Defects defects = {};
  bool show_trace = false;  // even when nothing broke
};

struct ScheduleResult {
  std::string broken;  // empty: every promise was kept
  std::string trace;   // its last steps, when they are asked for or one was not
  uint64_t hash = 0;   // of all steps
  uint64_t steps = 0, commits = 0, cuts = 0, kills = 0, fenced = 0, poisonings = 0, replies = 0;
  uint64_t driver_deaths = 0, resumed = 0, answers = 0, markers = 0, spares = 0;
};

ScheduleResult RunSchedule(const ScheduleOptions& options);

// What the schedule under way has done last; for a process that is about to die of it.
void PrintCurrentSchedule();

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_WORLD_H_
