// Remote access to ranges of a service's buffers. Each grant is a memory region of the device and a
// GrantRecord in the arena.
//
// Registering and deregistering take time for each page, so both have three steps. The middle step
// may run on another thread (Device::registers_on_any_thread). The grant's place is reserved from
// the first step to the last. The record has the grant while the device has the region.
//
// The driver's thread calls everything except RegisterRange.
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

// First step: returns the place of a new grant of [offset, offset + length) of the buffers.
// `access`: verbs::Access.
absl::StatusOr<uint32_t> ReserveGrant(const arena::Arena& arena, const verbs::Device& device,
                                      DeviceObjects* objects, uint64_t offset, uint64_t length,
                                      uint32_t access);
// Middle step: registers the range of a reserved grant, of which the caller passes a copy.
absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> RegisterRange(const arena::Arena& arena,
                                                                   verbs::Device* device,
                                                                   const GrantRange& range);
// Last step. If `region` is an error, frees the place and returns the error.
absl::Status FinishGrant(const arena::Arena& arena, DeviceObjects* objects, uint32_t grant,
                         absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> region);
// The middle and the last step.
absl::Status RegisterGrant(const arena::Arena& arena, verbs::Device* device, DeviceObjects* objects,
                           uint32_t grant);

// Returns the region, which the caller destroys before FinishRevoke. kNotFound: there is no such
// grant. kUnavailable: it is being registered or revoked.
absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> BeginRevoke(DeviceObjects* objects,
                                                                 uint32_t grant);
void FinishRevoke(const arena::Arena& arena, DeviceObjects* objects, uint32_t grant);
// All three steps.
absl::Status RevokeGrant(const arena::Arena& arena, DeviceObjects* objects, uint32_t grant);

}  // namespace baton::driver

#endif  // LIB_DRIVER_GRANTS_H_
