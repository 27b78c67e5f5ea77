// Inside the worker library: how a worker waits until its Poll has something to do.
#ifndef WORKER_WAIT_LOOP_H_
#define WORKER_WAIT_LOOP_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/atomic_access.h"
#include "lib/arena/layout.h"
#include "lib/base/pauses.h"
#include "worker/keeper_watch.h"
#include "worker/ownership_changes.h"
#include "worker/worker.h"
#include "worker/worker_notices.h"
#include "worker/worker_shards.h"

namespace baton {

// The loop looks and yields first, then sleeps.
//
// Thread-compatible: the worker's thread.
class WaitLoop {
 public:
  // All arguments but `options` must outlive this object.
  WaitLoop(const WorkerOptions& options, WorkerShards* shards, const OwnershipChanges* ownership,
           WorkerNotices* notices, const KeeperWatch* keeper);

  // Call it once, before all others. `slot`: this worker's in the arena.
  void Open(arena::WorkerSlot* slot, uint32_t heartbeat_ms) {
    slot_ = slot;
    heartbeat_ms_ = heartbeat_ms;
  }

  // The service's limit to WorkerOptions::yield_microseconds. Call it before Wait.
  void YieldAtMost(uint32_t microseconds);

  // Worker::Wait.
  absl::Status Wait(int timeout_ms);
  // Worker::ArmEvent.
  bool Arm();
  // Returns whether the loop has armed since Disarm.
  bool armed() const { return armed_; }
  void Disarm() {
    armed_ = false;
    arena::StoreRelaxed(slot_->sleeping, 0u);
  }
  // Returns whether a look that found work has driven the queues since the last call.
  bool TakeDriven() { return std::exchange(driven_, false); }
  // Returns whether a descriptor of the application ended a wait since the last call.
  bool TakeWatched() { return std::exchange(watched_, false); }

 private:
  bool Advance();
  bool HasWork() const;
  absl::Status Await(int timeout_ms);
  absl::StatusOr<bool> Sleep(int timeout_ms);

  WorkerShards* const shards_;
  const OwnershipChanges* const ownership_;
  WorkerNotices* const notices_;
  const KeeperWatch* const keeper_;
  const bool is_realtime_;
  uint32_t yield_microseconds_;
  YieldBudget yield_budget_;
  YieldBudget device_yield_budget_;  // while the worker awaits the device
  arena::WorkerSlot* slot_ = nullptr;
  uint32_t heartbeat_ms_ = 0;
  bool armed_ = false;
  bool driven_ = false;
  bool watched_ = false;
};

}  // namespace baton

#endif  // WORKER_WAIT_LOOP_H_
