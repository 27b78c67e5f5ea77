// Metrics that the kernel counts for devices, in /sys, and for processes, in /proc.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "supervisor/metrics/families.h"

namespace baton::metrics {
namespace {

// Counters of one meaning, by their names in the drivers Soft-RoCE, mlx5, bnxt_re, irdma and hns.
struct Meaning {
  Family family;
  std::vector<const char*> of_driver;     // in "hw_counters"
  std::vector<const char*> of_port = {};  // in "counters", of every InfiniBand port
};

std::vector<Meaning> Meanings() {
  return {
      {Family::Counter(
           "baton_device_rnr_total",
           "A receiver was not ready, by the port's own count, of all that use the device."),
       {"send_rnr_err", "rcvd_rnr_err", "retry_rnr_exceeded_err", "rnr_nak_retry_err",
        "out_of_buffer", "rnr_naks_rcvd"}},
      {Family::Counter(
           "baton_device_retransmissions_total",
           "Packets that were lost, late or sent again, by the port's own count, likewise."),
       {"completer_retry_err", "retry_exceeded_err", "duplicate_request", "rcvd_seq_err",
        "out_of_seq_request", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err",
        "implied_nak_seq_err", "roce_adp_retrans", "to_retransmits", "seq_err_naks_rcvd",
        "max_retry_exceeded", "RetransSegs"}},
      {Family::Counter("baton_device_congestion_total",
                       "Signs of congestion, by the port's own count, likewise; port_xmit_wait "
                       "counts the port's ticks."),
       {"np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled", "rx_ecn_marked_pkts",
        "tx_cnp_pkts", "rx_cnp_pkts", "cnpSent", "cnpHandled", "RxECNMrkd"},
       {"port_xmit_wait", "port_xmit_discards"}},
  };
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (!(file >> number)) return std::nullopt;
  return number;
}

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

std::vector<prometheus::MetricFamily> DeviceFamilies(const std::vector<DescribedService>& all,
                                                     const std::string& devices) {
  std::vector<Meaning> meanings = Meanings();
  std::set<std::pair<std::string, uint32_t>> seen;
  for (const auto& [service, described] : all) {
    if (!described.ok()) continue;
    const v1::DeviceState& device = described->service().device_state();
    if (device.port() == 0 || !seen.emplace(device.name(), device.port()).second) continue;
    const std::string port = absl::StrCat(device.port());
    for (Meaning& meaning : meanings) {
      const auto add = [&](const char* directory, const std::vector<const char*>& counters) {
        for (const char* const counter : counters) {
          const auto value = ReadNumber(absl::StrCat(devices, "/", device.name(), "/ports/", port,
                                                     "/", directory, "/", counter));
          if (!value) continue;
          meaning.family.Add({{"device", device.name()}, {"port", port}, {"counter", counter}},
                             static_cast<double>(*value));
        }
      };
      add("hw_counters", meaning.of_driver);
      add("counters", meaning.of_port);
    }
  }
  std::vector<Family> families;
  for (Meaning& meaning : meanings) families.push_back(std::move(meaning.family));
  return NotEmpty(families);
}

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
