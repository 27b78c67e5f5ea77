// The move of a service's shards to the new workers of an upgrade, in one step or two, and the
// trial of these workers with them.
#ifndef SUPERVISOR_KEEPER_UPGRADES_SHARD_TRANSFER_H_
#define SUPERVISOR_KEEPER_UPGRADES_SHARD_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "proto/baton/internal/driver.pb.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/keeper_parts.h"
#include "supervisor/keeper/sessions/shard_owners.h"
#include "supervisor/keeper/sessions/worker_session.h"
#include "supervisor/keeper/upgrades/handoffs.h"
#include "supervisor/keeper/upgrades/upgrade_plan.h"

namespace baton::keeper {

// Plans the moves, which the caller makes. Thread-compatible: the management loop's thread.
class ShardTransfer {
 public:
  ShardTransfer(const KeeperParts& context, const v1::UpgradePlan& plan);

  // The next keeper calls Continue() with what Hold() filled.
  void Hold(internal::HeldUpgrade* held) const;
  void Continue(const internal::HeldUpgrade& held);

  // Returns the moves of the next step: the canaries, if the plan has any, and then all others.
  // They count as under way until EndStep(). REQUIRES: `new_workers` is not empty.
  std::vector<ShardMove> BeginStep(std::vector<WorkerInfo> new_workers);
  void EndStep() { moving_ = false; }
  // Returns the moves that lead back to the owners from before the first step.
  std::vector<ShardMove> PlanReturn(const std::vector<WorkerInfo>& new_workers,
                                    const std::vector<WorkerInfo>& old_workers) const;

  // Begins the trial's window after a step. Returns true if the new workers have all shards.
  bool BeginWindow();
  Trial& trial() { return trial_; }

  bool served() const { return served_; }  // shards were handed to new workers
  bool moving() const { return moving_; }  // shards are on their way to the new workers
  size_t step_size() const { return on_their_way_.size(); }
  // Returns true if all shards of the last step are owned by workers of `new_ids`.
  bool HasArrived(const std::set<uint64_t>& new_ids) const;

 private:
  std::vector<uint32_t> NextShards() const;
  size_t CountOwners(size_t new_workers) const;

  const KeeperParts context_;
  const std::set<uint32_t> canary_;     // shards
  const uint32_t planned_workers_;      // 0: as many as there were
  ShardOwners owners_before_;           // when the first shards were handed over
  size_t new_owners_ = 0;               // new workers that get shards; 0: not chosen yet
  std::vector<uint32_t> on_their_way_;  // shards, to the new workers
  Trial trial_;                         // of the new workers
  bool served_ = false, moving_ = false;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_UPGRADES_SHARD_TRANSFER_H_
