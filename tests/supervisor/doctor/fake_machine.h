// A machine that a test makes up: files by path, and what libibverbs would say.
#ifndef TESTS_SUPERVISOR_DOCTOR_FAKE_MACHINE_H_
#define TESTS_SUPERVISOR_DOCTOR_FAKE_MACHINE_H_

#include <sys/stat.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "supervisor/doctor/machine.h"

namespace baton::doctor {

inline constexpr uint32_t kRdmaGroup = 105;

class FakeMachine final : public Machine {
 public:
  struct File {
    std::string text;
    FileFacts facts;
    std::string link;
  };

  // One on which nothing is wrong: Soft-RoCE on eth0, as Linux 6.1 shows it, used by members of
  // group rdma.
  FakeMachine();

  // `text` as a program reads it, without the end of the line.
  void Put(const std::string& path, const std::string& text) {
    files_[path] = {text, {S_IFREG | 0644, 0, 0, ""}, ""};
  }
  void PutDirectory(const std::string& path, uint32_t mode, uint32_t uid) {
    files_[path] = {"", {S_IFDIR | mode, uid, uid, ""}, ""};
  }
  void PutNode(const std::string& path, uint32_t mode, uint32_t gid, const std::string& number) {
    files_[path] = {"", {S_IFCHR | mode, 0, gid, number}, ""};
  }
  void PutLink(const std::string& path, const std::string& target) {
    files_[path] = {"", {S_IFDIR | 0755, 0, 0, ""}, target};
  }
  // And what is below it.
  void Remove(const std::string& path);
  // A device of one RoCE port, with its node.
  void PutDevice(const std::string& name, const std::string& node, const std::string& number);
  void PutGid(const std::string& device, int index, const std::string& gid, const std::string& type,
              const std::string& interface);
  void PutLimits(const std::string& process, const std::string& memlock, const std::string& nofile,
                 uint64_t capabilities);

  std::optional<std::string> Read(const std::string& path) const override;
  std::vector<std::string> List(const std::string& path) const override;
  std::optional<FileFacts> Look(const std::string& path) const override;
  std::string LinkName(const std::string& path) const override;
  absl::Status LookForNetworkNamespace(const std::string& name) const override {
    if (namespaces.count(name) > 0) return absl::OkStatus();
    return absl::NotFoundError("/run/netns/" + name + ": No such file or directory (errno 2)");
  }
  std::optional<uint32_t> GroupId(const std::string& name) const override {
    const auto group = groups.find(name);
    return group == groups.end() ? std::nullopt : std::optional<uint32_t>(group->second);
  }
  std::vector<InterfaceAddress> Addresses() const override { return addresses; }
  std::optional<bool> ClockIsSynchronized() const override { return clock_is_synchronized; }
  std::vector<std::string> VerbsDevices() const override { return providers; }
  absl::StatusOr<verbs::DeviceLimits> Limits(const std::string& device,
                                             uint32_t /*port*/) const override {
    if (!opening.ok()) return opening;
    asked.insert(device);
    return limits;
  }
  std::string VerbsLibrary() const override { return "libibverbs.so.1.14.44.0"; }

  std::set<std::string> namespaces;
  std::map<std::string, uint32_t> groups = {{"rdma", kRdmaGroup}};
  std::vector<InterfaceAddress> addresses = {{"lo", "127.0.0.1"}, {"eth0", "10.0.0.1"}};
  std::optional<bool> clock_is_synchronized = true;
  std::vector<std::string> providers = {"rxe0"};
  verbs::DeviceLimits limits;
  absl::Status opening;
  mutable std::set<std::string> asked;

