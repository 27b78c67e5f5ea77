// The succession of a brokered service: the engine itself gives each shard to a worker, ends an
// ownership, and reports the work requests that were outstanding.
#ifndef SUPERVISOR_DRIVER_ENGINE_BROKERED_SUCCESSION_H_
#define SUPERVISOR_DRIVER_ENGINE_BROKERED_SUCCESSION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "lib/arena/arena.h"
#include "lib/base/clock.h"
#include "lib/driver/queue_driver.h"
#include "supervisor/driver/engine/death_count.h"
#include "supervisor/driver/engine/reconciliation.h"
#include "supervisor/driver/engine/succession.h"

namespace baton::driver_process {

struct SuccessionOptions : ServiceOptions {
  // Test builds only: forgets unacknowledged completions when a shard changes hands.
  bool break_recovery = false;
  std::function<uint64_t()> nanoseconds = MonotonicNanoseconds;  // a simulation has its own time
};

// Thread-compatible: the engine's thread.
class BrokeredSuccession final : public Succession {
 public:
  // Applies the next transaction of the shard, like QueueDriver::ApplyNext. The engine provides it.
  using ApplyNext = std::function<driver::CommitOutcome(uint32_t shard, absl::Status* error)>;

  BrokeredSuccession(arena::Arena* arena, EngineListener* listener,
                     const SuccessionOptions& options, ApplyNext apply_next);
  // Call it before any other method. `driver` outlives it.
  void SetDriver(driver::QueueDriver* driver) { driver_ = driver; }
  void SetPoisonDeaths(uint32_t deaths) { options_.poison_deaths = deaths; }

  bool IsIdle(uint32_t slot, uint64_t id) const override;
  void WorkerEnded(uint32_t slot, uint64_t id, std::string_view cause) override;
  void PardonDeath(uint32_t slot, uint64_t id) override;
  void ExplainDeath(uint32_t slot, uint64_t id, std::string_view cause) override;
  void WorkerDead(uint32_t slot, uint64_t id) override;
  uint64_t poisoned_connections(uint32_t shard) const override { return changes_[shard].poisoned; }

  // Called when the owner's next transaction was applied. `released`: that transaction gave the
  // shard up, and the shard may have a successor already.
  void OnCommit(uint32_t shard, bool released);
  // Called when the owner's next transaction was invalid. The worker loses all its shards.
  void OnInvalidCommit(uint32_t shard, const absl::Status& why);

  // Marks the owner for the roster's next WakeNotified, because it has something new.
  void NotifyOwner(uint32_t shard) { NotifyClaimantOrOwner(shard); }
  // Returns true if the shard's owner has not committed anything yet.
  bool AwaitsFirstCommit(uint32_t shard) const { return changes_[shard].begun_ns != 0; }

 private:
  // The change of owner that is under way, from its start to the successor's first commit.
  struct Change {
    uint64_t begun_ns = 0;  // 0: none
    bool planned = false;
    uint64_t awaited_death_id = 0;  // former owner that must be proven dead first; 0: none
    DeathCount deaths;
    uint64_t poisoned = 0;  // connections, in all
  };

  // `await_death`: the worker's shards move only once its process is proven dead.
  void HandleEnd(uint32_t slot, uint64_t id, std::string_view cause, bool await_death);
  void OnReleased(uint32_t shard);
  // The engine applied these transactions of the owner only when its ownership ended.
  struct Rest {
    uint64_t transactions = 0;
    bool released = false;  // the last one gave the shard up
  };
  Rest ApplyRest(uint32_t shard);
  void ApplyAcceptsInto(uint32_t shard);
  EndedOwnership EndOwnership(uint32_t shard, std::string_view cause, const Rest& rest);
  std::optional<Poisoning> CountDeath(uint32_t shard, const EndedOwnership& ended);
  void MakeReport(uint32_t shard, const EndedOwnership& ended);
  void Give(uint32_t shard) override;
  void GiveVacant() override;

  SuccessionOptions options_;
  const ApplyNext apply_next_;
  driver::QueueDriver* driver_ = nullptr;
  std::vector<Change> changes_;  // by shard
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_BROKERED_SUCCESSION_H_
