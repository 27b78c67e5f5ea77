// The network namespaces of services.
#include "absl/strings/str_cat.h"
#include "supervisor/config/network_namespace.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

constexpr uint32_t kCapSysAdmin = 21;  // capability.h

// rxe has this file in sysfs, and no other driver has.
bool IsSoftRoce(const View& view, const RdmaDevice& device) {
  return view.machine.Read("/sys/class/infiniband/" + device.name + "/parent").has_value();
}

// Returns what keeps the service's keeper from its namespace. No message: nothing does.
Trouble TroubleOf(const View& view, const ServiceNeeds& service) {
  const std::string& name = service.network_namespace;
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
  const RdmaDevice* const device = service.rdma ? view.DeviceOf(service) : nullptr;
  if (device != nullptr && IsSoftRoce(view, *device)) {
    return {absl::StrCat("network namespace ", name, ": ", device->name,
                         " is Soft-RoCE, which has connections in the machine's first one alone"),
            consequence,
            absl::StrCat("in ", view.config_file, ", service ", service.name,
                         ": without network_namespace, or device { soft {} }")};
  }
  return {};
}

void CheckNetwork(const View& view, const ServiceNeeds& service, Report& report) {
  const Place place = {"network", service.name};
  const Trouble trouble = TroubleOf(view, service);
  if (!trouble.message.empty()) return report.Add(v1::SEVERITY_PROBLEM, place, trouble);
  // Whether its RDMA device is in it, too, the check of the machine's namespaces tells.
  report.Ok(place, absl::StrCat("in network namespace ", service.network_namespace));
}

}  // namespace

void CheckNetworks(const View& view, Report& report) {
  if (!view.configured) return;
  for (const ServiceNeeds& service : view.services) {
    if (!service.network_namespace.empty()) CheckNetwork(view, service, report);
  }
}

}  // namespace baton::doctor
