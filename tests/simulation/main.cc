// simulate [--seed S | --first S] [--schedules N] [--deep 1] [--brokers 1] [--trace 1] [--points
// 1]: runs schedules, and shows the last steps of the ones that break a promise, and where drivers
// died. The same seed is the same schedule.
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string_view>

#include "tests/simulation/driver_deaths.h"
#include "tests/simulation/runner.h"

int main(int argc, char** argv) {
  baton::simulation::RunOptions options;
  bool points = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const uint64_t value = std::strtoull(argv[i + 1], nullptr, 0);
    if (name == "--seed" || name == "--first") options.first_seed = value;
    if (name == "--schedules") options.schedules = value;
    if (name == "--trace") options.show_trace = value != 0;
    if (name == "--deep") options.deep = value != 0;
    if (name == "--brokers") options.brokers = value != 0;
    if (name == "--points") points = value != 0;
  }
  baton::simulation::ReportCrashes();
  const baton::simulation::RunSummary summary = baton::simulation::RunSchedules(options);
  if (summary.broken.empty()) std::cout << summary.last_trace;
  for (const auto& [where, deaths] : baton::simulation::DriverDeaths::All()) {
    if (points) std::cout << deaths << " " << where << "\n";
  }
  std::cout << baton::simulation::Describe(summary);
  return summary.broken.empty() ? 0 : 1;
}
