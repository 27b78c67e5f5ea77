// Ends the epoch of a shard's former owner, and reports the end (lib/arena/layout.md, "Native
// owners"): for the native driver that has claimed the shard, and for the engine of a brokered
// service. All of it is noted in the arena. A native claimant that dies is followed by another,
// which repeats it.
//
// Thread-compatible: the thread of the driver.
#ifndef SUPERVISOR_DRIVER_ENGINE_SHARD_CHANGE_H_
#define SUPERVISOR_DRIVER_ENGINE_SHARD_CHANGE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/arena/arena.h"
#include "lib/base/clock.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "supervisor/driver/engine/reconciliation.h"
#include "supervisor/driver/engine/shard_reports.h"

namespace baton::driver_process {

// Returns true if the worker published an invalid transaction, and its slot has not seen another
// one that did.
bool WasFenced(const arena::Arena& arena, uint64_t worker_id);

class ShardChange {
 public:
  struct Parts {
    arena::Arena* arena = nullptr;
    driver::QueueDriver* driver = nullptr;
    ShardReports* reports = nullptr;
    // Applies the shard's next transaction, like QueueDriver::ApplyNext.
    std::function<driver::CommitOutcome(uint32_t shard, absl::Status* error)> apply_next;
    std::function<void(std::string_view kind, uint32_t shard, std::string_view message)> tell;
    std::function<uint64_t()> nanoseconds = MonotonicNanoseconds;
  };

  // The pointers outlive it.
  explicit ShardChange(Parts parts) : parts_(std::move(parts)), arena_(*parts_.arena) {}

  // Notes when the change begins, and what was logged by then. A change that has begun stays as it
  // is. The shard may have no owner.
  void Begin(const driver::Ownership& shard);
  // Applies what the former owner has committed. A claimant that died may have applied some of it.
  // An invalid transaction and all after it are ignored. REQUIRES: the driver has the shard.
  void ApplyRest(const driver::Ownership& shard);
  // Returns true if a claimant died when only the ownership word was left to store. The record
  // names that claimant as the owner, and its former owner's end is reported already.
  bool NextEpochPrepared(const driver::Ownership& shard) const;
  // Returns true if the former owner did not give the shard up. REQUIRES: Begin() was called.
  bool IsDeath(const driver::Ownership& shard) const;
  // Counts the owner's death. Fails the connection of a completion on which `poison_deaths` owners
  // died, so that no other owner is given that completion.
  std::optional<Poisoning> CountDeath(const driver::Ownership& shard, uint32_t poison_deaths);
  // Reports the end. `connections`: all of the shard's, and maybe others; none: the report looks
  // for them.
  void Report(const driver::Ownership& shard, std::optional<absl::Span<const uint32_t>> connections,
              uint64_t successor_id, std::optional<Poisoning> poisoned);
  // Returns true if nothing is left to be reported of the last change.
  bool IsReported(const driver::Ownership& shard) const;
  // The owner has committed for the first time.
  void OnFirstCommit(const driver::Ownership& shard);

 private:
  arena::SuccessionRecord& record(const driver::Ownership& shard) const {
    return arena_.succession(shard.shard());
  }
  void NoteCause(const driver::Ownership& shard);

  const Parts parts_;
  arena::Arena& arena_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_SHARD_CHANGE_H_
