// Checks limits of processes, memory (how much there is, huge pages, and /dev/shm), and the limits
// of batond's control group, or of this shell's: memory, processes, RDMA resources.
#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "supervisor/config/cgroup.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

constexpr uint64_t kUnlimited = UINT64_MAX;
constexpr uint64_t kMebibyte = 1 << 20;
constexpr uint32_t kCapIpcLock = 14;  // capability.h

// Returns the words after `key` in the line of the file that begins with it.
std::vector<std::string> WordsBehind(const std::string& key, const View& view,
                                     const std::string& path) {
  const std::string text = view.machine.Read(path).value_or("");
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StartsWith(line, key)) continue;
    return absl::StrSplit(line.substr(key.size()), absl::ByAnyChar(" \t"), absl::SkipEmpty());
  }
  return {};
}

// Returns the hard limit in the line of /proc/PID/limits that begins with `name`. batond and its
// children raise their limits to it.
std::optional<uint64_t> ReadLimit(const View& view, const std::string& name) {
  const std::vector<std::string> words = WordsBehind(name, view, view.process() + "/limits");
  if (words.size() < 2) return std::nullopt;
  uint64_t limit = 0;  // the file has "unlimited" if there is none
  return absl::SimpleAtoi(words[1], &limit) ? limit : kUnlimited;
}

std::string Mebibytes(uint64_t bytes) {
  return bytes == kUnlimited ? "unlimited"
                             : absl::StrCat((bytes + kMebibyte - 1) / kMebibyte, " MiB");
}

std::string ServiceName(const View& view, const ServiceNeeds& service) {
  return view.configured ? "service " + service.name() : "a service of default size";
}

// `key`: the limit's name in systemd's units; `item`: in limits.conf.
std::string CureLimit(const View& view, const std::string& key, const std::string& item,
                      const std::string& value) {
  const std::string line = absl::StrCat(key, "=", value == "unlimited" ? "infinity" : value);
  if (view.batond_pid) {
    return absl::StrCat("systemctl edit batond  # [Service] ", line,
                        "; then: systemctl restart batond");
  }
  return absl::StrCat(
      "echo '", view.identity.name, " - ", item, " ", value,
      "' >>/etc/security/limits.d/baton.conf  # and log in again; in a unit: ", line);
}

constexpr char kOfSharedMemory[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
constexpr char kSlower[] =
    "arenas are on small pages: the kernel takes longer to unmap what a dying worker had, and its "
    "successor may wait for that, up to a millisecond for tens of megabytes";

constexpr uint64_t kTasksOfAService = 32;  // threads of its processes, about
constexpr uint64_t kTasksBeside = 32;      // batond, control and their threads, about

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

void CheckMax(const View& view, const std::string& group, const std::string& file, uint64_t needed,
              const Trouble& trouble, Report& report) {
  const std::optional<uint64_t> limit = ReadMax(view, group, file);
  if (limit && *limit < needed) report.Add(v1::SEVERITY_PROBLEM, {"cgroup", group}, trouble);
}

void CheckMemoryMax(const View& view, const std::string& group, Report& report) {
  uint64_t needed = 0;
  for (const ServiceNeeds& service : view.services) needed += service.memory_bytes;
  const uint64_t mebibytes = (needed + kMebibyte - 1) / kMebibyte;
  CheckMax(
      view, group, "memory.max", needed,
      {absl::StrCat("memory.max is ", ReadMax(view, group, "memory.max").value_or(0) / kMebibyte,
                    " MiB; arenas need ", mebibytes, " MiB"),
       "the kernel kills drivers when they touch their memory",
       Raise(group, absl::StrCat("MemoryMax=", mebibytes * 2, "M"))},
      report);
}

void CheckPidsMax(const View& view, const std::string& group, Report& report) {
  const uint64_t needed = kTasksBeside + kTasksOfAService * view.services.size();
  CheckMax(view, group, "pids.max", needed,
           {absl::StrCat("pids.max is ", ReadMax(view, group, "pids.max").value_or(0),
                         "; batond and its services have about ", needed, " threads"),
            "drivers, keepers, or the programs of upgrades, cannot be started",
            Raise(group, "TasksMax=infinity")},
           report);
}

// Checks the handles and objects that the services on `device` make. Without a configuration a
// service of default size counts.
void CheckRdmaMax(const View& view, const std::string& group, const RdmaDevice& device,
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
  for (const auto& [key, needed] : {std::pair<std::string, uint64_t>("hca_handle", handles),
                                    std::pair<std::string, uint64_t>("hca_object", objects)}) {
    const std::optional<uint64_t> limit = cgroup::RdmaValue(file, device.name, key);
    if (!limit || *limit >= needed) continue;
    report.Add(view.severity(), {"cgroup", group},
               {absl::StrCat("rdma.max allows ", *limit, " ", key, " of ", device.name,
                             "; its services need ", needed),
                "drivers cannot make all of their queue pairs, and do not start",
                absl::StrCat("echo '", device.name, " hca_handle=max hca_object=max' >",
                             cgroup::kRoot, group, "/rdma.max")});
  }
}

}  // namespace

