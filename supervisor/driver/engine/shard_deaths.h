// Counts the deaths of a shard's owners ("Poison", lib/arena/layout.md). The counts are in shared
// memory, because each native worker that recovers a shard counts, and may be the next to die.
#ifndef SUPERVISOR_DRIVER_ENGINE_SHARD_DEATHS_H_
#define SUPERVISOR_DRIVER_ENGINE_SHARD_DEATHS_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/driver/queue_driver.h"
#include "supervisor/driver/engine/death_count.h"
#include "supervisor/driver/engine/reconciliation.h"

namespace baton::driver_process {

// Returns the valid copy; all zeros if there is none. `baton-driver` may call it while a worker's
// driver stores.
arena::DeathsRecord LoadDeaths(const arena::Arena& arena, uint32_t shard);

// Counts the death that ended `epoch`, and fails the connection of a completion that is blamed
// for `limit` deaths. The claimant calls it after it has applied what counts of that epoch. If the
// claimant is killed in this call, the next one repeats it. `death.worker_id` 0: no death ended the
// epoch, but a claimant may have died in this call. Error: the blamed completion cannot be poisoned
// (QueueDriver::Poison), and nothing was done.
absl::StatusOr<std::optional<Poisoning>> CountOwnerDeath(arena::Arena* arena,
                                                         driver::QueueDriver* driver,
                                                         uint32_t shard, uint64_t epoch,
                                                         const Death& death, uint32_t limit);
// Call it once the poisoning is reported. Until then a successor of the claimant finds what is
// blamed, and reports it.
void ForgetBlamed(arena::Arena* arena, uint32_t shard, bool poisoned);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_SHARD_DEATHS_H_
