// Writes what operators read of a device's events and of refused connections.
#ifndef SUPERVISOR_DRIVER_ENGINE_EVENT_TEXT_H_
#define SUPERVISOR_DRIVER_ENGINE_EVENT_TEXT_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lib/base/pauses.h"
#include "lib/verbs/verbs.h"

namespace baton::driver_process {

struct DeviceEventText {
  std::string_view kind;  // of the event log
  std::string message;
};

// Explains the event: its meaning, and what to do.
DeviceEventText DescribeDeviceEvent(const verbs::DeviceEvent& event,
                                    const verbs::DeviceInfo& device);

// Limits how often operators are told of refused connections, because peers try again and again.
// Thread-compatible.
class Refusals {
 public:
  // Returns the text to report. Returns nothing, and counts the refusal, if the same reason was
  // reported recently. While refusals continue, that pause grows from a second to a minute.
  std::optional<std::string> Tell(std::string_view why, uint64_t now_ns);

 private:
  struct Reason {
    std::string why;  // empty: the entry is free
    uint64_t told_ns = 0;
    BackOff pauses{std::chrono::seconds(1), std::chrono::minutes(1)};
    uint64_t pause_ns = 0;
    uint64_t untold = 0;
  };
  Reason& Find(std::string_view why);

  std::array<Reason, 8> reasons_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_EVENT_TEXT_H_
