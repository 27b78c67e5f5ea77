// Checks the limits of batond's control group, or of this shell's: memory, processes, RDMA
// resources.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "supervisor/cgroup/cgroup.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

constexpr uint64_t kTasksOfAService = 32;  // a keeper's threads, its NIC and programs, about
constexpr uint64_t kTasksBeside = 32;      // batond, control and their threads, about
constexpr uint64_t kMebibyte = 1 << 20;

// Returns none for "max", or if there is no such file.
std::optional<uint64_t> ReadMax(const View& view, const std::string& group,
                                const std::string& file) {
  uint64_t value = 0;
  const auto text = view.machine.Read(absl::StrCat(cgroup::kRoot, group, "/", file));
  if (!text || !absl::SimpleAtoi(*text, &value)) return std::nullopt;
  return value;
}

std::string Raise(const std::string& group, const std::string& property) {
  const std::string unit = group.substr(group.rfind('/') + 1);
  return absl::StrCat("systemctl set-property ", unit, " ", property,
                      "  # or in what made the control group ", group);
}

bool CheckMax(const View& view, const std::string& group, const std::string& file, uint64_t needed,
              const Trouble& trouble, Report& report) {
  const std::optional<uint64_t> limit = ReadMax(view, group, file);
  if (!limit || *limit >= needed) return true;
  report.Add(v1::SEVERITY_PROBLEM, {"cgroup", group}, trouble);
  return false;
}

bool CheckMemoryMax(const View& view, const std::string& group, Report& report) {
  uint64_t needed = 0;
  for (const ServiceNeeds& service : view.services) needed += service.memory_bytes;
  const uint64_t mebibytes = (needed + kMebibyte - 1) / kMebibyte;
  return CheckMax(
      view, group, "memory.max", needed,
      {absl::StrCat("memory.max is ", ReadMax(view, group, "memory.max").value_or(0) / kMebibyte,
                    " MiB; arenas need ", mebibytes, " MiB"),
       "the kernel kills keepers when they touch their memory",
       Raise(group, absl::StrCat("MemoryMax=", mebibytes * 2, "M"))},
      report);
}

bool CheckPidsMax(const View& view, const std::string& group, Report& report) {
  const uint64_t needed = kTasksBeside + kTasksOfAService * view.services.size();
  return CheckMax(view, group, "pids.max", needed,
                  {absl::StrCat("pids.max is ", ReadMax(view, group, "pids.max").value_or(0),
                                "; batond and its keepers have about ", needed, " threads"),
                   "keepers, or the programs of upgrades, cannot be started",
                   Raise(group, "TasksMax=infinity")},
                  report);
}

// Checks the handles and objects that the services on `device` make. Without a configuration a
// service of default size counts.
bool CheckRdmaMax(const View& view, const std::string& group, const RdmaDevice& device,
                  Report& report) {
  uint64_t handles = 0;
  uint64_t objects = 0;
  for (const ServiceNeeds& service : view.services) {
    if (!service.rdma() || (view.configured && view.DeviceOf(service) != &device)) continue;
    const driver::DeviceNeeds& needs = service.of_device;
    handles += 1;
    objects += needs.queue_pairs + needs.completion_queues + needs.shared_receive_queues +
               needs.memory_regions + 1;  // and a protection domain
  }
  const std::string file =
      view.machine.Read(absl::StrCat(cgroup::kRoot, group, "/rdma.max")).value_or("");
  bool enough = true;
  for (const auto& [key, needed] : {std::pair<std::string, uint64_t>("hca_handle", handles),
                                    std::pair<std::string, uint64_t>("hca_object", objects)}) {
    const std::optional<uint64_t> limit = cgroup::RdmaValue(file, device.name, key);
    if (!limit || *limit >= needed) continue;
    enough = false;
    report.Add(view.severity(), {"cgroup", group},
               {absl::StrCat("rdma.max allows ", *limit, " ", key, " of ", device.name,
                             "; its services need ", needed),
                "keepers cannot make all of their queue pairs, and do not start",
                absl::StrCat("echo '", device.name, " hca_handle=max hca_object=max' >",
                             cgroup::kRoot, group, "/rdma.max")});
  }
  return enough;
}

}  // namespace

void CheckControlGroup(const View& view, Report& report) {
  const std::optional<std::string> group =
      cgroup::GroupOf(view.machine.Read(view.process() + "/cgroup").value_or(""));
  if (!group) {
    return report.Ok({"cgroup"}, "no unified hierarchy, so its limits bind nobody");
  }
  bool fine = true;
  for (const std::string& one : cgroup::Chain(*group)) {
    fine = CheckMemoryMax(view, one, report) && fine;
    fine = CheckPidsMax(view, one, report) && fine;
    for (const RdmaDevice& device : view.devices) {
      fine = CheckRdmaMax(view, one, device, report) && fine;
    }
  }
  if (fine) {
    report.Ok({"cgroup"}, absl::StrCat("memory.max, pids.max and rdma.max of ", *group,
                                       ", where set, are enough"));
  }
}

}  // namespace baton::doctor
