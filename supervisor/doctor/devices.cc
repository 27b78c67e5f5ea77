// Checks the files in /dev through which programs reach devices: that they exist, are the right
// ones, and may be opened.
//
// Checks devices and their ports: that Baton can use their kind, and that they have a link and an
// address.
#include <sys/stat.h>

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "lib/base/status.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

constexpr char kGroup[] = "rdma";
constexpr char kConnections[] = "/dev/infiniband/rdma_cm";
constexpr char kRule[] = "deploy/udev/70-baton-rdma.rules";
constexpr char kInstallRule[] =
    "install -m 644 deploy/udev/70-baton-rdma.rules /etc/udev/rules.d/ && udevadm control --reload "
    "&& udevadm trigger --action=add --subsystem-match=infiniband_verbs --subsystem-match=misc";

bool IsMember(const Identity& identity, uint32_t gid) {
  return identity.gid == gid || absl::c_linear_search(identity.groups, gid);
}

// Decides like the kernel: the first class that fits counts, even if a later one allows more.
bool MayOpen(const FileFacts& file, const Identity& identity) {
  constexpr uint32_t kReadWrite = 06;
  if (identity.uid == 0) return true;
  uint32_t allowed = file.mode;
  if (file.uid == identity.uid) {
    allowed = file.mode >> 6;
  } else if (IsMember(identity, file.gid)) {
    allowed = file.mode >> 3;
  }
  return (allowed & kReadWrite) == kReadWrite;
}

std::string Describe(const std::string& path, const FileFacts& file, const View& view) {
  const bool rdma = view.machine.GroupId(kGroup) == file.gid;
  return absl::StrFormat("%s (mode %04o, uid %d, %s)", path, file.mode & 07777, file.uid,
                         rdma ? std::string("group rdma") : absl::StrCat("gid ", file.gid));
}

std::string CureAccess(const std::string& path, const FileFacts& file, const View& view) {
  const std::optional<uint32_t> group = view.machine.GroupId(kGroup);
  std::string cure;
  if (!group) cure = "groupadd --system rdma && ";
  if (group != file.gid) absl::StrAppend(&cure, "chgrp rdma ", path, " && ");
  if ((file.mode & 0777) != 0660) absl::StrAppend(&cure, "chmod 0660 ", path, " && ");
  if (!group || !IsMember(view.identity, *group)) {
    absl::StrAppend(&cure, "usermod -a -G rdma ", view.identity.name, " && ");
  }
  cure.resize(cure.size() - 4);
  return cure;
}

void CheckAccess(const View& view, const std::string& path, const FileFacts& file,
                 const Place& place, Report& report) {
  if (!MayOpen(file, view.identity)) {
    return report.Add(
        view.severity(), place,
        {absl::StrCat("user ", view.identity.name, " may not open ", Describe(path, file, view)),
         absl::StrCat("a driver that runs as ", view.identity.name,
                      " cannot use it; changes last until the device appears again, with ", kRule,
                      " for good, and membership takes effect at the next login or start"),
         CureAccess(path, file, view)});
  }
  if ((file.mode & 06) != 0) {
    return report.Add(v1::SEVERITY_WARNING, place,
                      {absl::StrCat("every user may open ", Describe(path, file, view)),
                       "no group says who may use the card: any program can take its queue pairs "
                       "and memory regions",
                       kInstallRule});
  }
  report.Ok(place, absl::StrCat(Describe(path, file, view), ", open to ", view.identity.name));
}

// `number`: the device number that the kernel has registered.
void CheckNode(const View& view, const std::string& path, const std::string& number,
               const Place& place, Report& report) {
  const std::optional<FileFacts> file = view.machine.Look(path);
  const std::string make =
      absl::StrCat("mknod -m 0660 ", path, " c ", absl::StrReplaceAll(number, {{":", " "}}));
  if (!file) {
    return report.Add(
        view.severity(), place,
        {absl::StrCat(path, " is missing, and the kernel has the device (", number, ")"),
         "no program can open it; in a container, it has to be passed in (--device)",
         absl::StrCat("mkdir -p /dev/infiniband && ", make, " && chgrp rdma ", path)});
  }
  if (!S_ISCHR(file->mode) || file->device != number) {
    return report.Add(
        view.severity(), place,
        {absl::StrCat(path, " is not the device ", number, " that the kernel has, but ",
                      S_ISCHR(file->mode) ? file->device : "no character device"),
         "what opens it gets another device, or none",
         absl::StrCat("rm ", path, " && ", make, " && chgrp rdma ", path)});
  }
  CheckAccess(view, path, *file, place, report);
}

using Troubles = std::vector<Trouble>;

std::string InterfaceOr(const Port& port, const char* otherwise) {
  return port.interface.empty() ? otherwise : port.interface;
}

std::string AddressCure(const Port& port) {
  return absl::StrCat("ip addr add ADDRESS/PREFIX dev ", InterfaceOr(port, "NETDEV"));
}