 private:
  std::map<std::string, File> files_;
};

inline FakeMachine::FakeMachine() {
  Put("/proc/sys/kernel/osrelease", "6.1.0-56-amd64");
  for (const char* module : {"ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm", "rdma_rxe"}) {
    PutDirectory(std::string("/sys/module/") + module, 0755, 0);
  }
  PutDevice("rxe0", "uverbs0", "231:192");
  Put("/sys/class/misc/rdma_cm/dev", "10:124");
  PutNode("/dev/infiniband/rdma_cm", 0660, kRdmaGroup, "10:124");
  Put("/sys/class/net/eth0/flags", "0x1003");
  Put("/sys/class/net/lo/flags", "0x9");
  Put("/proc/meminfo", "MemTotal:        8000000 kB\nMemAvailable:    4194304 kB");
  PutLimits("/proc/self", "unlimited", "1048576", 0);
  PutDirectory("/run/baton", 0700, 1000);
  PutDirectory("/dev/shm", 01777, 0);
  Put("/sys/module/ib_core/parameters/netns_mode", "Y");
  PutLink("/proc/self/ns/net", "net:[4026531840]");
  Put("/proc/self/cgroup", "0::/user.slice/session-1.scope");
  Put("/sys/fs/cgroup/user.slice/pids.max", "max");
  Put("/sys/fs/cgroup/user.slice/session-1.scope/memory.max", "max");
  Put("/sys/fs/cgroup/user.slice/session-1.scope/rdma.max", "rxe0 hca_handle=max hca_object=max");
  Put("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
      "always within_size advise [never] deny force");
  Put("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc");
  limits.max_queue_pairs = 65536;
  limits.max_completion_queue_entries = 32767;
  limits.max_send_requests = limits.max_receive_requests = 16384;
  limits.max_scatter_gather = 32;
  limits.max_completion_queues = limits.max_memory_regions = 65536;
  limits.atomics = true;
}

inline void FakeMachine::PutDevice(const std::string& name, const std::string& node,
                                   const std::string& number) {
  const std::string device = "/sys/class/infiniband/" + name;
  Put(device + "/node_type", "1: CA");
  Put(device + "/ports/1/state", "4: ACTIVE");
  Put(device + "/ports/1/phys_state", "5: LinkUp");
  Put(device + "/ports/1/link_layer", "Ethernet");
  PutGid(name, 0, "fe80:0000:0000:0000:883d:f6ff:fe3e:8479", "RoCE v2", "eth0");
  PutGid(name, 1, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "eth0");
  Put(device + "/ports/1/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000");
  Put("/sys/class/infiniband_verbs/" + node + "/ibdev", name);
  Put("/sys/class/infiniband_verbs/" + node + "/dev", number);
  PutNode("/dev/infiniband/" + node, 0660, kRdmaGroup, number);
}

inline void FakeMachine::PutGid(const std::string& device, int index, const std::string& gid,
                                const std::string& type, const std::string& interface) {
  const std::string port = "/sys/class/infiniband/" + device + "/ports/1/";
  Put(port + "gids/" + std::to_string(index), gid);
  Put(port + "gid_attrs/types/" + std::to_string(index), type);
  Put(port + "gid_attrs/ndevs/" + std::to_string(index), interface);
}

inline void FakeMachine::PutLimits(const std::string& process, const std::string& memlock,
                                   const std::string& nofile, uint64_t capabilities) {
  const auto line = [](const std::string& name, const std::string& value) {
    return name + "   " + value + "   " + value + "   units\n";
  };
  Put(process + "/limits", "Limit   Soft Limit   Hard Limit   Units\n" +
                               line("Max open files", nofile) + line("Max locked memory", memlock));
  char hex[20];
  snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(capabilities));
  Put(process + "/status", std::string("Name:\tx\nCapInh:\t0\nCapEff:\t") + hex + "\n");
}

inline void FakeMachine::Remove(const std::string& path) {
  for (auto file = files_.lower_bound(path); file != files_.end();) {
    if (file->first != path && !file->first.starts_with(path + "/")) {
      if (!file->first.starts_with(path)) break;
      ++file;
    } else {
      file = files_.erase(file);
    }
  }
}

inline std::optional<std::string> FakeMachine::Read(const std::string& path) const {
  const auto file = files_.find(path);
  if (file == files_.end() || !S_ISREG(file->second.facts.mode)) return std::nullopt;
  return file->second.text;
}

inline std::vector<std::string> FakeMachine::List(const std::string& path) const {
  std::set<std::string> names;
  const std::string prefix = path + "/";
  for (auto file = files_.lower_bound(prefix);
       file != files_.end() && file->first.starts_with(prefix); ++file) {
    names.insert(
        file->first.substr(prefix.size(), file->first.find('/', prefix.size()) - prefix.size()));
  }
  return {names.begin(), names.end()};
}

// Directories that nobody put are root's.
inline std::optional<FileFacts> FakeMachine::Look(const std::string& path) const {
  const auto file = files_.find(path);
  if (file != files_.end()) return file->second.facts;
  if (List(path).empty()) return std::nullopt;
  return FileFacts{S_IFDIR | 0755, 0, 0, ""};
}

inline std::string FakeMachine::LinkName(const std::string& path) const {
  const auto file = files_.find(path);
  return file == files_.end() ? "" : file->second.link;
}

}  // namespace baton::doctor

#endif  // TESTS_SUPERVISOR_DOCTOR_FAKE_MACHINE_H_
