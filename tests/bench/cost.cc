#include "tests/bench/cost.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "tests/demo/cpu_meter.h"

namespace baton::bench {
namespace {

constexpr const char* kSleeps = "voluntary_ctxt_switches:";

void AddThread(const std::string& directory, Cost* cost) {
  // Nanoseconds on a processor and waiting for one (Documentation/scheduler/sched-stats.rst).
  std::ifstream schedule(directory + "/schedstat");
  double running = 0, waiting = 0;
  schedule >> running >> waiting;
  cost->running_us += running * 1e-3;
  cost->waiting_us += waiting * 1e-3;
  std::ifstream status(directory + "/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind(kSleeps, 0) == 0) cost->sleeps += std::strtod(line.c_str() + 24, nullptr);
  }
}

// With the children of each thread; each process once.
void AddProcess(pid_t pid, std::set<pid_t>* added, Cost* cost) {
  if (!added->insert(pid).second) return;
  std::error_code error;
  const std::string threads = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& thread : std::filesystem::directory_iterator(threads, error)) {
    AddThread(thread.path().string(), cost);
    std::ifstream children(thread.path().string() + "/children");
    for (pid_t child = 0; children >> child;) AddProcess(child, added, cost);
  }
}

}  // namespace

Cost ReadCost(const std::vector<pid_t>& processes) {
  Cost cost;
  std::set<pid_t> added;
  for (const pid_t pid : processes) AddProcess(pid, &added, &cost);
  return cost;
}

MachineTimes ReadMachineTimes() {
  MachineTimes times;
  // Of deploy/vm/run_vm.sh: seconds, ticks of all, ticks of the machine.
  if (const char* const path = std::getenv("BATON_VM_HOST_CPU")) {
    std::ifstream file(path);
    double all = 0, ours = 0;
    if (file >> times.wall >> all >> ours) {
      times.others = (all - ours) / static_cast<double>(sysconf(_SC_CLK_TCK));
    }
    return times;
  }
  const demo::CpuTimes read = demo::ReadCpuTimes();
  return {read.wall, read.machine - read.ours};
}

}  // namespace baton::bench
