// Where a service's driver, and with it its keeper, is in the network.
#ifndef SUPERVISOR_DRIVER_DEVICE_SERVICE_NETWORK_H_
#define SUPERVISOR_DRIVER_DEVICE_SERVICE_NETWORK_H_

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/v1/config.pb.h"

namespace baton::driver_process {

// Takes the process, which has one thread and no device yet, into the network namespace of the
// service. Returns the file of that in which it was, batond's, to start workers' programs in; none
// when it is the same. root gives up CAP_SYS_ADMIN with it, which nothing else here needs; another
// user keeps what it was given, without which none of its programs could go back.
absl::StatusOr<FileDescriptor> EnterServiceNetwork(const v1::ServiceConfig& service);

// The same for a program that is executed in that namespace already: root gives up CAP_SYS_ADMIN,
// which it has again. `batonds_network`: what EnterServiceNetwork returned before.
absl::Status StayInServiceNetwork(const FileDescriptor& batonds_network);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_DEVICE_SERVICE_NETWORK_H_
