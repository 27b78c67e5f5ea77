#include "supervisor/keeper/sessions/shard_owners.h"

#include <set>

namespace baton::keeper {

DriverClient::Workers PlacesOf(const std::vector<WorkerInfo>& workers) {
  DriverClient::Workers places;
  for (const WorkerInfo& worker : workers) places.push_back(PlaceOf(worker.slot, worker.id));
  return places;
}

ShardOwners OwnersOf(DriverClient& driver) {
  ShardOwners owners;
  const internal::ShardsSeen seen = driver.LookAtShards();
  for (int shard = 0; shard < seen.shards_size(); ++shard) {
    const uint64_t owner = seen.shards(shard).owner_worker_id();
    if (owner != 0) owners[static_cast<uint32_t>(shard)] = owner;
  }
  return owners;
}

WorkerRoles RolesOf(const std::vector<WorkerInfo>& workers, DriverClient& driver) {
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

std::vector<ShardMove> MovesBack(DriverClient& driver, const std::vector<WorkerInfo>& new_workers,
                                 const std::vector<WorkerInfo>& old_workers,
                                 const ShardOwners& before) {
  std::vector<ShardMove> moves;
  if (old_workers.empty()) return moves;
  const auto successor_of = [&](uint32_t shard) {
    const auto owner = before.find(shard);
    const WorkerInfo* const had_it =
        owner == before.end() ? nullptr : FindWorker(old_workers, owner->second);
    return had_it != nullptr ? had_it->slot : old_workers[shard % old_workers.size()].slot;
  };
  for (const auto& [shard, owner] : OwnersOf(driver)) {
    if (FindWorker(new_workers, owner) != nullptr) moves.push_back({shard, successor_of(shard)});
  }
  return moves;
}

}  // namespace baton::keeper
