#include "supervisor/keeper/shard_owners.h"

#include <algorithm>
#include <cstdint>
#include <set>

namespace baton::keeper {
namespace {

bool Contains(const std::vector<WorkerInfo>& workers, uint64_t worker_id) {
  return std::any_of(workers.begin(), workers.end(),
                     [&](const WorkerInfo& worker) { return worker.id == worker_id; });
}

uint32_t ShardCount(const ServiceEngine& engine) { return engine.arena().shape().shards; }

}  // namespace

size_t CountOwners(ServiceEngine& engine) {
  std::set<uint64_t> owners;
  engine.Run([&] {
    for (uint32_t shard = 0; shard < ShardCount(engine); ++shard) {
      const uint64_t owner = engine.owner(shard).worker_id;
      if (owner != 0) owners.insert(owner);
    }
  });
  return owners.size();
}

std::vector<ShardMove> MovesBetween(ServiceEngine& engine, const std::vector<WorkerInfo>& from,
                                    const std::vector<WorkerInfo>& to) {
  std::vector<ShardMove> moves;
  if (to.empty()) return moves;
  engine.Run([&] {
    for (uint32_t shard = 0; shard < ShardCount(engine); ++shard) {
      if (!Contains(from, engine.owner(shard).worker_id)) continue;
      moves.push_back({shard, to[shard % to.size()].slot});
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
