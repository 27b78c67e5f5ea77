#include "supervisor/driver/engine/brokered_shards.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"

namespace baton::driver_process {

BrokeredShards::BrokeredShards(arena::Arena* arena, EngineListener* listener, Roster* roster,
                               const BrokeredOptions& options, ApplyNext apply_next)
    : arena_(*arena),
      listener_(listener),
      roster_(*roster),
      options_(options),
      apply_next_(std::move(apply_next)),
      awaits_first_commit_(arena->shape().shards, 0),
      reports_(arena) {
  for (uint32_t i = 0; i < arena->shape().shards; ++i) ownerships_.emplace_back(arena, i);
}

void BrokeredShards::SetDriver(driver::QueueDriver* driver) {
  driver_ = driver;
  change_.emplace(ShardChange::Parts{
      .arena = &arena_,
      .driver = driver,
      .reports = &reports_,
      .apply_next = apply_next_,
      .tell =
          [this](std::string_view kind, uint32_t shard, std::string_view message) {
            listener_->OnEvent(kind, std::string(message), 0, static_cast<int>(shard), -1);
          },
      .nanoseconds = options_.nanoseconds});
}

// ---------------------------------------------------------------- the next owner

std::string BrokeredShards::Give(uint32_t shard, uint32_t) {
  std::string why = GiveToHeir(shard);
  roster_.WakeNotified();
  return why;
}

// Returns why the shard has to wait; empty: it does not.
std::string BrokeredShards::GiveToHeir(uint32_t shard) {
  driver::Ownership& ownership = ownerships_[shard];
  const uint64_t heir = arena::LoadAcquire(arena_.native_shard(shard).heir);
  if (heir == 0) return "it has no heir";
  if (AwaitsDeath(shard)) {
    return absl::StrCat("the death of worker ", arena_.native_shard(shard).former_worker_id,
                        "'s process is not proven yet");
  }
  if (!ownership.CanGive()) return "the deaths of its former owners are not proven yet";
  const auto slot = static_cast<uint32_t>(heir - 1);
  change_->Begin(ownership);
  ownership.GiveTo(slot, roster_[slot].id);
  awaits_first_commit_[shard] = 1;
  roster_.Notify(slot);
  return "";
}

// A worker with effects outside, or one that was fenced, may go on with them until its process is
// dead. The threads of a fenced one may also store to a log or a state slot of the successor.
bool BrokeredShards::AwaitsDeath(uint32_t shard) const {
  const arena::NativeShard& change = arena_.native_shard(shard);
  const bool died = arena::ChangeCause(change.cause) == arena::ChangeCause::kDeath;
  const bool was_fenced = change.fenced_worker_id == change.former_worker_id;
  return died && (options_.outside_effects || was_fenced) &&
         ownerships_[shard].MayWrite(change.former_worker_id);
}

void BrokeredShards::OnDead(uint32_t, uint64_t id) {
  for (driver::Ownership& ownership : ownerships_) ownership.ProveDead(id);
}

// ---------------------------------------------------------------- the end of an owner

// All shards come before the first one moves: a transaction of one may accept a connection into
// another, which must have the same owner. The reports come last, so as not to delay successors.
// They are as of the cut, because the engine has done nothing else since.
void BrokeredShards::OnEnded(uint32_t slot, uint64_t) {
  std::vector<uint32_t> owned;
  for (const driver::Ownership& ownership : ownerships_) {
    if (ownership.owner_slot() != slot) continue;
    change_->Begin(ownership);
    change_->ApplyRest(ownership);
    owned.push_back(ownership.shard());
  }
  std::vector<std::optional<Poisoning>> poisoned;
  for (const uint32_t shard : owned) {
    poisoned.push_back(End(shard));
    GiveToHeir(shard);
  }
  roster_.WakeNotified();
  for (size_t i = 0; i < owned.size(); ++i) Report(owned[i], std::move(poisoned[i]));
}

// What the owner publishes from here on does not count. Its death is counted before the successor
// is named, because this may rewrite the log. Only the former owner can still read it, and nothing
// that it does counts any more.
std::optional<Poisoning> BrokeredShards::End(uint32_t shard) {
  driver::Ownership& ownership = ownerships_[shard];
  if (options_.break_recovery) driver_->ForgetUnacknowledged(shard);
  roster_.Notify(ownership.owner_slot());  // the former owner learns that it lost the shard
  ownership.End(/*released=*/!change_->IsDeath(ownership));
  return change_->CountDeath(ownership, options_.poison_deaths);
}

void BrokeredShards::Report(uint32_t shard, std::optional<Poisoning> poisoned) {
  const driver::Ownership& ownership = ownerships_[shard];
  change_->Report(ownership, std::nullopt, ownership.owner_id(), std::move(poisoned));
}

void BrokeredShards::OnCommit(uint32_t shard, bool released) {
  has_news_ = true;
  if (released) return OnReleased(shard);  // a first transaction that does so serves nobody
  if (std::exchange(awaits_first_commit_[shard], 0) != 0) {
    change_->OnFirstCommit(ownerships_[shard]);
  }
}

void BrokeredShards::OnReleased(uint32_t shard) {
  ApplyAcceptsInto(shard);
  change_->Begin(ownerships_[shard]);
  std::optional<Poisoning> poisoned = End(shard);
  GiveToHeir(shard);
  roster_.WakeNotified();
  Report(shard, std::move(poisoned));
}

// The owner gives the shard up. Transactions of its other shards that accept connections into this
// one are applied while it still has both. An invalid one is left to the engine.
void BrokeredShards::ApplyAcceptsInto(uint32_t shard) {
  const uint32_t slot = ownerships_[shard].owner_slot();
  for (uint32_t from = 0; from < shard_count(); ++from) {
    for (uint32_t i = 0; i < arena::kCommitLogEntries; ++i) {
      if (from == shard || ownerships_[from].owner_slot() != slot) break;
      const std::vector<uint32_t> targets = driver_->AcceptTargets(from);
      if (std::find(targets.begin(), targets.end(), shard) == targets.end()) break;
      absl::Status error;
      const driver::CommitOutcome outcome = apply_next_(from, &error);
      const bool released = outcome == driver::CommitOutcome::kReleased;
      if (!released && outcome != driver::CommitOutcome::kApplied) break;
      OnCommit(from, released);
    }
  }
}

void BrokeredShards::OnInvalidCommit(uint32_t shard, const absl::Status& why) {
  has_news_ = true;
  const uint32_t slot = ownerships_[shard].owner_slot();
  const uint64_t id = ownerships_[shard].owner_id();
  listener_->OnEvent("worker_fenced",
                     absl::StrCat("worker ", id, " committed an invalid transaction to shard ",
                                  shard, ": ", why.message()),
                     id, static_cast<int>(shard), -1);
  for (const driver::Ownership& ownership : ownerships_) {
    if (ownership.owner_slot() != slot) continue;
    arena::StoreRelaxed(arena_.native_shard(ownership.shard()).fenced_worker_id, id);
  }
  OnEnded(slot, id);
}

}  // namespace baton::driver_process
