// One schedule: a driver that lives on, and a sequence of keepers, each a real one, which die
// between any two of their orders and looks for events. Every choice comes from the seed.
//
// The promises, by which a broken one is named:
// K1 A worker whose attaching was answered is known to every keeper, and resumes its session.
// K2 No number and no slot is two workers'.
// K3 What a worker asks for is executed once, and answered once.
// K4 A policy or a drain that was promised to an operator is in force.
// K5 An upgrade that was accepted ends, and leaves workers of one program.
// K6 No shard is without an owner while a worker is ready.
// K7 Nothing is held, and no descriptor is open, of workers that have ended.
// K8 What kills each keeper that deals with it kills three, and costs itself alone.
#ifndef TESTS_SIMULATION_KEEPER_SCHEDULE_H_
#define TESTS_SIMULATION_KEEPER_SCHEDULE_H_

#include <cstdint>
#include <string>

namespace baton::simulation {

struct KeeperScheduleOptions {
  uint64_t seed = 1;
  std::string directory;  // for sockets, the schedule's alone
  bool trace = false;     // fills ScheduleEnd::trace
};

struct KeeperScheduleEnd {
  std::string broken;  // the promise; empty: none
  std::string trace;   // the last steps
  uint64_t hash = 0;   // of all steps
  uint64_t keepers = 0;
  uint64_t upgrades = 0;  // that were accepted
};

KeeperScheduleEnd RunKeeperSchedule(const KeeperScheduleOptions& options);

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_KEEPER_SCHEDULE_H_
