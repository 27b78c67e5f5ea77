#include "supervisor/driver/engine/shard_change.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "supervisor/driver/engine/shard_deaths.h"

namespace baton::driver_process {

using driver::Ownership;

// Returns true if a claimant died when only the ownership word was left to store. The record names
// that claimant as the owner.
bool ShardChange::NextEpochPrepared(const Ownership& shard) const {
  return !arena::CursorIsOf(arena_.shard(shard.shard()).commit_head, shard.epoch());
}

// Returns true if the former owner of the claimed shard did not give it up.
bool ShardChange::IsDeath(const Ownership& shard) const {
  return shard.owner_id() != 0 && arena_.shard(shard.shard()).released_epoch != shard.epoch();
}

void ShardChange::Begin(const Ownership& shard) {
  if (NextEpochPrepared(shard)) return;
  arena::NativeShard& change = record(shard);
  NoteCause(shard);
  if (shard.owner_id() != 0) change.former_worker_id = shard.owner_id();
  if (change.change_epoch == shard.epoch() && shard.epoch() != 0) return;
  change.change_begun_ns = MonotonicNanoseconds();
  change.recovered = 0;
  change.logged = arena_.shard(shard.shard()).completion_tail;
  arena::OrderForCrash();
  change.change_epoch = shard.epoch();
}

void ShardChange::NoteCause(const Ownership& shard) {
  record(shard).cause = static_cast<uint64_t>(IsDeath(shard) ? arena::ChangeCause::kDeath
                                                             : arena::ChangeCause::kRelease);
}

void ShardChange::Finish(const Ownership& shard, absl::Span<const uint32_t> connections,
                         const Claimant& claimant) {
  ApplyRest(shard);
  if (NextEpochPrepared(shard)) return;
  const std::optional<Poisoning> poisoned = CountDeath(shard, claimant.poison_deaths);
  MakeReport(shard, connections, claimant.worker_id, poisoned);
  BATON_CRASH_POINT("native-reported");
  ForgetBlamed(&arena_, shard.shard(), poisoned.has_value());
}

// Applies the rest of the former owner's committed transactions. A claimant that died may have
// applied some of them. An invalid transaction and all after it are ignored.
void ShardChange::ApplyRest(const Ownership& shard) {
  absl::Status error;
  for (uint64_t i = 0; i < arena::kCommitLogEntries; ++i) {
    const driver::CommitOutcome outcome = driver_.ApplyNext(shard.shard(), &error);
    if (outcome == driver::CommitOutcome::kInvalid) {
      tell_("invalid_transaction", shard.shard(), MessageOf(error));
    }
    if (outcome != driver::CommitOutcome::kApplied) break;
    ++record(shard).recovered;
    BATON_CRASH_POINT("native-rest-applied");
  }
  NoteCause(shard);  // the rest may have had its release
}

// Counts the owner's death. Fails the connection of a completion on which too many owners died, so
// that no other owner is given that completion.
std::optional<Poisoning> ShardChange::CountDeath(const Ownership& shard, uint32_t poison_deaths) {
  const uint64_t former = shard.owner_id();
  Death death;
  if (IsDeath(shard) && arena::LoadAcquire(record(shard).pardoned_worker_id) != former) {
    death = DescribeDeath(arena_, shard.shard(), shard.epoch(), former, record(shard).logged);
  }
  auto poisoned = CountOwnerDeath(&arena_, &driver_, shard.shard(), death, poison_deaths);
  if (poisoned.ok()) return *std::move(poisoned);
  tell_("not_poisoned", shard.shard(),
        absl::StrCat("another worker of the service has written what owners of shard ",
                     shard.shard(), " died of: ", poisoned.status().message()));
  return std::nullopt;
}

// Writes the report before the successor's first commit. QueueDriver::Adopt has posted already.
void ShardChange::MakeReport(const Ownership& shard, absl::Span<const uint32_t> connections,
                             uint64_t successor_id, std::optional<Poisoning> poisoned) {
  EndedOwnership ended;
  ended.epoch = shard.epoch();
  if (ended.epoch == 0) return;
  ended.owner_id = record(shard).former_worker_id;
  ended.recovered = record(shard).recovered;
  ended.poisoned = std::move(poisoned);
  ended.connections = connections;
  ReconciliationReport report =
      Reconcile(arena_, shard.shard(), driver_.counters(shard.shard()), ended);
  report.successor_worker_id = successor_id;
  report.released = !IsDeath(shard);
  reports_.Write(shard.shard(), connections, std::move(report));
}

}  // namespace baton::driver_process
