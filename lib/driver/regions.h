// A region is memory of a worker's own, which the device reads for sends and for peers' READs: a
// range of a memfd that the driver has mapped and registered, and a RegionRecord in the arena. It
// is the service's. Drivers of later owners find it by its record when they post the requests of a
// former owner, so it stays until a worker unregisters it.
//
// device_objects.h has the steps of registering and deregistering, which are those of grants.
#ifndef LIB_DRIVER_REGIONS_H_
#define LIB_DRIVER_REGIONS_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/driver/device_objects.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

// kInvalidArgument: `memfd`, which workers know by `number`, is no memfd, or is not sealed as it
// has to be. Never waits. The caller checks a worker's descriptor before it makes a copy: to close
// a copy of another file may wait for a file system that does not answer.
absl::Status CheckMemfd(int memfd, uint64_t number);

// First step: returns the place of a new region, an arena::GrantOfRegion(). REQUIRES: the range's
// `descriptor` and `memfd` are set. kInvalidArgument names what is wrong with the range; the memfd
// itself is looked at in the middle step.
absl::StatusOr<uint32_t> ReserveRegion(DeviceObjects* objects, const GrantRange& range);

// Middle step, any thread that RegisterRange() may run on: maps the memfd and registers the range.
// kInvalidArgument: it is no memfd, is not sealed as it has to be, or is too short.
absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> RegisterRegion(verbs::Device* device,
                                                                    const GrantRange& range);

// Last step: stores the record of what RegisterRegion() has returned, `grant.region`.
void PublishRegion(const arena::Arena& arena, uint32_t region, const DeviceObjects::Grant& grant);

// Begins to deregister: clears the record, so that no work request can name the region any more.
// kFailedPrecondition: some that were committed name it and have not completed.
//
// The caller is the driver's thread, or `baton-driver` while native workers go on. Takes a cache
// line of each connection.
absl::Status WithdrawRegion(const arena::Arena& arena, uint32_t region);

// Sets whether processes that are forked from now on have the memory of regions mapped, so that one
// can follow this one.
void SetRegionsInherited(const DeviceObjects& objects, bool inherited);
// Called in a process that follows a dead `baton-driver`, after Device::TakeOver(): takes over the
// grants and regions that both knew. What the dead one had begun meanwhile and told nobody is
// withdrawn, and what it had begun to revoke is revoked.
void TakeOverGrants(const arena::Arena& arena, verbs::Device* device, DeviceObjects* objects);

}  // namespace baton::driver

#endif  // LIB_DRIVER_REGIONS_H_
