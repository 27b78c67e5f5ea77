// A native service's driver drains what the former one, which has died, has left, before it serves.
#ifndef SUPERVISOR_DRIVER_NATIVE_DRAIN_H_
#define SUPERVISOR_DRIVER_NATIVE_DRAIN_H_

#include "absl/status/statusor.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/driver/batond_link.h"
#include "supervisor/driver/held_descriptors.h"

namespace baton::driver_process {

// Works for what the former driver has left (adoption.h), until that is over; meanwhile the service
// has no driver that anybody could ask, and its down reason says why. Returns at once when nothing
// is left. SIGUSR1 ends it. False: told to stop. An error: the former's workers may still be there,
// so that the service cannot begin; another driver may have better luck.
absl::StatusOr<bool> DrainFormer(HeldDescriptors* held, const internal::KeeperConfig& config,
                                 BatondLink* batond);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_NATIVE_DRAIN_H_
