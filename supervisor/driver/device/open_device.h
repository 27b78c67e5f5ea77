// Opens the device that a service is configured to use.
#ifndef SUPERVISOR_DRIVER_DEVICE_OPEN_DEVICE_H_
#define SUPERVISOR_DRIVER_DEVICE_OPEN_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "lib/verbs/verbs.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/driver/device/nic_process.h"

namespace baton::driver_process {

struct OpenedDevice {
  std::unique_ptr<verbs::Device> device;
  std::unique_ptr<NicProcess> nic;  // null: the device is hardware, or the kernel's
};

// REQUIRES: this process is in the service's network namespace, and the service in `config` is
// valid and complete. An error names the field of the configuration.
absl::StatusOr<OpenedDevice> OpenDevice(const internal::KeeperConfig& config);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_DEVICE_OPEN_DEVICE_H_
