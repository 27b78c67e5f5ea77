// Moves a service's driver, and with it its keeper, into the service's network namespace, and opens
// the device that the service is configured to use.
#ifndef SUPERVISOR_DRIVER_DEVICE_OPEN_DEVICE_H_
#define SUPERVISOR_DRIVER_DEVICE_OPEN_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/verbs.h"
#include "proto/baton/internal/keeper.pb.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/driver/device/nic_process.h"

namespace baton::driver_process {

// Moves this process into the service's network namespace. REQUIRES: the process has one thread and
// no device yet. Returns the file of batond's namespace, which it leaves and in which workers'
// programs start; none if both are the same. A root process gives up CAP_SYS_ADMIN, which nothing
// else here needs. Another user keeps it, because its programs could not go back without it.
absl::StatusOr<FileDescriptor> EnterServiceNetwork(const v1::ServiceConfig& service);

// Called by a program that is executed in the service's namespace: a root process, to which
// execve(2) gave CAP_SYS_ADMIN again, gives it up. `batonds_network`: from EnterServiceNetwork.
absl::Status StayInServiceNetwork(const FileDescriptor& batonds_network);

struct OpenedDevice {
  std::unique_ptr<verbs::Device> device;
  std::unique_ptr<NicProcess> nic;  // null: the device is hardware, or the kernel's
};

// REQUIRES: this process is in the service's network namespace, and the service in `config` is
// valid and complete. An error names the field of the configuration.
absl::StatusOr<OpenedDevice> OpenDevice(const internal::KeeperConfig& config);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_DEVICE_OPEN_DEVICE_H_
