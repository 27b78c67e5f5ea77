// Checks what the configured services need of their devices and networks.
#include <map>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status.h"
#include "supervisor/config/network_namespace.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

std::string Names(const View& view) {
  return absl::StrJoin(view.devices, ", ", [](std::string* text, const RdmaDevice& device) {
    absl::StrAppend(text, device.name);
  });
}

// Returns null after it has added a finding.
const RdmaDevice* FindDevice(const View& view, const ServiceNeeds& service, Report& report) {
  const auto refuse = [&](const std::string& why, const std::string& line) {
    report.Add(v1::SEVERITY_PROBLEM, {"service", service.name()},
               {why, "its driver does not start", view.Change(service, line)});
    return nullptr;
  };
  if (view.devices.empty()) {
    return refuse("is configured for an RDMA device, and there is none",
                  "device { soft {} }, or make the device appear (above)");
  }
  const RdmaDevice* const device = view.DeviceOf(service);
  const std::string& wanted = service.config.device().rdma().device();
  const std::string& first = view.devices[0].name;
  if (device == nullptr && wanted.empty()) {
    return refuse(absl::StrCat("names no device, and there are several: ", Names(view)),
                  absl::StrCat("device { rdma { device: \"", first, "\" } }"));
  }
  if (device == nullptr) {
    return refuse(absl::StrCat("device ", wanted, " is not there; there are ", Names(view)),
                  absl::StrCat("device: \"", first, "\""));
  }
  if (device->FindPort(service.port()) == nullptr) {
    return refuse(absl::StrCat("device ", device->name, " has no port ", service.port()),
                  absl::StrCat("port: ", device->ports.empty() ? 1 : device->ports[0].number));
  }
  return device;
}

void CheckListeners(const View& view, const ServiceNeeds& service, const RdmaDevice& device,
                    Report& report) {
  const Port& port = *device.FindPort(service.port());
  if (!port.ethernet) return;  // its GIDs are not its addresses
  for (const v1::ListenerConfig& listener : service.config.listeners()) {
    const std::string& host = listener.host();
    if (host == "0.0.0.0" || host == "::") continue;
    if (absl::c_any_of(port.gids, [&](const Gid& gid) { return gid.address == host; })) continue;
    report.Add(v1::SEVERITY_PROBLEM, {"service", service.name()},
               {absl::StrCat("listens on ", host, ", which is no address of ", device.name,
                             " port ", port.number),
                "peers cannot reach that listener",
                absl::StrCat("ip addr add ", host, "/PREFIX dev ",
                             port.interface.empty() ? "NETDEV" : port.interface, "  # or ",
                             view.Change(service, "another host"))});
  }
}

// Returns the most connections with which the service would fit, and about as many queue pairs for
// each as it has; 0: fewer connections do not help.
uint32_t FittingConnections(const ServiceNeeds& service, const verbs::DeviceLimits& limits) {
  arena::Shape shape = service.shape;
  uint32_t fits = 0;
  uint32_t too_many = shape.connections;
  const auto share = [&](uint32_t queue_pairs) {
    const uint64_t all = uint64_t{queue_pairs} * shape.connections;
    return static_cast<uint32_t>((all + service.shape.connections - 1) / service.shape.connections);
  };
  while (fits + 1 < too_many) {
    shape.connections = fits + (too_many - fits) / 2;
    shape.pooled_queue_pairs = share(service.shape.pooled_queue_pairs);
    shape.brokered_queue_pairs = share(service.shape.brokered_queue_pairs);
    const driver::DeviceNeeds needs = driver::NeedsOf(shape, service.of_device.makes_pools);
    const bool ok = driver::CheckLimits(needs, limits, "").ok();
    (ok ? fits : too_many) = shape.connections;
  }
  return fits;
}

void CheckSizes(const View& view, const ServiceNeeds& service, const RdmaDevice& device,
                const verbs::DeviceLimits& limits, Report& report) {
  const absl::Status status = driver::CheckLimits(service.of_device, limits, device.name);
  if (status.ok()) return;
  const uint32_t fits = FittingConnections(service, limits);
  report.Add(v1::SEVERITY_PROBLEM, {"service", service.name()},
             {std::string(MessageOf(status)), "its driver does not start",
              view.Change(service, fits > 0 ? absl::StrCat("max_connections: ", fits,
                                                           "  # or what else the message names")
                                            : "what the message names")});
}

