// Checks the kernel (its release, its RDMA modules), a machine without a device, and rdma-core.
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

constexpr std::pair<int, int> kOldestKernel = {5, 16};  // futex_waitv

struct Module {
  const char* name;
  const char* effect;  // exists if the module is loaded, or built in without parameters
  const char* consequence;
};
constexpr Module kModules[] = {
    {"ib_core", "/sys/class/infiniband", "there are no RDMA devices"},
    {"ib_uverbs", "/sys/class/infiniband_verbs", "no program can open a device"},
    {"rdma_cm", "/sys/class/misc/rdma_cm", "nothing can listen or connect"},
    {"rdma_ucm", "/sys/class/misc/rdma_cm", "no program can listen or connect"},
};

// Maps network drivers to the module with their RDMA half, if it is a module of its own
// (rdma-core's 90-rdma-hw-modules.rules loads these).
const std::map<std::string, std::string>& RdmaModules() {
  static const auto* const kMap = new std::map<std::string, std::string>{
      {"be2net", "ocrdma"},    {"bnxt_en", "bnxt_re"},   {"cxgb4", "iw_cxgb4"},
      {"hns3", "hns_roce_hw"}, {"i40e", "irdma"},        {"ice", "irdma"},
      {"mana", "mana_ib"},     {"mlx4_core", "mlx4_ib"}, {"mlx5_core", "mlx5_ib"},
      {"qede", "qedr"},
  };
  return *kMap;
}

bool IsLoaded(const Machine& machine, const std::string& module) {
  return machine.Look("/sys/module/" + module).has_value();
}

std::string Release(const Machine& machine) {
  return machine.Read("/proc/sys/kernel/osrelease").value_or("");
}

// Returns whether the kernel's package contains the module; true if that is not known.
bool IsInstalled(const Machine& machine, const std::string& module) {
  const std::string directory = "/lib/modules/" + Release(machine);
  const auto has = [&](const char* file) {
    return absl::StrContains(machine.Read(directory + file).value_or(""),
                             absl::StrCat("/", module, ".ko"));
  };
  return !machine.Look(directory + "/modules.dep") || has("/modules.dep") ||
         has("/modules.builtin");
}

std::string LoadForGood(const std::vector<std::string>& modules) {
  return absl::StrCat("modprobe -a ", absl::StrJoin(modules, " "), " && printf '%s\\n' ",
                      absl::StrJoin(modules, " "), " >>/etc/modules-load.d/baton.conf");
}

// Returns the network cards whose driver's RDMA half is not loaded: "eth0 (mlx5_core)" and its
// module.
std::map<std::string, std::string> IdleCards(const Machine& machine) {
  std::map<std::string, std::string> cards;
  for (const std::string& interface : machine.List("/sys/class/net")) {
    const std::string driver =
        machine.LinkName(absl::StrCat("/sys/class/net/", interface, "/device/driver"));
    const auto module = RdmaModules().find(driver);
    if (module == RdmaModules().end() || IsLoaded(machine, module->second)) continue;
    cards[absl::StrCat(interface, " (", driver, ")")] = module->second;
  }
  return cards;
}

// Returns an interface that Soft-RoCE could use.
std::string AnyInterface(const Machine& machine) {
  for (const std::string& interface : machine.List("/sys/class/net")) {
    if (interface != "lo") return interface;
  }
  return "lo";
}

// Returns the release, with which the file's name ends: "libibverbs.so.1.14.44.0" is of rdma-core
// 44.0.
std::string ReleaseOf(const std::string& file) {
  const std::vector<std::string> parts = absl::StrSplit(file, '.');
  if (parts.size() < 5) return "";
  return absl::StrCat(parts[parts.size() - 2], ".", parts[parts.size() - 1]);
}

}  // namespace

void CheckKernel(const View& view, Report& report) {
  const std::string release = Release(view.machine);
  const std::vector<std::string> parts = absl::StrSplit(release, absl::ByAnyChar(".-+"));
  std::pair<int, int> version = {0, 0};
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[0], &version.first) ||
      !absl::SimpleAtoi(parts[1], &version.second)) {
    return;  // nothing to compare
  }
  if (version >= kOldestKernel) return report.Ok({"kernel"}, "Linux " + release);
  report.Add(v1::SEVERITY_PROBLEM, {"kernel"},
             {absl::StrCat("Linux ", release, " is older than ", kOldestKernel.first, ".",
                           kOldestKernel.second),
              "a driver does not notice the death of a worker: futex_waitv is missing",
              "apt-get install linux-image-amd64 && reboot"});
}

