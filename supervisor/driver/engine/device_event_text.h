// Explains a device's event to operators: its meaning, and what to do.
#ifndef SUPERVISOR_DRIVER_ENGINE_DEVICE_EVENT_TEXT_H_
#define SUPERVISOR_DRIVER_ENGINE_DEVICE_EVENT_TEXT_H_

#include <string>
#include <string_view>

#include "lib/verbs/verbs.h"

namespace baton::driver_process {

struct DeviceEventText {
  std::string_view kind;  // of the event log
  std::string message;
};

DeviceEventText DescribeDeviceEvent(const verbs::DeviceEvent& event,
                                    const verbs::DeviceInfo& device);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_DEVICE_EVENT_TEXT_H_
