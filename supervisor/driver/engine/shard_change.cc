#include "supervisor/driver/engine/shard_change.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "supervisor/driver/engine/shard_deaths.h"

namespace baton::driver_process {

using driver::Ownership;

namespace {

bool IsNoted(const arena::Arena& arena, uint64_t arena::WorkerRecord::*const word,
             uint64_t worker_id) {
  for (uint32_t slot = 0; slot < arena.shape().workers && worker_id != 0; ++slot) {
    if (arena::LoadAcquire(arena.worker_record(slot).*word) == worker_id) return true;
  }
  return false;
}

}  // namespace

bool WasFenced(const arena::Arena& arena, uint64_t worker_id) {
  return IsNoted(arena, &arena::WorkerRecord::fenced_id, worker_id);
}

bool ShardChange::NextEpochPrepared(const Ownership& shard) const {
  return !arena::CursorIsOf(arena_.shard(shard.shard()).commit_head, shard.epoch());
}

bool ShardChange::IsDeath(const Ownership& shard) const {
  return record(shard).former_worker_id != 0 &&
         arena_.shard(shard.shard()).released_epoch != record(shard).change_epoch;
}

void ShardChange::Begin(const Ownership& shard) {
  if (NextEpochPrepared(shard)) return;
  arena::SuccessionRecord& change = record(shard);
  if (shard.owner_id() != 0) change.former_worker_id = shard.owner_id();
  if (change.change_epoch != shard.epoch() || shard.epoch() == 0) {
    // Peers wait since the former change if nobody has served them after it.
    const bool was_served = change.served_epoch == shard.epoch();
    if (was_served || shard.epoch() <= 1) change.change_begun_ns = parts_.nanoseconds();
    change.recovered = 0;
    change.logged = arena_.shard(shard.shard()).completion_tail;
    BATON_CRASH_POINT("change-begins");
    arena::OrderForCrash();
    change.change_epoch = shard.epoch();
    BATON_CRASH_POINT("change-begun");
  }
  NoteCause(shard);
}

void ShardChange::NoteCause(const Ownership& shard) {
  record(shard).cause = static_cast<uint64_t>(IsDeath(shard) ? arena::ChangeCause::kDeath
                                                             : arena::ChangeCause::kRelease);
}

void ShardChange::ApplyRest(const Ownership& shard) {
  absl::Status error;
  for (uint64_t i = 0; i < arena::kCommitLogEntries; ++i) {
    const driver::CommitOutcome outcome = parts_.apply_next(shard.shard(), &error);
    if (outcome == driver::CommitOutcome::kInvalid &&
        !WasFenced(arena_, record(shard).former_worker_id)) {
      parts_.tell("invalid_transaction", shard.shard(), MessageOf(error));
    }
    if (outcome != driver::CommitOutcome::kApplied) break;
    ++record(shard).recovered;
    BATON_CRASH_POINT("change-rest-applied");
  }
  NoteCause(shard);  // the rest may have had its release
}

std::optional<Poisoning> ShardChange::CountDeath(const Ownership& shard, uint32_t poison_deaths) {
  const uint64_t former = record(shard).former_worker_id;
  Death death;
  if (IsDeath(shard) && !IsNoted(arena_, &arena::WorkerRecord::pardoned_id, former)) {
    death = DescribeDeath(arena_, shard.shard(), record(shard).change_epoch, former,
                          record(shard).logged);
  }
  auto poisoned = CountOwnerDeath(&arena_, parts_.driver, shard.shard(), record(shard).change_epoch,
                                  death, poison_deaths);
  if (poisoned.ok()) return *std::move(poisoned);
  parts_.tell("not_poisoned", shard.shard(),
              absl::StrCat("another worker of the service has written what owners of shard ",
                           shard.shard(), " died of: ", poisoned.status().message()));
  return std::nullopt;
}

// The shard may have the next owner already, so this names the epoch that has ended.
void ShardChange::Report(const Ownership& shard,
                         std::optional<absl::Span<const uint32_t>> connections,
                         uint64_t successor_id, std::optional<Poisoning> poisoned) {
  const bool was_poisoned = poisoned.has_value();
  EndedOwnership ended;
  ended.epoch = record(shard).change_epoch;
  if (ended.epoch != 0) {
    ended.owner_id = record(shard).former_worker_id;
    ended.recovered = record(shard).recovered;
    ended.poisoned = std::move(poisoned);
    ended.connections = connections;
    ReconciliationReport report =
        Reconcile(arena_, shard.shard(), parts_.driver->counters(shard.shard()), ended);
    report.successor_worker_id = successor_id;
    report.released = arena::ChangeCause(record(shard).cause) == arena::ChangeCause::kRelease;
    parts_.reports->Write(shard.shard(), connections.value_or(absl::Span<const uint32_t>()),
                          std::move(report));
    BATON_CRASH_POINT("change-reported");
  }
  ForgetBlamed(&arena_, shard.shard(), was_poisoned);
}

bool ShardChange::IsReported(const Ownership& shard) const {
  const uint64_t ended = record(shard).change_epoch;
  const arena::ReportRecord& report = arena_.report(shard.shard(), ended);
  return report.head.epoch == ended && (report.version & 1) == 0 &&
         LoadDeaths(arena_, shard.shard()).blamed == 0;
}

void ShardChange::OnFirstCommit(const Ownership& shard) {
  arena::SuccessionRecord& change = record(shard);
  change.blackout_ns = parts_.nanoseconds() - change.change_begun_ns;
  change.served_cause = change.cause;
  arena::StoreRelease(change.served_epoch, shard.epoch());
}

}  // namespace baton::driver_process
