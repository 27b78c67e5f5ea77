// The deaths of a native service's owners, as they are counted for "Poison" (lib/arena/layout.md):
// in shared memory, because whoever recovers a shard counts, and may be the next to die.
#ifndef SUPERVISOR_DRIVER_NATIVE_NATIVE_DEATHS_H_
#define SUPERVISOR_DRIVER_NATIVE_NATIVE_DEATHS_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/driver/queue_driver.h"
#include "supervisor/driver/engine/death_count.h"
#include "supervisor/driver/engine/reconciliation.h"

namespace baton::driver_process {

// The valid copy; all zeros if there is none. `baton-driver` may call it while a worker's driver
// stores.
arena::NativeDeaths LoadDeaths(const arena::Arena& arena, uint32_t shard);

// Counts the death that ended the epoch, and does to a connection what follows from `limit` of
// them. The claimant calls it after it has applied what counts of that epoch. It may be killed in
// it: the next claimant does the same again. `death.worker_id` 0: it was no death, but a claimant
// may have died in this. An error: what is blamed cannot be, and nothing was done to it.
absl::StatusOr<std::optional<Poisoning>> CountNativeDeath(arena::Arena* arena,
                                                          driver::QueueDriver* driver,
                                                          uint32_t shard, const Death& death,
                                                          uint32_t limit);
// Once that is told: until then a successor of the claimant finds what is blamed, and tells it.
void ForgetBlamed(arena::Arena* arena, uint32_t shard, bool poisoned);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_NATIVE_NATIVE_DEATHS_H_