// Returns true if the interface was not set up: its flags lack IFF_UP.
bool IsDownByChoice(const Machine& machine, const std::string& interface) {
  uint32_t flags = 1;
  const std::string text = machine.Read("/sys/class/net/" + interface + "/flags").value_or("");
  return absl::SimpleHexAtoi(text, &flags) && (flags & 1) == 0;
}

std::string LinkCure(const View& view, const std::string& device, const Port& port) {
  if (!port.ethernet) {
    // A subnet manager makes an INIT port ACTIVE.
    return port.state == "INIT" ? "apt-get install opensm && systemctl enable --now opensm"
                                : absl::StrCat("rdma link show ", device, "/", port.number,
                                               "  # no link: look at the cable and the switch");
  }
  if (port.interface.empty() || IsDownByChoice(view.machine, port.interface)) {
    return absl::StrCat("ip link set ", InterfaceOr(port, "NETDEV"), " up");
  }
  return absl::StrCat("ip link show ", port.interface,
                      "  # up, without a link: look at the cable and the switch");
}

bool HasAddress(const Machine& machine, const std::string& interface) {
  return absl::c_any_of(machine.Addresses(), [&](const InterfaceAddress& a) {
    return a.interface == interface && !a.address.starts_with("fe80:");
  });
}

void AddAddressTroubles(const View& view, const Port& port, Troubles& troubles) {
  if (!port.ethernet) {
    if (port.interface.empty()) {
      troubles.push_back({"has no IPoIB interface",
                          "rdma_cm finds peers by IP address, and there is none to find it by",
                          "modprobe ib_ipoib && ip link set ib0 up && " + AddressCure(port)});
    } else if (!HasAddress(view.machine, port.interface)) {
      troubles.push_back({absl::StrCat("has no address on ", port.interface),
                          "nothing can listen on it or be reached over it", AddressCure(port)});
    }
    return;
  }
  const auto routable = [](const Gid& gid) { return !gid.link_local; };
  if (absl::c_none_of(port.gids, routable)) {
    const bool missed = HasAddress(view.machine, port.interface);
    const std::string name = InterfaceOr(port, "its net device");
    troubles.push_back(
        {missed ? absl::StrCat("has no GID for the addresses of ", name)
                : absl::StrCat("has no GID: there is no IPv4 or IPv6 address on ", name),
         "nothing can listen on it or be reached over it",
         missed ? absl::StrCat("ip link set ", name, " down && ip link set ", name, " up")
                : AddressCure(port)});
  } else if (absl::c_none_of(port.gids, [&](const Gid& gid) {
               return routable(gid) && gid.type == "RoCE v2";
             })) {
    troubles.push_back({"has no GID of type RoCE v2",
                        "RoCE v1 is not routed: only peers in the same Ethernet segment reach it",
                        "use a port that speaks RoCE v2, or keep the peers in this segment"});
  }
}

// Returns what prevents connections over `port`.
Troubles TroublesOf(const View& view, const RdmaDevice& device, const Port& port) {
  Troubles troubles;
  if (port.state != "ACTIVE") {
    troubles.push_back({absl::StrCat("is ", port.state, " (", port.physical_state, ")"),
                        "no connection can be made over it, and those there are fail when their "
                        "retries are used up",
                        LinkCure(view, device.name, port)});
  }
  AddAddressTroubles(view, port, troubles);
  return troubles;
}

Troubles TroublesOf(const View& view, const RdmaDevice& device) {
  if (device.iwarp()) {
    return {
        {"is iWARP",
         "Baton refuses it: its queue pairs cannot be made before their connections, which "
         "native workers need",
         "use an InfiniBand or RoCE device; for an Ethernet card without one: modprobe rdma_rxe "
         "&& rdma link add rxe0 type rxe netdev NETDEV"}};
  }
  if (device.node_type != "CA") {
    return {{absl::StrCat("is of type ", device.node_type, ", without reliable connections"),
             "Baton refuses it", "use an InfiniBand or RoCE device"}};
  }
  if (!absl::c_linear_search(view.machine.VerbsDevices(), device.name)) {
    return {{"is known to the kernel, and libibverbs has no provider for it",
             "no program can open it", "apt-get install ibverbs-providers"}};
  }
  return {};
}

// Returns the severity of a finding about `device` or its `port`: a problem if a service needs it.
// Without a configuration, one port that works is enough.
v1::Severity SeverityOf(const View& view, const RdmaDevice& device, const Port* port,
                        bool any_works) {
  if (!view.configured) return any_works ? v1::SEVERITY_WARNING : v1::SEVERITY_PROBLEM;
  const bool needed = absl::c_any_of(view.services, [&](const ServiceNeeds& service) {
    return service.rdma() && view.DeviceOf(service) == &device &&
           (port == nullptr || service.port() == port->number);
  });
  return needed ? v1::SEVERITY_PROBLEM : v1::SEVERITY_WARNING;
}

