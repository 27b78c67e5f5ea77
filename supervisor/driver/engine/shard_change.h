// Ends the epoch of a shard's former owner, for the native driver that has claimed the shard, and
// reports the end (lib/arena/layout.md, "Native owners"). A claimant that dies is followed by
// another, which repeats all of it.
//
// Thread-compatible: the thread of the driver.
#ifndef SUPERVISOR_DRIVER_ENGINE_SHARD_CHANGE_H_
#define SUPERVISOR_DRIVER_ENGINE_SHARD_CHANGE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "absl/types/span.h"
#include "lib/arena/arena.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "supervisor/driver/engine/reconciliation.h"
#include "supervisor/driver/engine/shard_reports.h"

namespace baton::driver_process {

class ShardChange {
 public:
  using Tell = std::function<void(std::string_view kind, uint32_t shard, std::string_view message)>;
  struct Claimant {
    uint64_t worker_id = 0;
    uint32_t poison_deaths = 3;  // on one completion, before its connection is failed
  };

  // All outlive it.
  ShardChange(arena::Arena* arena, driver::QueueDriver* driver, ShardReports* reports, Tell tell)
      : arena_(*arena), driver_(*driver), reports_(*reports), tell_(std::move(tell)) {}

  // Notes when the change begins, and what was logged by then. A claimant calls it or, for a
  // release, the owner. A change that has begun stays as it is.
  void Begin(const driver::Ownership& shard);

  // Applies what the former owner has committed, counts its death, and reports the end of its
  // epoch. The claimant becomes the owner next. REQUIRES: the driver has adopted the shard.
  // `connections`: all of the shard's, and maybe others.
  void Finish(const driver::Ownership& shard, absl::Span<const uint32_t> connections,
              const Claimant& claimant);

 private:
  arena::NativeShard& record(const driver::Ownership& shard) const {
    return arena_.native_shard(shard.shard());
  }
  bool NextEpochPrepared(const driver::Ownership& shard) const;
  bool IsDeath(const driver::Ownership& shard) const;
  void NoteCause(const driver::Ownership& shard);
  void ApplyRest(const driver::Ownership& shard);
  std::optional<Poisoning> CountDeath(const driver::Ownership& shard, uint32_t poison_deaths);
  void MakeReport(const driver::Ownership& shard, absl::Span<const uint32_t> connections,
                  uint64_t successor_id, std::optional<Poisoning> poisoned);

  arena::Arena& arena_;
  driver::QueueDriver& driver_;
  ShardReports& reports_;
  const Tell tell_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_SHARD_CHANGE_H_
