#include "supervisor/metrics/families.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "supervisor/metrics/family.h"

namespace baton::metrics {
namespace {

struct Usage {
  double processor_seconds = 0;
  double resident_bytes = 0;
};

// proc_pid_stat(5). The program's name is in parentheses, and may have any character.
std::optional<Usage> ReadUsage(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t end_of_name = text.rfind(')');
  if (end_of_name == std::string::npos) return std::nullopt;
  unsigned long user = 0, system = 0;
  long resident = 0;
  // Fields 3 to 24.
  const int fields = std::sscanf(text.c_str() + end_of_name + 1,
                                 " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d "
                                 "%*d %*d %*d %*u %*u %ld",
                                 &user, &system, &resident);
  if (fields != 3) return std::nullopt;
  static const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  static const auto page = static_cast<double>(sysconf(_SC_PAGESIZE));
  return Usage{static_cast<double>(user + system) / ticks, static_cast<double>(resident) * page};
}

// For a process of another user the kernel reports only the number, since Linux 6.2.
std::optional<double> CountDescriptors(pid_t pid) {
  const std::string directory = absl::StrCat("/proc/", pid, "/fd");
  struct stat status = {};
  if (stat(directory.c_str(), &status) == 0 && status.st_size > 0) {
    return static_cast<double>(status.st_size);
  }
  std::error_code error;
  std::filesystem::directory_iterator entries(directory, error);
  if (error) return std::nullopt;
  double count = 0;
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    ++count;
  }
  if (error) return std::nullopt;
  return count;
}

}  // namespace

std::vector<prometheus::MetricFamily> ProcessFamilies(const std::vector<ObservedProcess>& all) {
  Family processor =
      Family::Counter("baton_process_cpu_seconds_total", "Processor time, user and system.");
  Family resident = Family::Gauge("baton_process_resident_bytes", "Resident memory.");
  Family descriptors = Family::Gauge("baton_process_open_fds", "Open file descriptors.");
  for (const ObservedProcess& process : all) {
    const std::optional<Usage> usage = ReadUsage(process.pid);
    if (!usage) continue;
    const Labels labels = {{"program", process.program}, {"service", process.service}};
    processor.Add(labels, usage->processor_seconds);
    resident.Add(labels, usage->resident_bytes);
    if (const auto open = CountDescriptors(process.pid)) descriptors.Add(labels, *open);
  }
  return NotEmpty({processor, resident, descriptors});
}

}  // namespace baton::metrics
