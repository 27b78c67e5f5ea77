// Converts the soft device's faults to text and back. The driver passes them from the service's
// configuration to baton-nic, as one argument.
#ifndef SUPERVISOR_DRIVER_DEVICE_SOFT_FAULTS_H_
#define SUPERVISOR_DRIVER_DEVICE_SOFT_FAULTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "lib/nic/soft_options.h"
#include "proto/baton/v1/config.pb.h"

namespace baton::driver_process {

// Returns the plan in protobuf text format, in one line.
std::string FaultsToText(const v1::FaultPlan& plan);

// Reads what FaultsToText has written. kInvalidArgument: the text is no plan, or the plan is not
// valid.
absl::StatusOr<verbs::soft::FaultPlan> FaultsFromText(const std::string& text);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_DEVICE_SOFT_FAULTS_H_
