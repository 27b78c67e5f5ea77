// The device that a service is configured to use.
#ifndef SUPERVISOR_KEEPER_OPEN_DEVICE_H_
#define SUPERVISOR_KEEPER_OPEN_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "lib/verbs/verbs.h"
#include "proto/baton/v1/config.pb.h"

namespace baton::keeper {

// In the network namespace of the service, where the process is. `service` is valid and complete.
// An error names its field.
absl::StatusOr<std::unique_ptr<verbs::Device>> OpenDevice(const v1::ServiceConfig& service);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_OPEN_DEVICE_H_
