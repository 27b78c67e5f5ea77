// What the configured services ask of their devices.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/arena/layout.h"
#include "lib/base/status_text.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

std::string Names(const View& view) {
  return absl::StrJoin(view.devices, ", ", [](std::string* text, const RdmaDevice& device) {
    absl::StrAppend(text, device.name);
  });
}

// The line of the configuration to change.
std::string Change(const View& view, const ServiceNeeds& service, const std::string& line) {
  return absl::StrCat("in ", view.config_file, ", service ", service.name, ": ", line);
}

// Null after a finding.
const RdmaDevice* FindDevice(const View& view, const ServiceNeeds& service, Report& report) {
  const RdmaDevice* const device = view.DeviceOf(service);
  const Place place = {"service", service.name};
  if (device == nullptr) {
    const std::string consequence = "its keeper does not start";
    if (view.devices.empty()) {
      report.Add(v1::SEVERITY_PROBLEM, place,
                 {"is configured for an RDMA device, and there is none", consequence,
                  Change(view, service, "device { soft {} }, or make the device appear (above)")});
    } else if (service.device.empty()) {
      report.Add(
          v1::SEVERITY_PROBLEM, place,
          {absl::StrCat("names no device, and there are several: ", Names(view)), consequence,
           Change(view, service,
                  absl::StrCat("device { rdma { device: \"", view.devices[0].name, "\" } }"))});
    } else {
      report.Add(v1::SEVERITY_PROBLEM, place,
                 {absl::StrCat("device ", service.device, " is not there; there are ", Names(view)),
                  consequence,
                  Change(view, service, absl::StrCat("device: \"", view.devices[0].name, "\""))});
    }
    return nullptr;
  }
  if (device->FindPort(service.port) == nullptr) {
    report.Add(
        v1::SEVERITY_PROBLEM, place,
        {absl::StrCat("device ", device->name, " has no port ", service.port),
         "its keeper does not start",
         Change(view, service,
                absl::StrCat("port: ", device->ports.empty() ? 1 : device->ports[0].number))});
    return nullptr;
  }
  return device;
}

bool CheckListeners(const View& view, const ServiceNeeds& service, const RdmaDevice& device,
                    Report& report) {
  const Port& port = *device.FindPort(service.port);
  if (!port.ethernet) return true;  // its GIDs are not its addresses
  bool reachable = true;
  for (const std::string& host : service.listeners) {
    if (host == "0.0.0.0" || host == "::") continue;
    const auto is_host = [&](const Gid& gid) { return gid.address == host; };
    if (std::any_of(port.gids.begin(), port.gids.end(), is_host)) continue;
    reachable = false;
    report.Add(v1::SEVERITY_PROBLEM, {"service", service.name},
               {absl::StrCat("listens on ", host, ", which is no address of ", device.name,
                             " port ", port.number),
                "peers cannot reach that listener",
                absl::StrCat("ip addr add ", host, "/PREFIX dev ",
                             port.interface.empty() ? "NETDEV" : port.interface, "  # or ",
                             Change(view, service, "another host"))});
  }
  return reachable;
}

bool CheckSizes(const View& view, const ServiceNeeds& service, const RdmaDevice& device,
                const verbs::DeviceLimits& limits, Report& report) {
  const auto refuse = [&](const std::string& what, const std::string& line) {
    report.Add(
        v1::SEVERITY_PROBLEM, {"service", service.name},
        {what, "its keeper does not start, or refuses connections", Change(view, service, line)});
    return false;
  };
  const uint32_t depth = std::max(service.send_requests, service.receive_requests);
  const uint32_t most = std::min(limits.max_send_requests, limits.max_receive_requests);
  if (depth > most) {
    return refuse(absl::StrCat("wants queues of ", depth, " requests, with those of a recovery; ",
                               device.name, " has ", most),
                  "smaller send_queue_depth and receive_queue_depth");
  }
  if (limits.max_scatter_gather < arena::kMaxSges) {
    return refuse(absl::StrCat("wants ", arena::kMaxSges, " pieces in a request; ", device.name,
                               " has ", limits.max_scatter_gather),
                  "another device");
  }
  const uint64_t spare = arena::kShardMarkers + arena::kSpares;
  if (service.completion_queue_entries > limits.max_completion_queue_entries) {
    const uint64_t each = (service.completion_queue_entries - spare) / service.connections;
    const uint64_t fit = limits.max_completion_queue_entries > spare
                             ? (limits.max_completion_queue_entries - spare) / each
                             : 0;
    return refuse(
        absl::StrCat("wants completion queues of ", service.completion_queue_entries, " entries; ",
                     device.name, " has ", limits.max_completion_queue_entries),
        fit > 0 ? absl::StrCat("max_connections: ", fit, ", or smaller queues")
                : "smaller send_queue_depth and receive_queue_depth");
  }
  return true;
}

void CheckQueuePairs(const View& view, const std::map<const RdmaDevice*, uint64_t>& connections,
                     Report& report) {
  for (const auto& [device, count] : connections) {
    const absl::StatusOr<verbs::DeviceLimits> limits =
        view.machine.Limits(device->name, device->ports.front().number);
    if (!limits.ok() || count <= limits->max_queue_pairs) continue;
    report.Add(
        v1::SEVERITY_PROBLEM, {"service"},
        {absl::StrCat("the services on ", device->name, " may have ", count,
                      " connections together; it has ", limits->max_queue_pairs, " queue pairs"),
         "the last of them are refused",
         absl::StrCat("in ", view.config_file, ": smaller max_connections, ",
                      limits->max_queue_pairs, " in all")});
  }
}

}  // namespace

void CheckServices(const View& view, Report& report) {
  if (!view.configured) return;
  std::map<const RdmaDevice*, uint64_t> connections;
  for (const ServiceNeeds& service : view.services) {
    const Place place = {"service", service.name};
    if (!service.rdma) {
      report.Ok(place, "on the soft device: needs no RDMA");
      continue;
    }
    const RdmaDevice* const device = FindDevice(view, service, report);
    if (device == nullptr || device->iwarp()) continue;
    bool fine = CheckListeners(view, service, *device, report);
    const absl::StatusOr<verbs::DeviceLimits> limits =
        view.machine.Limits(device->name, service.port);
    if (!limits.ok()) {
      report.Add(v1::SEVERITY_WARNING, place,
                 {absl::StrCat("the limits of ", device->name,
                               " cannot be read: ", std::string(MessageOf(limits.status()))),
                  "whether the service fits on it is not known",
                  "baton doctor  # again, as a user who may open it"});
      continue;
    }
    connections[device] += service.connections;
    fine = CheckSizes(view, service, *device, *limits, report) && fine;
    if (fine) {
      report.Ok(place, absl::StrCat("fits on ", device->name, " port ", service.port, ": ",
                                    service.connections, " connections"));
    }
  }
  CheckQueuePairs(view, connections, report);
}

}  // namespace baton::doctor
