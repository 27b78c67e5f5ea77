// The soft device as a client of a NIC: its queues are executed outside of it.
#ifndef LIB_VERBS_SOFT_NIC_DEVICE_H_
#define LIB_VERBS_SOFT_NIC_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "lib/verbs/soft/soft_device.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::soft {

// Makes a device with a NIC of its own, which Progress() turns. It registers any memory, and has
// its NIC send at once what was posted. What is forked from its process cannot use it.
absl::StatusOr<std::unique_ptr<Device>> CreateNicDevice(const SoftDeviceOptions& options);

}  // namespace baton::verbs::soft

#endif  // LIB_VERBS_SOFT_NIC_DEVICE_H_