void CheckQueuePairs(const View& view, const std::map<const RdmaDevice*, uint64_t>& queue_pairs,
                     Report& report) {
  for (const auto& [device, count] : queue_pairs) {
    const absl::StatusOr<verbs::DeviceLimits> limits =
        view.machine.Limits(device->name, device->ports.front().number);
    if (!limits.ok() || count <= limits->max_queue_pairs) continue;
    report.Add(v1::SEVERITY_PROBLEM, {"service"},
               {absl::StrCat("the services on ", device->name, " may need ", count,
                             " queue pairs together; it has ", limits->max_queue_pairs),
                "the last connections are refused, or a native service does not start",
                absl::StrCat("in ", view.config_file,
                             ": smaller max_connections; a native service takes two and a quarter "
                             "for each, a brokered one on Soft-RoCE more with each shard")});
  }
}

constexpr uint32_t kCapSysAdmin = 21;  // capability.h

// Returns what keeps the service's driver from its namespace. No message: nothing does.
Trouble TroubleOf(const View& view, const ServiceNeeds& service) {
  const std::string& name = service.config.network_namespace();
  const std::string consequence = "its driver does not start";
  if (const absl::Status status = view.machine.LookForNetworkNamespace(name); !status.ok()) {
    return {absl::StrCat("network namespace ", name, ": ", status.message()), consequence,
            NetworkNamespaceCure(name, status)};
  }
  if (!HasCapability(view, kCapSysAdmin)) {
    return {absl::StrCat("network namespace ", name, ": ", view.identity.name,
                         " has no CAP_SYS_ADMIN, which entering it takes"),
            consequence, NetworkNamespaceCure(name, absl::PermissionDeniedError(""))};
  }
  const RdmaDevice* const device = service.rdma() ? view.DeviceOf(service) : nullptr;
  if (device != nullptr && view.IsSoftRoce(*device)) {
    return {absl::StrCat("network namespace ", name, ": ", device->name,
                         " is Soft-RoCE, which has connections in the machine's first one alone"),
            consequence, view.Change(service, "without network_namespace, or device { soft {} }")};
  }
  return {};
}

void CheckNetwork(const View& view, const ServiceNeeds& service, Report& report) {
  const Place place = {"network", service.name()};
  const Trouble trouble = TroubleOf(view, service);
  if (!trouble.message.empty()) return report.Add(v1::SEVERITY_PROBLEM, place, trouble);
  // CheckNamespaces reports whether the RDMA device is in it, too.
  report.Ok(place, absl::StrCat("in network namespace ", service.config.network_namespace()));
}

}  // namespace

void CheckServices(const View& view, Report& report) {
  if (!view.configured) return;
  std::map<const RdmaDevice*, uint64_t> queue_pairs;
  for (const ServiceNeeds& service : view.services) {
    const Place place = {"service", service.name()};
    if (!service.rdma()) {
      report.Ok(place, "on the soft device: needs no RDMA");
      continue;
    }
    const RdmaDevice* const device = FindDevice(view, service, report);
    if (device == nullptr || device->iwarp()) continue;
    const int findings = report.findings();
    CheckListeners(view, service, *device, report);
    const absl::StatusOr<verbs::DeviceLimits> limits =
        view.machine.Limits(device->name, service.port());
    if (!limits.ok()) {
      report.Add(v1::SEVERITY_WARNING, place,
                 {absl::StrCat("the limits of ", device->name,
                               " cannot be read: ", std::string(MessageOf(limits.status()))),
                  "whether the service fits on it is not known",
                  "baton doctor  # again, as a user who may open it"});
      continue;
    }
    queue_pairs[device] += service.of_device.queue_pairs;
    CheckSizes(view, service, *device, *limits, report);
    if (report.findings() == findings) {
      report.Ok(place, absl::StrCat("fits on ", device->name, " port ", service.port(), ": ",
                                    service.shape.connections, " connections"));
    }
  }
  CheckQueuePairs(view, queue_pairs, report);
}

void CheckNetworks(const View& view, Report& report) {
  if (!view.configured) return;
  for (const ServiceNeeds& service : view.services) {
    if (!service.config.network_namespace().empty()) CheckNetwork(view, service, report);
  }
}

}  // namespace baton::doctor