std::string DescribePort(const Port& port) {
  std::string text = absl::StrCat(port.ethernet ? "RoCE" : "InfiniBand", ", ACTIVE");
  for (const Gid& gid : port.gids) {
    if (gid.link_local || (port.ethernet && gid.type != "RoCE v2")) continue;
    absl::StrAppend(&text, ", ", port.ethernet ? gid.address : absl::StrCat("GID ", gid.address),
                    " (index ", gid.index, ")");
  }
  if (!port.interface.empty()) absl::StrAppend(&text, " on ", port.interface);
  return text;
}

std::string DescribeLimits(const verbs::DeviceLimits& limits) {
  return absl::StrCat("can be opened: ", limits.max_queue_pairs, " queue pairs of ",
                      limits.max_send_requests, " requests, completion queues of ",
                      limits.max_completion_queue_entries, " entries",
                      limits.atomics ? "" : ", no atomics");
}

struct Verdict {
  const RdmaDevice* device = nullptr;
  Troubles troubles;            // of the device as a whole
  std::string opened;           // what it can do; empty: it was not opened
  std::vector<Troubles> ports;  // in the device's order; empty: the device is useless

  bool works() const {
    return troubles.empty() && absl::c_any_of(ports, [](const auto& port) { return port.empty(); });
  }
};

// Opens the device if batond runs as this user. For another user, only the nodes' modes are
// checked.
void Open(const View& view, Verdict& verdict) {
  const RdmaDevice& device = *verdict.device;
  if (!view.identity.self || !MayOpenNodes(view, device) || device.ports.empty()) return;
  const absl::StatusOr<verbs::DeviceLimits> limits =
      view.machine.Limits(device.name, device.ports.front().number);
  if (limits.ok()) {
    verdict.opened = DescribeLimits(*limits);
    return;
  }
  verdict.troubles.push_back(
      {absl::StrCat("cannot be opened: ", std::string(MessageOf(limits.status()))),
       "a driver cannot use it either",
       "dmesg | tail  # where the modes are right: in a container, --device /dev/infiniband; in a "
       "unit, DeviceAllow=char-infiniband_verbs rw"});
}

Verdict Judge(const View& view, const RdmaDevice& device) {
  Verdict verdict;
  verdict.device = &device;
  verdict.troubles = TroublesOf(view, device);
  if (!verdict.troubles.empty()) return verdict;
  Open(view, verdict);
  for (const Port& port : device.ports) verdict.ports.push_back(TroublesOf(view, device, port));
  return verdict;
}

void Tell(const View& view, const Verdict& verdict, bool any_works, Report& report) {
  const RdmaDevice& device = *verdict.device;
  for (const Trouble& trouble : verdict.troubles) {
    report.Add(SeverityOf(view, device, nullptr, any_works), {"device", device.name}, trouble);
  }
  if (!verdict.opened.empty()) report.Ok({"device", device.name}, verdict.opened);
  for (size_t i = 0; i < verdict.ports.size(); ++i) {
    const Port& port = device.ports[i];
    const Place place = {"port", absl::StrCat(device.name, " port ", port.number)};
    for (const Trouble& trouble : verdict.ports[i]) {
      report.Add(SeverityOf(view, device, &port, any_works), place, trouble);
    }
    if (verdict.ports[i].empty()) report.Ok(place, DescribePort(port));
  }
}

}  // namespace

bool MayOpenNodes(const View& view, const RdmaDevice& device) {
  for (const std::string& path : {"/dev/infiniband/" + device.node, std::string(kConnections)}) {
    const std::optional<FileFacts> file = view.machine.Look(path);
    if (!file || !MayOpen(*file, view.identity)) return false;
  }
  return true;
}

void CheckNodes(const View& view, Report& report) {
  for (const RdmaDevice& device : view.devices) {
    if (device.node.empty()) continue;  // ib_uverbs is missing, which another check reports
    CheckNode(view, "/dev/infiniband/" + device.node, device.node_number, {"node", device.name},
              report);
  }
  const std::optional<std::string> number = view.machine.Read("/sys/class/misc/rdma_cm/dev");
  if (number) {
    CheckNode(view, kConnections, *number, {"node", "rdma_cm"}, report);
  }
}

void CheckGroup(const View& view, Report& report) {
  const std::optional<uint32_t> group = view.machine.GroupId(kGroup);
  if (!group) {
    return report.Add(
        v1::SEVERITY_WARNING, {"group"},
        {"there is no group rdma", "access to the card can only be given to everybody or to root",
         absl::StrCat("groupadd --system rdma && ", kInstallRule)});
  }
  report.Ok({"group"},
            absl::StrCat("group rdma exists, gid ", *group, "; user ", view.identity.name,
                         view.identity.uid == 0            ? " needs no membership"
                         : IsMember(view.identity, *group) ? " is a member"
                                                           : " is not a member"));
}

void CheckDevices(const View& view, Report& report) {
  std::vector<Verdict> verdicts;
  for (const RdmaDevice& device : view.devices) verdicts.push_back(Judge(view, device));
  const bool any_works = absl::c_any_of(verdicts, [](const auto& one) { return one.works(); });
  for (const Verdict& verdict : verdicts) Tell(view, verdict, any_works, report);
}

}  // namespace baton::doctor
