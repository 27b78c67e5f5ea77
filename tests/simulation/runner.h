// Many schedules, one after the other.
#ifndef TESTS_SIMULATION_RUNNER_H_
#define TESTS_SIMULATION_RUNNER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/world.h"

namespace baton::simulation {

struct RunOptions {
  uint64_t first_seed = 1;
  uint64_t schedules = 1;
  uint64_t stop_after_broken = 1;
  bool deep = false;     // see ScheduleOptions
  bool brokers = false;  // likewise
  double seconds = 0;    // stop after; 0: never
  Defects defects = {};
  bool show_trace = false;
};

struct Broken {
  uint64_t seed;
  ScheduleResult result;
};

struct RunSummary {
  uint64_t schedules = 0;
  double seconds = 0;
  ScheduleResult sum;  // its numbers
  std::vector<Broken> broken;
  std::string last_trace;
};

RunSummary RunSchedules(const RunOptions& options);
std::string Describe(const RunSummary& summary);

// From now on, a schedule during which the process dies says which one it was.
void ReportCrashes();

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_RUNNER_H_
