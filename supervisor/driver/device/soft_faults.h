// Faults of the soft device, on their way from a service's configuration to the process that is its
// NIC: one argument of that.
#ifndef SUPERVISOR_DRIVER_DEVICE_SOFT_FAULTS_H_
#define SUPERVISOR_DRIVER_DEVICE_SOFT_FAULTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "lib/nic/fault_plan.h"
#include "proto/baton/v1/config.pb.h"

namespace baton::driver_process {

// Returns the plan in protobuf text format, in one line.
std::string FaultsToText(const v1::FaultPlan& plan);

// Reads what FaultsToText has written. kInvalidArgument: it is no plan, or one that no valid
// configuration has.
absl::StatusOr<verbs::soft::FaultPlan> FaultsFromText(const std::string& text);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_DEVICE_SOFT_FAULTS_H_
