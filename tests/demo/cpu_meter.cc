#include "tests/demo/cpu_meter.h"

#include <sched.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace baton::demo {
namespace {

struct ProcessTimes {
  pid_t parent = 0;
  uint64_t ticks = 0;  // user and system
};

// proc(5): "pid (comm) state ppid … utime stime" with utime the 14th field; comm may hold anything.
bool ReadTimes(const std::string& path, ProcessTimes* times) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return false;
  const size_t end = line.rfind(')');
  if (end == std::string::npos) return false;
  int parent = 0;
  unsigned long long user = 0, system = 0;
  if (std::sscanf(line.c_str() + end + 1, " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu",
                  &parent, &user, &system) != 3) {
    return false;
  }
  times->parent = parent;
  times->ticks = user + system;
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

}  // namespace

double ProcessTreeCpuSeconds() {
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
  return static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

uint32_t UsableCores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return static_cast<uint32_t>(CPU_COUNT(&cores));
}

}  // namespace baton::demo
