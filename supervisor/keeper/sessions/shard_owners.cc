#include "supervisor/keeper/sessions/shard_owners.h"

#include <algorithm>

namespace baton::keeper {
namespace {

bool Contains(const std::vector<WorkerInfo>& workers, uint64_t worker_id) {
  return std::any_of(workers.begin(), workers.end(),
                     [&](const WorkerInfo& worker) { return worker.id == worker_id; });
}

ServiceDriver::Workers PlacesOf(const std::vector<WorkerInfo>& workers) {
  ServiceDriver::Workers places;
  for (const WorkerInfo& worker : workers) {
    internal::WorkerPlace& place = places.emplace_back();
    place.set_slot(worker.slot);
    place.set_id(worker.id);
  }
  return places;
}

}  // namespace

ShardOwners OwnersOf(ServiceDriver& driver) {
  ShardOwners owners;
  const internal::ShardsSeen seen = driver.LookAtShards();
  for (int shard = 0; shard < seen.shards_size(); ++shard) {
    const uint64_t owner = seen.shards(shard).owner_worker_id();
    if (owner != 0) owners[static_cast<uint32_t>(shard)] = owner;
  }
  return owners;
}

std::vector<ShardMove> MovesBack(ServiceDriver& driver, const std::vector<WorkerInfo>& new_workers,
                                 const std::vector<WorkerInfo>& old_workers,
                                 const ShardOwners& before) {
  std::vector<ShardMove> moves;
  if (old_workers.empty()) return moves;
  const auto successor_of = [&](uint32_t shard) {
    const auto had_it =
        std::find_if(old_workers.begin(), old_workers.end(), [&](const WorkerInfo& worker) {
          const auto owner = before.find(shard);
          return owner != before.end() && owner->second == worker.id;
        });
    return had_it != old_workers.end() ? *had_it : old_workers[shard % old_workers.size()];
  };
  for (const auto& [shard, owner] : OwnersOf(driver)) {
    if (Contains(new_workers, owner)) moves.push_back({shard, successor_of(shard).slot});
  }
  return moves;
}

bool PromoteOwners(ServiceDriver& driver, const std::vector<WorkerInfo>& new_workers,
                   const std::vector<WorkerInfo>& old_workers) {
  return driver.Promote(PlacesOf(new_workers), PlacesOf(old_workers));
}

}  // namespace baton::keeper
