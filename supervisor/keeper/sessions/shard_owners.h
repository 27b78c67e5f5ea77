// Plans which of two programs' workers own the shards of a service.
#ifndef SUPERVISOR_KEEPER_SESSIONS_SHARD_OWNERS_H_
#define SUPERVISOR_KEEPER_SESSIONS_SHARD_OWNERS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "supervisor/keeper/service_driver.h"
#include "supervisor/keeper/sessions/worker_sessions.h"
#include "supervisor/keeper/upgrades/handoffs.h"

namespace baton::keeper {

// All ask the driver. On the management loop's thread.

// Workers, by shard; of shards that have an owner.
using ShardOwners = std::map<uint32_t, uint64_t>;
ShardOwners OwnersOf(ServiceDriver& driver);

// Plans the return of the shards that `new_workers` own. A shard returns to its owner in `before`
// if that worker is among `old_workers`. The other shards are spread over `old_workers`. Returns
// no moves if `old_workers` is empty.
std::vector<ShardMove> MovesBack(ServiceDriver& driver, const std::vector<WorkerInfo>& new_workers,
                                 const std::vector<WorkerInfo>& old_workers,
                                 const ShardOwners& before);

// The new workers are the first in standing from now on, and the old ones the last, if every shard
// is a new one's; otherwise nothing changes. Looked at and done in one turn: otherwise one of them
// could die in between, and the old workers, which have the shards then, would be ended.
bool PromoteOwners(ServiceDriver& driver, const std::vector<WorkerInfo>& new_workers,
                   const std::vector<WorkerInfo>& old_workers);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_SESSIONS_SHARD_OWNERS_H_
