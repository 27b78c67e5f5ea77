// Limits of the control group that batond is in, or this shell: memory, processes, RDMA resources.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

constexpr char kRoot[] = "/sys/fs/cgroup";
constexpr uint64_t kTasksOfAService = 32;  // a keeper's threads and what it starts, about
constexpr uint64_t kTasksBeside = 32;      // batond, control and their threads, about
constexpr uint64_t kMebibyte = 1 << 20;

// Of the unified hierarchy: "/system.slice/batond.service". None: there is none.
std::optional<std::string> GroupOf(const View& view) {
  const std::string text = view.machine.Read(view.process() + "/cgroup").value_or("");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, "0::")) return std::string(line);
  }
  return std::nullopt;
}

// Itself and those above it, each of which has a say.
std::vector<std::string> Chain(std::string group) {
  std::vector<std::string> chain;
  while (group.size() > 1) {
    chain.push_back(group);
    group = group.substr(0, group.rfind('/'));
  }
  return chain;
}

// None: "max", or no such file.
std::optional<uint64_t> ReadMax(const View& view, const std::string& group,
                                const std::string& file) {
  uint64_t value = 0;
  const auto text = view.machine.Read(absl::StrCat(kRoot, group, "/", file));
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

// "mlx5_0 hca_handle=2 hca_object=2000" of that device: none where it is not limited.
std::optional<uint64_t> ReadRdmaMax(const View& view, const std::string& group,
                                    const std::string& device, const std::string& key) {
  const auto text = view.machine.Read(absl::StrCat(kRoot, group, "/rdma.max"));
  for (const absl::string_view line : absl::StrSplit(text.value_or(""), '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty() || words[0] != device) continue;
    for (const std::string& word : words) {
      uint64_t value = 0;
      const std::pair<std::string, std::string> parts =
          absl::StrSplit(word, absl::MaxSplits('=', 1));
      if (parts.first == key && absl::SimpleAtoi(parts.second, &value)) return value;
    }
  }
  return std::nullopt;
}

// Handles and objects that the services on `device` make; a default one counts where there is no
// configuration.
bool CheckRdmaMax(const View& view, const std::string& group, const RdmaDevice& device,
                  Report& report) {
  uint64_t handles = 0;
  uint64_t objects = 0;
  for (const ServiceNeeds& service : view.services) {
    if (!service.rdma || (view.configured && view.DeviceOf(service) != &device)) continue;
    const driver::DeviceNeeds& needs = service.of_device;
    handles += 1;
    objects += needs.queue_pairs + needs.completion_queues + needs.shared_receive_queues +
               needs.memory_regions + 1;  // and a protection domain
  }
  bool enough = true;
  for (const auto& [key, needed] : {std::pair<std::string, uint64_t>("hca_handle", handles),
                                    std::pair<std::string, uint64_t>("hca_object", objects)}) {
    const std::optional<uint64_t> limit = ReadRdmaMax(view, group, device.name, key);
    if (!limit || *limit >= needed) continue;
    enough = false;
    report.Add(view.severity(), {"cgroup", group},
               {absl::StrCat("rdma.max allows ", *limit, " ", key, " of ", device.name,
                             "; its services need ", needed),
                "keepers cannot make all of their queue pairs, and do not start",
                absl::StrCat("echo '", device.name, " hca_handle=max hca_object=max' >", kRoot,
                             group, "/rdma.max")});
  }
  return enough;
}

}  // namespace

void CheckControlGroup(const View& view, Report& report) {
  const std::optional<std::string> group = GroupOf(view);
  if (!group) {
    return report.Ok({"cgroup"}, "no unified hierarchy, so its limits bind nobody");
  }
  bool fine = true;
  for (const std::string& one : Chain(*group)) {
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
