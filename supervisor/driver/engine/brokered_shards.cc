#include "supervisor/driver/engine/brokered_shards.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"

namespace baton::driver_process {

// A worker with effects outside, or one that was fenced, may go on with them until its process is
// dead. The threads of a fenced one may also store to a log or a state slot of the successor.
std::string WhyGivingWaits(const arena::Arena& arena, const driver::Ownership& ownership,
                           bool outside_effects) {
  const arena::SuccessionRecord& change = arena.succession(ownership.shard());
  const bool died = arena::ChangeCause(change.cause) == arena::ChangeCause::kDeath;
  const bool awaited = (died && outside_effects) || WasFenced(arena, change.former_worker_id);
  if (awaited && ownership.MayWrite(change.former_worker_id)) {
    return absl::StrCat("the death of worker ", change.former_worker_id,
                        "'s process is not proven yet");
  }
  return ownership.CanGive() ? "" : "the deaths of its former owners are not proven yet";
}

BrokeredShards::BrokeredShards(arena::Arena* arena, EngineListener* listener, WorkerWakes* wakes,
                               const BrokeredOptions& options, ApplyNext apply_next)
    : arena_(*arena),
      listener_(listener),
      wakes_(*wakes),
      options_(options),
      apply_next_(std::move(apply_next)),
      awaits_first_commit_(arena->shape().shards, 0),
      releasers_(options.releasers != nullptr ? *options.releasers : own_releasers_),
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

void BrokeredShards::Run(const BrokeredOptions::Work& work) {
  if (!options_.outlive) return work();
  options_.outlive(work, [this] { GoOn(); });
}

// ---------------------------------------------------------------- the next owner

std::string BrokeredShards::Give(uint32_t shard, uint32_t) {
  std::string why;
  Run([&] {
    why = GiveToHeir(shard);
    wakes_.WakeNotified();
  });
  return why;
}

// Returns why the shard has to wait; empty: it does not.
std::string BrokeredShards::GiveToHeir(uint32_t shard) {
  driver::Ownership& ownership = ownerships_[shard];
  const uint64_t heir = arena::LoadAcquire(arena_.succession(shard).heir);
  if (heir == 0 || HasEnded(static_cast<uint32_t>(heir - 1))) return "it has no heir";
  // Succession looks first whether that worker wants no shard any more.
  if (HasReleased(heir - 1)) return "its heir has released a shard just now";
  std::string why = WhyGivingWaits(arena_, ownership, options_.outside_effects);
  if (!why.empty()) return why;
  const auto slot = static_cast<uint32_t>(heir - 1);
  change_->Begin(ownership);
  ownership.GiveTo(slot, arena_.worker_record(slot).id);
  awaits_first_commit_[shard] = 1;
  BATON_CRASH_POINT("change-given");
  has_news_ = true;
  wakes_.Notify(slot);
  return "";
}

// Succession names another heir only once the end is noted.
bool BrokeredShards::HasEnded(uint32_t slot) const {
  const arena::WorkerRecord& worker = arena_.worker_record(slot);
  return arena::LoadAcquire(worker.ended_id) == worker.id || worker.fenced_id == worker.id;
}

// ---------------------------------------------------------------- the end of an owner

void BrokeredShards::OnEnded() {
  Run([this] { TakeFromEnded(); });
}

void BrokeredShards::TakeFromEnded() {
  for (uint32_t slot = 0; slot < arena_.shape().workers; ++slot) {
    arena::WorkerRecord& worker = arena_.worker_record(slot);
    const uint64_t ended = arena::LoadAcquire(worker.ended_id);
    if (ended == worker.left_id) continue;
    TakeFrom(slot);
    arena::StoreRelease(worker.left_id, ended);
  }
}

void BrokeredShards::OnDead(uint32_t) {
  Run([this] { FreeBanksOfTheDead(); });
}

void BrokeredShards::FreeBanksOfTheDead() {
  for (uint32_t slot = 0; slot < arena_.shape().workers; ++slot) {
    arena::WorkerRecord& worker = arena_.worker_record(slot);
    const uint64_t dead = arena::LoadAcquire(worker.dead_id);
    if (dead == worker.buried_id) continue;
    for (driver::Ownership& ownership : ownerships_) ownership.ProveDead(dead);
    BATON_CRASH_POINT("change-banks-free");
    arena::StoreRelease(worker.buried_id, dead);
  }
}

// All shards come before the first one moves: a transaction of one may accept a connection into
// another, which must have the same owner. The reports come last, so as not to delay successors.
// They are as of the cut, because the engine has done nothing else since.
void BrokeredShards::TakeFrom(uint32_t slot) {
  std::vector<uint32_t> owned;
  for (const driver::Ownership& ownership : ownerships_) {
    if (ownership.owner_slot() != slot) continue;
    change_->Begin(ownership);
    change_->ApplyRest(ownership);
    owned.push_back(ownership.shard());
  }
  std::vector<Ended> ended;
  for (const uint32_t shard : owned) {
    ended.push_back(End(shard));
    GiveToHeir(shard);
  }
  wakes_.WakeNotified();
  for (Ended& one : ended) Report(std::move(one));
}

// The cut: what the owner publishes from here on does not count. Its death is counted before the
// successor is named, because this may rewrite the log. Only the former owner can still read it,
// and nothing that it does counts any more.
BrokeredShards::Ended BrokeredShards::End(uint32_t shard) {
  driver::Ownership& ownership = ownerships_[shard];
  if (options_.break_recovery) driver_->ForgetUnacknowledged(shard);
  wakes_.Notify(ownership.owner_slot());  // the former owner learns that it lost the shard
  // A fenced worker's release is not believed.
  ownership.End(!change_->IsDeath(ownership) &&
                !WasFenced(arena_, arena_.succession(shard).former_worker_id));
  BATON_CRASH_POINT("change-ended");
  return {shard, change_->CountDeath(ownership, options_.poison_deaths)};
}

void BrokeredShards::Report(Ended ended) {
  BATON_CRASH_POINT("change-before-report");
  const driver::Ownership& ownership = ownerships_[ended.shard];
  change_->Report(ownership, std::nullopt, ownership.owner_id(), std::move(ended.poisoned));
}

// ---------------------------------------------------------------- what owners commit

void BrokeredShards::OnCommit(uint32_t shard, bool released) {
  has_news_ = true;
  // A first transaction that releases the shard serves nobody.
  if (released) return Run([this, shard] { OnReleased(shard); });
  if (std::exchange(awaits_first_commit_[shard], 0) != 0) {
    change_->OnFirstCommit(ownerships_[shard]);
  }
}

void BrokeredShards::OnReleased(uint32_t shard) {
  releasers_.fetch_or(uint64_t{1} << ownerships_[shard].owner_slot());
  ApplyAcceptsInto(shard);
  change_->Begin(ownerships_[shard]);
  Ended ended = End(shard);
  GiveToHeir(shard);
  wakes_.WakeNotified();
  Report(std::move(ended));
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
  Run([&] {
    arena::StoreRelease(arena_.worker_record(slot).fenced_id, id);
    BATON_CRASH_POINT("change-fenced");
    TakeFrom(slot);
  });
}

void BrokeredShards::CarryOut() {
  Run([this] {
    TakeFromEnded();
    FreeBanksOfTheDead();
    GiveAllToHeirs();
    wakes_.WakeNotified();
  });
}

void BrokeredShards::GiveAllToHeirs() {
  for (const driver::Ownership& ownership : ownerships_) {
    if (!ownership.owned()) GiveToHeir(ownership.shard());
  }
}

// ---------------------------------------------------------------- after another one

void BrokeredShards::GoOn() {
  has_news_ = true;
  for (const driver::Ownership& ownership : ownerships_) NoteFirstCommit(ownership);
  // First of all, because the next change of a shard overwrites what is told of the last one.
  for (const driver::Ownership& ownership : ownerships_) ReportIfDue(ownership);
  for (uint32_t slot = 0; slot < arena_.shape().workers; ++slot) {
    const arena::WorkerRecord& worker = arena_.worker_record(slot);
    if (worker.fenced_id == worker.id) TakeFrom(slot);
  }
  TakeFromEnded();
  FreeBanksOfTheDead();
  for (const driver::Ownership& ownership : ownerships_) {
    const uint64_t released = arena_.shard(ownership.shard()).released_epoch;
    if (ownership.owned() && released == ownership.epoch()) OnReleased(ownership.shard());
  }
  GiveAllToHeirs();
  // The dead one had moved a shard, or taken note of a sleeper, and may have woken nobody.
  wakes_.WakeAll();
}

// The first commit may be applied, and not noted.
void BrokeredShards::NoteFirstCommit(const driver::Ownership& ownership) {
  const uint32_t shard = ownership.shard();
  const arena::ShardRecord& record = arena_.shard(shard);
  const uint64_t epoch = ownership.epoch();
  const bool awaited = ownership.owned() && arena_.succession(shard).served_epoch != epoch;
  const bool committed = arena::CursorIsOf(record.commit_head, epoch) &&
                         arena::CursorIndex(record.commit_head) != 0 &&
                         record.released_epoch != epoch;
  if (awaited && committed) change_->OnFirstCommit(ownership);
  awaits_first_commit_[shard] = awaited && !committed;
}

// Counts the death of an owner whose end is not reported yet, and reports it. One whose word was
// not stored at its end is taken from once more instead.
void BrokeredShards::ReportIfDue(const driver::Ownership& ownership) {
  const uint32_t shard = ownership.shard();
  const uint64_t change_epoch = arena_.succession(shard).change_epoch;
  const bool has_ended = arena_.shard(shard).owner.cut_epoch == change_epoch &&
                         (!ownership.owned() || ownership.epoch() != change_epoch);
  if (change_epoch == 0 || !has_ended || change_->IsReported(ownership)) return;
  Report({shard, change_->CountDeath(ownership, options_.poison_deaths)});
}

}  // namespace baton::driver_process
