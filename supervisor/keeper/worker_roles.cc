#include "supervisor/keeper/worker_roles.h"

#include <set>

namespace baton::keeper {

WorkerRoles RolesOf(const std::vector<WorkerInfo>& workers, ServiceEngine& engine) {
  WorkerRoles roles;
  engine.Run([&] {
    std::set<uint64_t> owners;
    for (uint32_t shard = 0; shard < engine.arena().shape().shards; ++shard) {
      owners.insert(engine.owner(shard).worker_id);
    }
    for (const WorkerInfo& worker : workers) {
      if (owners.count(worker.id) != 0) {
        roles.owners.push_back(worker);
      } else if (engine.IsReady(worker.slot)) {
        roles.standbys.push_back(worker);
      }
    }
  });
  return roles;
}

}  // namespace baton::keeper
