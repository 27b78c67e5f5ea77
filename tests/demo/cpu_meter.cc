#include "tests/demo/cpu_meter.h"

#include <sched.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "lib/base/clock.h"

namespace baton::demo {
namespace {

struct ProcessTimes {
  pid_t parent = 0;
  uint64_t ticks = 0;  // user and system, its own and those of its ended children
};

// proc(5): "pid (comm) state ppid … utime stime cutime cstime" with utime the 14th field;
// comm may hold anything.
bool ReadTimes(const std::string& path, ProcessTimes* times) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return false;
  const size_t end = line.rfind(')');
  if (end == std::string::npos) return false;
  int parent = 0;
  unsigned long long user = 0, system = 0, ended_user = 0, ended_system = 0;
  if (std::sscanf(line.c_str() + end + 1,
                  " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %llu %llu", &parent, &user,
                  &system, &ended_user, &ended_system) != 5) {
    return false;
  }
  times->parent = parent;
  times->ticks = user + system + ended_user + ended_system;
  return true;
}

bool IsDescendant(const std::map<pid_t, ProcessTimes>& processes, pid_t pid, pid_t ancestor) {
  while (pid > 1) {
    if (pid == ancestor) return true;
    const auto found = processes.find(pid);
    if (found == processes.end()) return false;
    pid = found->second.parent;
  }
  return false;
}

uint64_t OurTicks() {
  std::map<pid_t, ProcessTimes> processes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    ProcessTimes times;
    if (ReadTimes(entry.path() / "stat", &times)) processes[std::stoi(name)] = times;
  }
  uint64_t ticks = 0;
  for (const auto& [pid, times] : processes) {
    if (IsDescendant(processes, pid, getpid())) ticks += times.ticks;
  }
  return ticks;
}

// proc(5), /proc/stat: "cpu user nice system idle iowait irq softirq steal …".
uint64_t MachineTicks() {
  std::ifstream file("/proc/stat");
  std::string line;
  std::getline(file, line);
  unsigned long long user = 0, nice = 0, system = 0, irq = 0, softirq = 0, steal = 0;
  std::sscanf(line.c_str(), "cpu %llu %llu %llu %*u %*u %llu %llu %llu", &user, &nice, &system,
              &irq, &softirq, &steal);
  return user + nice + system + irq + softirq + steal;
}

}  // namespace

CpuTimes ReadCpuTimes() {
  const auto ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  CpuTimes times;
  times.wall = static_cast<double>(MonotonicNanoseconds()) * 1e-9;
  times.ours = static_cast<double>(OurTicks()) / ticks_per_second;
  times.machine = static_cast<double>(MachineTicks()) / ticks_per_second;
  return times;
}

uint32_t UsableCores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return static_cast<uint32_t>(CPU_COUNT(&cores));
}

}  // namespace baton::demo
