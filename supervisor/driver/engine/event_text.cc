#include "supervisor/driver/engine/event_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::driver_process {
namespace {

std::string PortOf(const verbs::DeviceEvent& event, const verbs::DeviceInfo& device) {
  return absl::StrCat("port ", event.port, " of device ", device.name);
}

// Returns " dummy0", or "" if the device does not name its interface.
std::string InterfaceOf(const verbs::DeviceInfo& device) {
  return device.network_interface.empty() ? "" : absl::StrCat(" ", device.network_interface);
}

}  // namespace

DeviceEventText DescribeDeviceEvent(const verbs::DeviceEvent& event,
                                    const verbs::DeviceInfo& device) {
  const std::string said = event.text.empty() ? "" : absl::StrCat(" (", event.text, ")");
  switch (event.type) {
    case verbs::DeviceEventType::kPortUp:
      return {"port_up", absl::StrCat(PortOf(event, device), " is up", said,
                                      ": connections that are left go on, lost ones can be made "
                                      "again")};
    case verbs::DeviceEventType::kPortDown:
      return {"port_down",
              absl::StrCat(PortOf(event, device), " is down", said,
                           ": connections with something to send end when their retries are used "
                           "up, no new ones come; look at the network interface",
                           InterfaceOf(device), ", the cable and the switch")};
    case verbs::DeviceEventType::kAddressesChanged:
      return {"device_addresses_changed",
              absl::StrCat("addresses of ", PortOf(event, device), " have changed", said,
                           ": connections at an address that is gone end with their next message, "
                           "and its listeners hear of no new ones")};
    case verbs::DeviceEventType::kPathMigrated:
      return {"path_migrated", absl::StrCat("queue pair ", event.qp_number, " of device ",
                                            device.name, ": ", event.text)};
    case verbs::DeviceEventType::kQueuePairFailed:
      return {
          "queue_pair_failed",
          absl::StrCat("device ", device.name, " has given up queue pair ", event.qp_number, said,
                       ": its connection is failed, others are not concerned; if it happens "
                       "again, see the kernel's log and the device's firmware")};
    case verbs::DeviceEventType::kCompletionQueueFailed:
      return {"completion_queue_failed",
              absl::StrCat("a completion queue of device ", device.name, " is unusable", said,
                           ": what it had is lost, so all connections are failed and the service "
                           "starts anew; it cannot be overrun by what is posted here, see the "
                           "kernel's log and the device's firmware")};
    case verbs::DeviceEventType::kSharedReceiveQueueLow:
      return {"shared_receive_queue_low",
              absl::StrCat("a shared receive queue of device ", device.name,
                           " has come to its limit", said,
                           ": the service's workers are slow to post receives; when it is empty, "
                           "peers wait. Raise shared_receive_queue_depth if they should not")};
    case verbs::DeviceEventType::kSharedReceiveQueueFailed:
      return {"shared_receive_queue_failed",
              absl::StrCat("a shared receive queue of device ", device.name, " is unusable", said,
                           ": its connections can receive nothing any more")};
    case verbs::DeviceEventType::kLastWorkRequestReached:
      return {"last_work_request_reached",
              absl::StrCat("queue pair ", event.qp_number, " of device ", device.name,
                           " takes nothing from its shared receive queue any more", said)};
    case verbs::DeviceEventType::kDeviceLost:
      return {"device_lost",
              absl::StrCat(
                  "device ", device.name, " is lost: ", event.text,
                  ": all connections are failed, and driver and keeper end; they start anew when "
                  "the device is there again")};
  }
  return {"device_event", absl::StrCat("device ", device.name, ": ", event.text)};
}

std::optional<std::string> Refusals::Tell(std::string_view why, uint64_t now_ns) {
  Reason& reason = Find(why);
  const bool known = reason.why == why;
  if (known && now_ns - reason.told_ns < reason.pause_ns) {
    ++reason.untold;
    return std::nullopt;
  }
  const uint64_t untold = std::exchange(reason.untold, 0);
  std::string text(why);
  if (known && untold > 0) absl::StrAppend(&text, " (", untold, " more were refused like this)");
  if (!known || untold == 0) reason.pauses.Reset();
  reason.pause_ns = static_cast<uint64_t>(reason.pauses.Next().count());
  reason.told_ns = now_ns;
  if (!known) reason.why = std::string(why);
  return text;
}

// Returns the entry of this reason or, if there is none, the one that was reported longest ago.
Refusals::Reason& Refusals::Find(std::string_view why) {
  for (Reason& reason : reasons_) {
    if (reason.why == why) return reason;
  }
  return *std::min_element(reasons_.begin(), reasons_.end(),
                           [](const Reason& a, const Reason& b) { return a.told_ns < b.told_ns; });
}

}  // namespace baton::driver_process
