// Remote access to ranges of a service's buffers: a memory region of the device and a GrantRecord
// in the arena each.
#ifndef LIB_DRIVER_GRANTS_H_
#define LIB_DRIVER_GRANTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/driver/device_objects.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

// Returns the slot of a new grant of [offset, offset + length) of the buffers. `access`:
// verbs::Access.
absl::StatusOr<uint32_t> GrantAccess(const arena::Arena& arena, verbs::Device* device,
                                     DeviceObjects* objects, uint64_t offset, uint64_t length,
                                     uint32_t access);
absl::Status RevokeAccess(const arena::Arena& arena, DeviceObjects* objects, uint32_t grant);

}  // namespace baton::driver

#endif  // LIB_DRIVER_GRANTS_H_
