// Remote access to ranges of a service's buffers: a memory region of the device and a GrantRecord
// in the arena each.
//
// To register or deregister a range takes time for each of its pages. So both are in three steps,
// of which the one in the middle may be on another thread (Device::registers_on_any_thread). From
// the first to the last the grant's place is nobody else's. The record says that there is a grant
// once the device has the region, and until it has it no more.
//
// Thread-compatible but for RegisterRange: the driver's thread.
#ifndef LIB_DRIVER_GRANTS_H_
#define LIB_DRIVER_GRANTS_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/driver/device_objects.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

// Returns the place of a new grant of [offset, offset + length) of the buffers. `access`:
// verbs::Access.
absl::StatusOr<uint32_t> ReserveGrant(const arena::Arena& arena, const verbs::Device& device,
                                      DeviceObjects* objects, uint64_t offset, uint64_t length,
                                      uint32_t access);
// The step in the middle. `grant`: a copy of one that is reserved.
struct GrantRange {
  uint64_t offset = 0;
  uint64_t length = 0;
  uint32_t access = 0;
};
GrantRange RangeOf(const DeviceObjects& objects, uint32_t grant);
absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> RegisterRange(const arena::Arena& arena,
                                                                   verbs::Device* device,
                                                                   const GrantRange& range);
// An error is that of `region`, and the place is free again.
absl::Status FinishGrant(const arena::Arena& arena, DeviceObjects* objects, uint32_t grant,
                         absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> region);
// The last two steps at once.
absl::Status RegisterGrant(const arena::Arena& arena, verbs::Device* device, DeviceObjects* objects,
                           uint32_t grant);

// Returns the region, which the caller destroys before FinishRevoke. kNotFound: there is no such
// grant. kUnavailable: it is being registered or revoked.
absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> BeginRevoke(DeviceObjects* objects,
                                                                 uint32_t grant);
void FinishRevoke(const arena::Arena& arena, DeviceObjects* objects, uint32_t grant);
// All three steps at once.
absl::Status RevokeGrant(const arena::Arena& arena, DeviceObjects* objects, uint32_t grant);

}  // namespace baton::driver

#endif  // LIB_DRIVER_GRANTS_H_