bool HasCapability(const View& view, uint32_t number) {
  if (!view.batond_pid && !view.identity.self) return view.identity.uid == 0;
  const std::vector<std::string> words = WordsBehind("CapEff:", view, view.process() + "/status");
  uint64_t capabilities = 0;
  return !words.empty() && absl::SimpleHexAtoi(words[0], &capabilities) &&
         (capabilities >> number & 1) != 0;
}

void CheckLockedMemory(const View& view, Report& report) {
  const std::optional<uint64_t> limit = ReadLimit(view, "Max locked memory");
  if (!limit) return;
  uint64_t most = 0;
  for (const ServiceNeeds& service : view.services) {
    if (service.rdma()) most = std::max(most, service.of_device.registered_bytes);
  }
  const std::string largest = absl::StrCat("; the largest driver registers ", Mebibytes(most));
  // The kernel's ib_umem_get ignores the limit with this capability.
  if (HasCapability(view, kCapIpcLock) && *limit != kUnlimited) {
    return report.Ok({"memlock"}, "CAP_IPC_LOCK: the limit does not bind" + largest);
  }
  const int findings = report.findings();
  for (const ServiceNeeds& service : view.services) {
    const uint64_t registered = service.of_device.registered_bytes;
    if (!service.rdma() || *limit >= registered + service.queue_bytes) continue;
    const bool certain = *limit < registered;
    report.Add(certain ? view.severity() : v1::SEVERITY_WARNING,
               {"memlock", view.configured ? service.name() : ""},
               {absl::StrCat("the hard RLIMIT_MEMLOCK ", view.whose(), " is ", Mebibytes(*limit),
                             "; ", ServiceName(view, service), " registers ", Mebibytes(registered),
                             ", and up to ", Mebibytes(service.queue_bytes),
                             " of queues with providers that pin them, too"),
                certain ? "its driver cannot register its memory, and does not start"
                        : "with such a provider its driver runs out of queue pairs early",
                CureLimit(view, "LimitMEMLOCK", "memlock", "unlimited")});
  }
  if (report.findings() == findings) {
    report.Ok({"memlock"}, absl::StrCat(Mebibytes(*limit), " ", view.whose(), largest));
  }
}

void CheckDescriptors(const View& view, Report& report) {
  const std::optional<uint64_t> limit = ReadLimit(view, "Max open files");
  if (!limit) return;
  const int findings = report.findings();
  for (const ServiceNeeds& service : view.services) {
    if (service.descriptors <= *limit) continue;
    report.Add(v1::SEVERITY_PROBLEM, {"nofile", view.configured ? service.name() : ""},
               {absl::StrCat("the hard RLIMIT_NOFILE ", view.whose(), " is ", *limit, "; ",
                             ServiceName(view, service), " has up to ", service.descriptors,
                             " descriptors open"),
                "connections and workers are refused before the service is full",
                CureLimit(view, "LimitNOFILE", "nofile", "1048576")});
  }
  if (report.findings() == findings) {
    report.Ok({"nofile"}, absl::StrCat("up to ", *limit, " open files ", view.whose()));
  }
}

