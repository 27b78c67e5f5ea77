#include "supervisor/keeper/sessions/worker_roles.h"

#include <set>

namespace baton::keeper {

WorkerRoles RolesOf(const std::vector<WorkerInfo>& workers, ServiceDriver& driver) {
  WorkerRoles roles;
  const internal::ShardsSeen seen = driver.LookAtShards();
  std::set<uint64_t> owners;
  for (const internal::ShardSeen& shard : seen.shards()) owners.insert(shard.owner_worker_id());
  const std::set<uint32_t> ready(seen.ready_slots().begin(), seen.ready_slots().end());
  for (const WorkerInfo& worker : workers) {
    if (owners.count(worker.id) != 0) {
      roles.owners.push_back(worker);
    } else if (ready.count(worker.slot) != 0) {
      roles.standbys.push_back(worker);
    }
  }
  return roles;
}

}  // namespace baton::keeper