void CheckModules(const View& view, Report& report) {
  std::vector<std::string> missing;
  std::vector<std::string> consequences;
  bool installed = true;
  for (const Module& module : kModules) {
    if (IsLoaded(view.machine, module.name) || view.machine.Look(module.effect)) continue;
    missing.emplace_back(module.name);
    consequences.emplace_back(module.consequence);
    installed = installed && IsInstalled(view.machine, module.name);
  }
  if (missing.empty()) {
    return report.Ok({"module"}, "ib_core, ib_uverbs, rdma_cm and rdma_ucm are loaded");
  }
  report.Add(view.severity(), {"module"},
             {absl::StrCat("not loaded: ", absl::StrJoin(missing, ", "),
                           installed ? "" : "; this kernel's package does not bring them all"),
              absl::StrJoin(consequences, "; "),
              installed ? LoadForGood(missing) : "apt-get install linux-image-amd64 && reboot"});
}

// Shared mode is the kernel's default. An administrator who has set the other mode wants devices in
// containers.
void CheckNamespaces(const View& view, Report& report) {
  const std::string ours = view.machine.LinkName("/proc/self/ns/net");
  const std::string batonds = view.machine.LinkName(view.process() + "/ns/net");
  if (!ours.empty() && !batonds.empty() && ours != batonds) {
    report.Add(v1::SEVERITY_WARNING, {"netns"},
               {absl::StrCat("batond is in another network namespace than this shell (", batonds,
                             ", not ", ours, ")"),
                "what is said here of devices, ports and addresses is not what batond sees",
                absl::StrCat("nsenter -t ", view.batond_pid.value_or(0), " -n baton doctor")});
  }
  const std::optional<std::string> mode =
      view.machine.Read("/sys/module/ib_core/parameters/netns_mode");
  if (!mode) return;  // no ib_core, which another check reports
  if (*mode != "N") return report.Ok({"netns"}, "RDMA devices are in all network namespaces");
  report.Add(v1::SEVERITY_WARNING, {"netns"},
             {"each RDMA device is in one network namespace only",
              "a batond, or a container, in another one does not see it",
              "rdma system set netns shared  # or: rdma dev set DEVICE netns PID"});
}

void CheckNoDevice(const View& view, Report& report) {
  const v1::Severity severity = view.wants_rdma() ? v1::SEVERITY_PROBLEM : v1::SEVERITY_WARNING;
  const std::string consequence =
      "services on the soft device work; on an RDMA device none can start";
  const std::map<std::string, std::string> cards = IdleCards(view.machine);
  for (const auto& [card, module] : cards) {
    report.Add(severity, {"device"},
               {absl::StrCat("no RDMA device: the RDMA half of ", card, ", module ", module,
                             ", is not loaded"),
                consequence, LoadForGood({module, "rdma_ucm"})});
  }
  if (!cards.empty()) return;
  if (!IsInstalled(view.machine, "rdma_rxe")) {
    return report.Add(severity, {"device"},
                      {absl::StrCat("this machine has no RDMA device, and kernel ",
                                    Release(view.machine), " has no Soft-RoCE"),
                       consequence,
                       "apt-get install linux-image-amd64 && reboot  # with an RDMA card, or for "
                       "Soft-RoCE in software"});
  }
  report.Add(severity, {"device"},
             {"this machine has no RDMA device", consequence,
              absl::StrCat("modprobe -a rdma_rxe rdma_ucm && rdma link add rxe0 type rxe netdev ",
                           AnyInterface(view.machine),
                           "  # Soft-RoCE, in software; or add an RDMA card")});
}

void CheckLibrary(const View& view, Report& report) {
  const std::string file = view.machine.VerbsLibrary();
  const std::string release = ReleaseOf(file);
  report.Ok({"library"}, release.empty() ? absl::StrCat("libibverbs of an unknown release ", file)
                                         : absl::StrCat("rdma-core ", release, ": ", file));
}

}  // namespace baton::doctor