void CheckMemory(const View& view, Report& report) {
  // With 2 the kernel refuses every memfd_create without MFD_NOEXEC_SEAL (vm.memfd_noexec, Linux
  // 6.3).
  if (view.machine.Read("/proc/sys/vm/memfd_noexec") == "2") {
    report.Add(v1::SEVERITY_PROBLEM, {"memory", "memfd"},
               {"vm.memfd_noexec is 2: memory files that could be made executable are refused",
                "no driver can make its arena", "sysctl vm.memfd_noexec=1"});
  }
  uint64_t needed = 0;
  for (const ServiceNeeds& service : view.services) needed += service.memory_bytes;
  const std::vector<std::string> words = WordsBehind("MemAvailable:", view, "/proc/meminfo");
  uint64_t available = 0;  // KiB
  if (words.empty() || !absl::SimpleAtoi(words[0], &available) || available == 0) return;
  const std::string both =
      absl::StrCat(Mebibytes(available << 10), " available; arenas need ", Mebibytes(needed));
  // A running batond has taken its share.
  if (!view.batond_pid && needed > available << 10) {
    return report.Add(
        v1::SEVERITY_PROBLEM, {"memory"},
        {both, "drivers are killed when they touch it, or other programs are",
         view.configured ? "in " + view.config_file +
                               ": smaller buffer_bytes, shard_heap_bytes and max_connections"
                         : "free memory, or set a smaller buffer_bytes"});
  }
  report.Ok({"memory"}, absl::StrCat(both,
                                     ", as memfds, which the size and the mount options of "
                                     "/dev/shm do not bound"));
}

// Drivers ask for huge pages with MADV_COLLAPSE, which only "deny" refuses
// (Documentation/admin-guide/mm/transhuge.rst in the kernel's sources).
void CheckHugePages(const View& view, Report& report) {
  const std::optional<std::string> enabled = view.machine.Read(kOfSharedMemory);
  if (!enabled) {
    return report.Add(v1::SEVERITY_WARNING, {"huge pages"},
                      {"this kernel has no transparent huge pages of shared memory", kSlower,
                       "apt-get install linux-image-amd64 && reboot"});
  }
  if (absl::StrContains(*enabled, "[deny]")) {
    return report.Add(v1::SEVERITY_WARNING, {"huge pages"},
                      {"shared memory is denied huge pages", kSlower,
                       absl::StrCat("echo never >", kOfSharedMemory,
                                    "  # not deny: who asks for them gets them")});
  }
  report.Ok({"huge pages"}, "drivers get them for their arenas");
}

// Baton's own memory is in memfds. Libraries that a service loads may use /dev/shm.
void CheckSharedMemory(const View& view, Report& report) {
  const std::optional<FileFacts> facts = view.machine.Look("/dev/shm");
  const std::string consequence =
      "Baton does without; libraries that services load beside it (UCX, libfabric, MPI) put their "
      "shared memory there";
  if (!facts || !S_ISDIR(facts->mode)) {
    return report.Add(
        v1::SEVERITY_WARNING, {"/dev/shm"},
        {"/dev/shm is missing", consequence,
         "mkdir -p /dev/shm && mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm"});
  }
  if ((facts->mode & 07777) != 01777) {
    const bool everybody_removes = (facts->mode & 0002) != 0;
    return report.Add(v1::SEVERITY_WARNING, {"/dev/shm"},
                      {everybody_removes ? "every user may remove what others have in /dev/shm"
                                         : "not every user may make files in /dev/shm",
                       consequence, "chmod 1777 /dev/shm"});
  }
  report.Ok({"/dev/shm"}, "open to every user; arenas do not need it");
}

void CheckControlGroup(const View& view, Report& report) {
  const std::optional<std::string> group =
      cgroup::GroupOf(view.machine.Read(view.process() + "/cgroup").value_or(""));
  if (!group) {
    return report.Ok({"cgroup"}, "no unified hierarchy, so its limits bind nobody");
  }
  const int findings = report.findings();
  for (const std::string& one : cgroup::Chain(*group)) {
    CheckMemoryMax(view, one, report);
    CheckPidsMax(view, one, report);
    for (const RdmaDevice& device : view.devices) CheckRdmaMax(view, one, device, report);
  }
  if (report.findings() == findings) {
    report.Ok({"cgroup"}, absl::StrCat("memory.max, pids.max and rdma.max of ", *group,
                                       ", where set, are enough"));
  }
}

}  // namespace baton::doctor
