// Decides who owns the shards of a brokered service. Gives each shard to a worker, hands it from
// worker to worker, takes it from a dead one, and reports the work requests that were outstanding.
#ifndef SUPERVISOR_DRIVER_ENGINE_SUCCESSION_H_
#define SUPERVISOR_DRIVER_ENGINE_SUCCESSION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/latency_histogram.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "supervisor/driver/engine/death_count.h"
#include "supervisor/driver/engine/reconciliation.h"
#include "supervisor/driver/engine/roster.h"
#include "supervisor/driver/engine/service_engine.h"

namespace baton::driver_process {

struct SuccessionOptions {
  bool outside_effects = false;  // as EngineOptions has these
  uint32_t poison_deaths = 3;
  bool break_recovery = false;
  std::function<uint64_t()> nanoseconds;
};

// Thread-compatible: the engine's thread. What is not explained here is ServiceEngine's.
class Succession {
 public:
  using HandoffDone = ServiceEngine::HandoffDone;
  // Applies the next transaction of the shard, like QueueDriver::ApplyNext. The engine provides it.
  using ApplyNext = std::function<driver::CommitOutcome(uint32_t shard, absl::Status* error)>;

  // `arena` and `listener` outlive it.
  Succession(arena::Arena* arena, EngineListener* listener, SuccessionOptions options,
             ApplyNext apply_next);
  // Call it before any other method. `driver` outlives it.
  void SetDriver(driver::QueueDriver* driver) { driver_ = driver; }
  void SetPoisonDeaths(uint32_t deaths) { options_.poison_deaths = deaths; }

  void AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake, StateVersions versions,
                 Standing standing) {
    roster_.Add(slot, id, std::move(wake), versions, standing);
  }
  void SetStanding(uint32_t slot, uint64_t id, Standing standing);
  void AskToStop(uint32_t slot, uint64_t id);
  void SetReady(uint32_t slot);
  bool IsIdle(uint32_t slot, uint64_t id) const;
  void Retire(uint32_t slot, uint64_t id);
  void SetStalled(uint32_t slot, uint64_t id, bool stalled);
  void WorkerStopped(uint32_t slot, uint64_t id, std::string_view cause);
  void PardonDeath(uint32_t slot, uint64_t id);
  void ExplainDeath(uint32_t slot, uint64_t id, std::string_view cause);
  void WorkerDead(uint32_t slot, uint64_t id);

  void Handoff(uint32_t shard, uint32_t slot, HandoffDone done);
  void CancelHandoff(uint32_t shard, const absl::Status& why);

  // The owner's next transaction was applied. `released`: that transaction gave the shard up, and
  // the shard may have a successor already.
  void OnCommit(uint32_t shard, bool released);
  // The owner's next transaction was invalid. The worker loses all its shards.
  void OnInvalidCommit(uint32_t shard, const absl::Status& why);

  // Marks the owner for the roster's next WakeNotified, because it has something new.
  void NotifyOwner(uint32_t shard);

  Roster& roster() { return roster_; }
  const Roster& roster() const { return roster_; }
  const driver::Ownership& ownership(uint32_t shard) const { return shards_[shard].ownership; }
  // Returns true if the shard's owner has not committed anything yet.
  bool AwaitsFirstCommit(uint32_t shard) const { return shards_[shard].blackout_start_ns != 0; }
  ShardOwner owner(uint32_t shard) const;
  const LatencyHistogram& handoff_blackout(uint32_t shard) const {
    return shards_[shard].handoff_blackout;
  }
  const LatencyHistogram& failover_blackout(uint32_t shard) const {
    return shards_[shard].failover_blackout;
  }
  const ReconciliationReport& last_report(uint32_t shard) const { return shards_[shard].report; }
  const std::string& waiting_reason(uint32_t shard) const { return shards_[shard].waiting_reason; }
  uint64_t poisoned_connections(uint32_t shard) const { return shards_[shard].poisoned; }

 private:
  struct ShardState {
    explicit ShardState(driver::Ownership owner) : ownership(owner) {}
    driver::Ownership ownership;
    std::string waiting_reason = "no worker is ready";
    uint32_t state_version = 0;  // that its last owner who declared one writes; 0: none did
    // The change of owner that is under way, from its start to the successor's first commit.
    uint64_t blackout_start_ns = 0;  // 0: none
    bool planned = false;
    uint64_t asked_epoch = 0;       // the last that was asked to release
    uint64_t awaited_death_id = 0;  // of the former owner; with outside effects. 0: none
    uint64_t handoff_worker_id = 0;
    HandoffDone handoff_done;
    LatencyHistogram handoff_blackout, failover_blackout;
    ReconciliationReport report;
    DeathCount deaths;
    uint64_t poisoned = 0;  // connections, in all
  };

  // `await_death`: its shards move only when its process is proven dead.
  void StopWorker(uint32_t slot, uint64_t id, std::string_view cause, bool await_death);
  void OnFirstCommit(uint32_t shard);
  void OnRefused(uint32_t shard);
  void OnReleased(uint32_t shard);
  EndedOwnership EndOwnership(uint32_t shard, std::string_view cause, bool released);
  std::optional<Poisoning> CountDeath(uint32_t shard, const EndedOwnership& ended);
  void MakeReport(uint32_t shard, const EndedOwnership& ended);
  void Assign(uint32_t shard);
  void AssignWaiting();
  void NameHeirs();
  Roster::Vacancy VacancyOf(uint32_t shard) const;
  void FinishHandoff(uint32_t shard, const absl::Status& status, double blackout_us);

  arena::Arena* arena_;
  EngineListener* listener_;
  SuccessionOptions options_;
  const ApplyNext apply_next_;
  driver::QueueDriver* driver_ = nullptr;
  std::vector<ShardState> shards_;
  Roster roster_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_SUCCESSION_H_
