// Checks that a service's CPUs and NUMA node exist, belong together, and are near its device.
// Checks the clocks, too: what reading the time costs, and whether the clock is synchronized.
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/base/placement.h"
#include "supervisor/config/placement.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

constexpr char kOnlineCpus[] = "/sys/devices/system/cpu/online";
constexpr char kOnlineNodes[] = "/sys/devices/system/node/online";

std::set<uint32_t> Numbers(const View& view, const std::string& path) {
  return ParseCpus(view.machine.Read(path).value_or("")).value_or(std::set<uint32_t>());
}

std::string NodeDirectory(uint32_t node) {
  return absl::StrCat("/sys/devices/system/node/node", node);
}

// Returns the node's memory in bytes, from a line like "Node 1 MemTotal: 65980000 kB". 0: not
// known.
uint64_t MemoryOf(const View& view, uint32_t node) {
  const std::string text = view.machine.Read(NodeDirectory(node) + "/meminfo").value_or("");
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t kilobytes = 0;
    if (words.size() > 3 && words[2] == "MemTotal:" && absl::SimpleAtoi(words[3], &kilobytes)) {
      return kilobytes * 1024;
    }
  }
  return 0;
}

class Checker {
 public:
  Checker(const View& view, const ServiceNeeds& service, Report& report)
      : view_(view), service_(service), report_(report), findings_(report.findings()) {}

  void Check() {
    const RdmaDevice* const device = service_.rdma() ? view_.DeviceOf(service_) : nullptr;
    const auto read = [this](const std::string& path) { return view_.machine.Read(path); };
    const v1::Placement placement =
        PlacementOf(service_.config.placement(), device == nullptr ? "" : device->name, read);
    const std::string where = DescribePlacement(placement);
    if (where.empty()) return;
    CheckCpus(placement);
    if (placement.has_numa_node()) CheckNode(placement);
    if (device != nullptr && placement.has_numa_node()) {
      CheckDistance(device->name, NodeOfDevice(device->name, read), placement.numa_node());
    }
    if (report_.findings() == findings_) report_.Ok({"placement", service_.name()}, "on " + where);
  }

 private:
  void Warn(const std::string& what, const std::string& consequence, const std::string& line) {
    report_.Add(v1::SEVERITY_WARNING, {"placement", service_.name()},
                {what, consequence, view_.Change(service_, line)});
  }

  void CheckCpus(const v1::Placement& placement) {
    const std::set<uint32_t> cpus = ParseCpus(placement.cpus()).value_or(std::set<uint32_t>());
    const std::set<uint32_t> online = Numbers(view_, kOnlineCpus);
    for (const uint32_t cpu : cpus) {
      if (online.empty() || online.count(cpu) > 0) continue;
      return Warn(absl::StrCat("CPU ", cpu, " is not online: there are ",
                               view_.machine.Read(kOnlineCpus).value_or("")),
                  "its engine runs on the others, or anywhere", "placement { cpus: … }");
    }
  }

  void CheckNode(const v1::Placement& placement) {
    const uint32_t node = placement.numa_node();
    if (Numbers(view_, kOnlineNodes).count(node) == 0) {
      return Warn(absl::StrCat("there is no NUMA node ", node, ": there are ",
                               view_.machine.Read(kOnlineNodes).value_or("none")),
                  "its memory is taken of any", "placement { numa_node: … }");
    }
    const uint64_t memory = MemoryOf(view_, node);
    if (memory != 0 && service_.memory_bytes > memory) {
      Warn(absl::StrCat("needs ", service_.memory_bytes >> 20, " MiB, and NUMA node ", node,
                        " has ", memory >> 20),
           "the rest of its memory is on other nodes: every access from the device crosses over",
           "a smaller buffer_bytes or shard_heap_bytes, or fewer connections");
    }
    const std::set<uint32_t> near = Numbers(view_, NodeDirectory(node) + "/cpulist");
    const std::set<uint32_t> cpus = ParseCpus(placement.cpus()).value_or(std::set<uint32_t>());
    const std::set<uint32_t> online = Numbers(view_, kOnlineCpus);
    const auto is_far = [&](uint32_t cpu) { return near.count(cpu) == 0 && online.count(cpu) > 0; };
    const auto far = absl::c_find_if(cpus, is_far);
    if (far != cpus.end() && !near.empty()) {
      Warn(absl::StrCat("CPU ", *far, " is not of NUMA node ", node, ", where its memory is"),
           "every work request crosses over to another node",
           absl::StrCat("placement { cpus: \"",
                        view_.machine.Read(NodeDirectory(node) + "/cpulist").value_or(""),
                        "\" }  # or another numa_node"));
    }
  }

  void CheckDistance(const std::string& device, std::optional<uint32_t> home, uint32_t node) {
    if (!home || *home == node) return;
    Warn(absl::StrCat("its memory is on NUMA node ", node, ", and ", device, " is on ", *home),
         "every message crosses over to another node",
         absl::StrCat("placement { numa_node: ", *home, " }, or no placement"));
  }

  const View& view_;
  const ServiceNeeds& service_;
  Report& report_;
  const int findings_;  // before this service's
};

constexpr char kSource[] = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
// Clock sources that the kernel reads over a bus (drivers/clocksource/). Each reading takes a
// microsecond and a system call.
constexpr const char* kSlow[] = {"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"};

}  // namespace

void CheckPlacement(const View& view, Report& report) {
  if (!view.configured) return;
  for (const ServiceNeeds& service : view.services) Checker(view, service, report).Check();
}

void CheckClock(const View& view, Report& report) {
  const std::string source = view.machine.Read(kSource).value_or("");
  const bool slow = absl::c_linear_search(kSlow, source);
  if (slow) {
    report.Add(v1::SEVERITY_WARNING, {"clock"},
               {absl::StrCat("the kernel tells the time by ", source),
                "each look at it is a system call that takes microseconds, and engines look often: "
                "rates are lower and blackouts longer",
                absl::StrCat("echo tsc >", kSource,
                             "  # for good: clocksource=tsc tsc=reliable on the kernel's command "
                             "line, where the processor has constant_tsc")});
  }
  const std::optional<bool> synchronized = view.machine.ClockIsSynchronized();
  if (synchronized == false) {
    report.Add(v1::SEVERITY_WARNING, {"clock", "UTC"},
               {"nobody keeps the clock of this machine right",
                "times of events cannot be compared with those of peers and of other logs; what "
                "Baton waits for and measures is by another clock, which does not mind",
                "apt-get install systemd-timesyncd && timedatectl set-ntp true"});
  }
  if (slow || synchronized == false) return;
  report.Ok({"clock"}, absl::StrCat(source.empty() ? "of an unknown source" : "by " + source,
                                    synchronized ? ", synchronized" : ""));
}

}  // namespace baton::doctor
