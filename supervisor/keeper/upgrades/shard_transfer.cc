#include "supervisor/keeper/upgrades/shard_transfer.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "lib/arena/arena.h"

namespace baton::keeper {

ShardTransfer::ShardTransfer(const KeeperParts& context, const v1::UpgradePlan& plan)
    : context_(context),
      canary_(plan.canary_shards().begin(), plan.canary_shards().end()),
      planned_workers_(plan.workers()),
      trial_(context_.driver, plan.gates()) {}

void ShardTransfer::Hold(internal::HeldUpgrade* held) const {
  held->mutable_owners_before()->insert(owners_before_.begin(), owners_before_.end());
  held->set_new_owners(static_cast<uint32_t>(new_owners_));
  for (const uint32_t shard : on_their_way_) held->add_on_their_way(shard);
  held->mutable_acknowledged()->insert(trial_.acknowledged().begin(), trial_.acknowledged().end());
  held->set_served(served_);
}

void ShardTransfer::Continue(const internal::HeldUpgrade& held) {
  owners_before_ = ShardOwners(held.owners_before().begin(), held.owners_before().end());
  new_owners_ = held.new_owners();
  on_their_way_.assign(held.on_their_way().begin(), held.on_their_way().end());
  trial_.ContinueWindow({held.acknowledged().begin(), held.acknowledged().end()});
  served_ = held.served();
}

std::vector<ShardMove> ShardTransfer::BeginStep(std::vector<WorkerInfo> new_workers) {
  // Computed only in the first step: in the second, some of the owners are new workers already.
  if (new_owners_ == 0) {
    owners_before_ = OwnersOf(context_.driver);
    new_owners_ = std::max<size_t>(1, CountOwners(new_workers.size()));
  }
  new_workers.resize(std::min(new_workers.size(), new_owners_));
  std::vector<ShardMove> moves;
  on_their_way_ = NextShards();
  for (const uint32_t shard : on_their_way_) {
    moves.push_back({shard, new_workers[shard % new_workers.size()].slot});
  }
  served_ = moving_ = true;
  return moves;
}

std::vector<uint32_t> ShardTransfer::NextShards() const {
  std::vector<uint32_t> shards;
  for (uint32_t shard = 0; shard < context_.config.service().shards(); ++shard) {
    const bool first = canary_.empty() || canary_.count(shard) != 0;
    const bool turn = served_ ? !trial_.HasShard(shard) : first;
    if (turn) shards.push_back(shard);
  }
  return shards;
}

// Returns among how many of the new workers the shards are spread. If the keeper keeps standbys
// running, there are more workers than owners. Then as many new workers own shards as old ones did.
size_t ShardTransfer::CountOwners(size_t new_workers) const {
  const bool standbys = arena::IsNative(context_.driver.arena().shape()) ||
                        context_.policies.policy().hot_standbys() != 0;
  if (planned_workers_ != 0 || !standbys) return new_workers;
  std::set<uint64_t> owners;
  for (const auto& [shard, owner] : owners_before_) owners.insert(owner);
  return owners.size();
}

std::vector<ShardMove> ShardTransfer::PlanReturn(const std::vector<WorkerInfo>& new_workers,
                                                 const std::vector<WorkerInfo>& old_workers) const {
  return MovesBack(context_.driver, new_workers, old_workers, owners_before_);
}

bool ShardTransfer::BeginWindow() {
  trial_.BeginWindow(on_their_way_);
  return trial_.shard_count() == context_.config.service().shards();
}

bool ShardTransfer::HasArrived(const std::set<uint64_t>& new_ids) const {
  const ShardOwners owners = OwnersOf(context_.driver);
  return absl::c_all_of(on_their_way_, [&](uint32_t shard) {
    const auto owner = owners.find(shard);
    return owner != owners.end() && new_ids.count(owner->second) != 0;
  });
}

}  // namespace baton::keeper
