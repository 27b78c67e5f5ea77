// Finds out which of a service's workers own its shards, and plans the shards' return to former
// owners.
#ifndef SUPERVISOR_KEEPER_SESSIONS_SHARD_OWNERS_H_
#define SUPERVISOR_KEEPER_SESSIONS_SHARD_OWNERS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "supervisor/keeper/driver_client.h"
#include "supervisor/keeper/sessions/worker_sessions.h"
#include "supervisor/keeper/upgrades/handoffs.h"

namespace baton::keeper {

// Functions with a `driver` ask it who owns the shards. Management loop's thread.

// Owners, by shard. A shard without an owner is left out.
using ShardOwners = std::map<uint32_t, uint64_t>;
ShardOwners OwnersOf(DriverClient& driver);

struct WorkerRoles {
  std::vector<WorkerInfo> owners;
  std::vector<WorkerInfo> standbys;  // ready, without shards
};
// Sorts `workers` into owners and ready standbys, and leaves the others out.
WorkerRoles RolesOf(const std::vector<WorkerInfo>& workers, DriverClient& driver);

// Plans the return of the shards that `new_workers` own. A shard returns to its owner in `before`
// if that worker is among `old_workers`. The other shards are spread over `old_workers`. Returns
// no moves if `old_workers` is empty.
std::vector<ShardMove> MovesBack(DriverClient& driver, const std::vector<WorkerInfo>& new_workers,
                                 const std::vector<WorkerInfo>& old_workers,
                                 const ShardOwners& before);

DriverClient::Workers PlacesOf(const std::vector<WorkerInfo>& workers);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_SESSIONS_SHARD_OWNERS_H_
