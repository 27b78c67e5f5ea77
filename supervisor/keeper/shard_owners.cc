#include "supervisor/keeper/shard_owners.h"

#include <algorithm>

namespace baton::keeper {
namespace {

bool Contains(const std::vector<WorkerInfo>& workers, uint64_t worker_id) {
  return std::any_of(workers.begin(), workers.end(),
                     [&](const WorkerInfo& worker) { return worker.id == worker_id; });
}

uint32_t ShardCount(const ServiceEngine& engine) { return engine.arena().shape().shards; }

}  // namespace

ShardOwners OwnersOf(ServiceEngine& engine) {
  ShardOwners owners;
  engine.Run([&] {
    for (uint32_t shard = 0; shard < ShardCount(engine); ++shard) {
      const uint64_t owner = engine.owner(shard).worker_id;
      if (owner != 0) owners[shard] = owner;
    }
  });
  return owners;
}

std::vector<ShardMove> MovesBack(ServiceEngine& engine, const std::vector<WorkerInfo>& new_workers,
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
  engine.Run([&] {
    for (uint32_t shard = 0; shard < ShardCount(engine); ++shard) {
      if (!Contains(new_workers, engine.owner(shard).worker_id)) continue;
      moves.push_back({shard, successor_of(shard).slot});
    }
  });
  return moves;
}

bool PromoteOwners(ServiceEngine& engine, const std::vector<WorkerInfo>& new_workers,
                   const std::vector<WorkerInfo>& old_workers) {
  bool all = true;
  engine.Run([&] {
    for (uint32_t shard = 0; shard < ShardCount(engine); ++shard) {
      all = all && Contains(new_workers, engine.owner(shard).worker_id);
    }
    if (!all) return;
    for (const WorkerInfo& worker : new_workers) {
      engine.SetStanding(worker.slot, worker.id, Standing::kFirst);
    }
    for (const WorkerInfo& worker : old_workers) {
      engine.SetStanding(worker.slot, worker.id, Standing::kLast);
    }
  });
  return all;
}

}  // namespace baton::keeper
