// An engine without queues that moves shards between workers as a real one does. What takes a
// worker's commit, or its release, the schedule does.
#ifndef TESTS_SIMULATION_KEEPER_SHARD_ENGINE_H_
#define TESTS_SIMULATION_KEEPER_SHARD_ENGINE_H_

#include <cstdint>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/simulation/context.h"
#include "tests/supervisor/driver/inline_engine.h"

namespace baton::simulation {

class ShardEngine final : public driver_process::testing::InlineEngine {
 public:
  using Standing = driver_process::Standing;

  ShardEngine(arena::Arena* arena, Context& context)
      : InlineEngine(arena), context_(context), shards_(arena->shape().shards) {
    listens = true;
  }

  void AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake,
                 driver_process::StateVersions versions, Standing standing) override;
  void SetReady(uint32_t slot) override;
  void SetSilent(uint32_t slot, uint64_t id, bool silent) override;
  void SetStanding(uint32_t slot, uint64_t id, Standing standing) override;
  void AskToStop(uint32_t slot, uint64_t id) override;
  bool IsReady(uint32_t slot) const override { return roster.CanServe(roster[slot]); }
  bool IsIdle(uint32_t slot, uint64_t id) const override;
  void Retire(uint32_t slot, uint64_t id, bool retired) override;
  void WorkerEnded(uint32_t slot, uint64_t id, std::string_view cause) override;
  void WorkerDead(uint32_t slot, uint64_t id) override;
  void Handoff(uint32_t shard, uint32_t slot, HandoffDone done) override;
  void CancelHandoff(uint32_t shard, const absl::Status& why) override;
  driver_process::ShardOwner owner(uint32_t shard) const override;

  // ---- What a worker does.
  // Gives its shards back, asked or not, and wants no others if it was not asked for them.
  void Release(uint64_t id);
  // Takes part in the next step of a handoff: releases, or commits for the first time.
  bool StepHandoff(uint64_t id);
  void Fence(uint32_t slot) { roster[slot].fenced = true; }
  bool IsMoving(uint32_t shard) const { return shards_[shard].to_id != 0; }

 private:
  struct Shard {
    uint64_t epoch = 0;
    uint64_t owner_id = 0;
    uint32_t slot = arena::kNobody;
    uint64_t to_id = 0;  // that it moves to
    HandoffDone done;
  };

  void Assign(Shard& shard);
  void AssignWaiting();
  void Vacate(Shard& shard);
  void Finish(Shard& shard, const absl::Status& status);

  Context& context_;
  std::vector<Shard> shards_;
  uint64_t last_id_ = 0;
};

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_KEEPER_SHARD_ENGINE_H_
