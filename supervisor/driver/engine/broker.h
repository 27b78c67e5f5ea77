// The driver of a brokered service's shards: applies what their owners commit, moves completions to
// their logs, and moves the shards between workers (BrokeredShards). It knows owners by the arena
// alone.
#ifndef SUPERVISOR_DRIVER_ENGINE_BROKER_H_
#define SUPERVISOR_DRIVER_ENGINE_BROKER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "lib/arena/arena.h"
#include "lib/driver/queue_driver.h"
#include "supervisor/driver/engine/brokered_shards.h"
#include "supervisor/driver/engine/engine_listener.h"
#include "supervisor/driver/engine/post_budget.h"
#include "supervisor/driver/engine/worker_wakes.h"

namespace baton::driver_process {

struct BrokerOptions : BrokeredOptions {
  // Tests only: the owner of a shard has its driver called, with Drive.
  bool owners_drive = false;
};

// Thread-compatible: the engine's thread. It never waits for a worker: an owner that is slow, hung
// or dead delays its own shards only.
class Broker {
 public:
  // The pointers outlive it.
  Broker(arena::Arena* arena, EngineListener* listener, WorkerWakes* wakes,
         const BrokerOptions& options);
  // Call it before any other method. `driver` outlives it.
  void SetDriver(driver::QueueDriver* driver);

  // Does what there is to do for the shards, in one pass. Returns whether there was something.
  bool TurnShards();
  // Returns whether owners have changed since the last call: Succession::LookAtShards is due then.
  bool TakeChanges() { return shards_.TakeNews(); }
  // With owners_drive, the owner of the shard calls this: it applies what the owner has committed,
  // and moves completions to its log.
  void Drive(uint32_t shard);
  // Marks the shard's owner for the next WakeNotified, because it has something new.
  void NotifyOwner(uint32_t shard);

  // Requests notifications. Returns true if nothing is left to do for the shards.
  bool MaySleep();
  // How long a sleep may be, because time alone makes work; -1: as long as no signal comes.
  int LongestSleepMs();

  // See ServiceEngine.
  void SetPostRates(uint32_t of_service, uint32_t of_worker);
  void RefillBudget(uint32_t slot);  // of a new worker

  // The device is lost. Begins to end all connections, whose owners find the ends in their logs.
  void BeginLoss(absl::Status why);
  bool is_lost() const { return loss_.has_value(); }
  const absl::Status& why_lost() const { return loss_->why; }
  // Returns true when all have ended. REQUIRES: is_lost().
  bool ContinueLoss();

  BrokeredShards& shards() { return shards_; }

 private:
  struct Loss {
    absl::Status why;
    uint64_t deadline_ns = 0;  // for the connections to end by themselves
  };

  bool IsLeftToOwner(uint32_t shard) const;
  driver::CommitOutcome ApplyNext(uint32_t shard, absl::Status* error);
  bool ApplyCommits(uint32_t shard);
  bool PollShard(uint32_t shard);
  bool HasCommitsToApply(uint32_t shard);
  uint64_t NanosecondsToWait(uint32_t shard);
  uint32_t shard_count() const { return arena_.shape().shards; }

  arena::Arena& arena_;
  WorkerWakes& wakes_;
  const BrokerOptions options_;
  driver::QueueDriver* driver_ = nullptr;
  BrokeredShards shards_;
  std::vector<uint8_t> unreadable_;     // by shard: its completion queue cannot be polled
  std::unique_ptr<PostBudget> budget_;  // null: everything is posted at once
  std::optional<Loss> loss_;            // of the device
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_BROKER_H_
