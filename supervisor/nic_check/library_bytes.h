#ifndef SUPERVISOR_NIC_CHECK_LIBRARY_BYTES_H_
#define SUPERVISOR_NIC_CHECK_LIBRARY_BYTES_H_

#include <string>

#include "absl/status/statusor.h"
#include "supervisor/nic_check/checked_device.h"

namespace baton::nic_check {

// Has this machine's libmlx5 post requests, and our driver the same ones into a copy of the queue.
// An error tells of the first that differs. (tests/lib/nic/oracle has all kinds, at all places.)
absl::StatusOr<std::string> RequestsAreLibrarys(CheckedDevice* device);

}  // namespace baton::nic_check

#endif  // SUPERVISOR_NIC_CHECK_LIBRARY_BYTES_H_
