#include "supervisor/driver/engine/brokered_succession.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"

namespace baton::driver_process {
namespace {

constexpr std::string_view kCrash = "crash";        // unless a better cause is known
constexpr std::string_view kDetached = "detached";  // cause of an end that is no death

}  // namespace

BrokeredSuccession::BrokeredSuccession(arena::Arena* arena, EngineListener* listener,
                                       const SuccessionOptions& options, ApplyNext apply_next)
    : Succession(arena, listener),
      options_(options),
      apply_next_(std::move(apply_next)),
      changes_(arena->shape().shards) {}

// ---------------------------------------------------------------- workers

bool BrokeredSuccession::IsIdle(uint32_t slot, uint64_t id) const {
  const Roster::Worker& worker = roster_[slot];
  return worker.id != id ||
         (worker.shards == 0 &&
          std::none_of(shards_.begin(), shards_.end(),
                       [id](const ShardState& shard) { return shard.handoff_worker_id == id; }));
}

void BrokeredSuccession::WorkerEnded(uint32_t slot, uint64_t id, std::string_view cause) {
  HandleEnd(slot, id, cause, options_.outside_effects);
}

void BrokeredSuccession::HandleEnd(uint32_t slot, uint64_t id, std::string_view cause,
                                   bool await_death) {
  const Roster::Worker* const worker = NoteEnded(slot, id);
  if (worker == nullptr) return;
  if (cause == kCrash) cause = worker->death;
  const uint64_t now = options_.nanoseconds();
  // All shards come before the first one moves: a transaction of one may accept a connection into
  // another, which must have the same owner.
  std::vector<std::pair<uint32_t, Rest>> owned;
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    if (shards_[shard].ownership.owner_slot() == slot) owned.emplace_back(shard, ApplyRest(shard));
  }
  std::vector<std::pair<uint32_t, EndedOwnership>> moved;
  for (const auto& [shard, rest] : owned) {
    EndedOwnership& ended = moved.emplace_back(shard, EndOwnership(shard, cause, rest)).second;
    changes_[shard].begun_ns = now;
    // Before the successor is named, because this may rewrite the log. Only the former owner can
    // still read it, and nothing that it does counts any more.
    if (!worker->pardoned && cause != kDetached) ended.poisoned = CountDeath(shard, ended);
    if (await_death) changes_[shard].awaited_death_id = id;
    Give(shard);
  }
  roster_.WakeNotified();
  for (const auto& [shard, ended] : moved) MakeReport(shard, ended);
  NameHeirs();
}

void BrokeredSuccession::PardonDeath(uint32_t slot, uint64_t id) {
  if (Roster::Worker* const worker = roster_.Find(slot, id)) worker->pardoned = true;
}

void BrokeredSuccession::ExplainDeath(uint32_t slot, uint64_t id, std::string_view cause) {
  if (Roster::Worker* const worker = roster_.Find(slot, id)) worker->death = cause;
}

void BrokeredSuccession::WorkerDead(uint32_t slot, uint64_t id) {
  if (roster_.Find(slot, id) == nullptr) return;
  WorkerEnded(slot, id, kCrash);
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    shards_[shard].ownership.ProveDead(id);
    if (changes_[shard].awaited_death_id == id) changes_[shard].awaited_death_id = 0;
  }
  roster_.Remove(slot);
  GiveVacant();
}

void BrokeredSuccession::Give(uint32_t shard) {
  ShardState& state = shards_[shard];
  const uint32_t slot = ChooseFor(shard);
  if (slot == arena::kNobody) return;
  Change& change = changes_[shard];
  if (change.awaited_death_id != 0) {
    state.waiting_reason = absl::StrCat("the death of worker ", change.awaited_death_id,
                                        "'s process is not proven yet");
    return;
  }
  if (!state.ownership.CanGive()) {
    state.waiting_reason = "the deaths of its former owners are not proven yet";
    return;
  }
  Roster::Worker& worker = roster_[slot];
  state.ownership.GiveTo(slot, worker.id);
  NoteOwner(shard, worker);
  if (change.begun_ns == 0) change.begun_ns = options_.nanoseconds();
  ++worker.shards;
  NotifyOwner(shard);
}

void BrokeredSuccession::GiveVacant() {
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    if (!shards_[shard].ownership.owned()) Give(shard);
  }
}

// ---------------------------------------------------------------- changes of owner

// Transactions that the owner has published up to here are applied and count.
BrokeredSuccession::Rest BrokeredSuccession::ApplyRest(uint32_t shard) {
  Rest rest;
  absl::Status error;
  while (rest.transactions < arena::kCommitLogEntries) {
    const driver::CommitOutcome outcome = apply_next_(shard, &error);
    rest.released = outcome == driver::CommitOutcome::kReleased;
    if (outcome != driver::CommitOutcome::kApplied) break;
    ++rest.transactions;
  }
  return rest;
}

// The owner gives the shard up. Transactions of its other shards that accept connections into this
// one are applied while it still has both. An invalid one is left to the engine.
void BrokeredSuccession::ApplyAcceptsInto(uint32_t shard) {
  const uint32_t slot = shards_[shard].ownership.owner_slot();
  for (uint32_t from = 0; from < shard_count(); ++from) {
    for (uint32_t i = 0; i < arena::kCommitLogEntries; ++i) {
      if (from == shard || shards_[from].ownership.owner_slot() != slot) break;
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

// The cut: what the owner publishes from here on does not count.
EndedOwnership BrokeredSuccession::EndOwnership(uint32_t shard, std::string_view cause,
                                                const Rest& rest) {
  driver::Ownership& ownership = shards_[shard].ownership;
  if (options_.break_recovery) driver_->ForgetUnacknowledged(shard);
  EndedOwnership ended = {ownership.epoch(), ownership.owner_id(), rest.transactions, cause};
  Change& change = changes_[shard];
  if (change.begun_ns == 0) change.begun_ns = options_.nanoseconds();
  change.planned = rest.released;
  --roster_[ownership.owner_slot()].shards;
  NotifyOwner(shard);  // the former owner learns that it lost the shard
  ownership.End(rest.released);
  return ended;
}

// Counts the owner's death. Fails the connection of a completion on which too many owners died, so
// that no other owner is given that completion.
std::optional<Poisoning> BrokeredSuccession::CountDeath(uint32_t shard,
                                                        const EndedOwnership& ended) {
  Change& change = changes_[shard];
  if (change.planned) return std::nullopt;  // the owner died of no completion: it had released
  const DeathCount::Blame blame =
      change.deaths.Add(DescribeDeath(*arena_, shard, ended.epoch, ended.owner_id,
                                      arena_->shard(shard).completion_tail),
                        options_.poison_deaths);
  if (blame == DeathCount::Blame::kNobody) return std::nullopt;
  const bool guessed = blame == DeathCount::Blame::kOldest;
  const std::optional<uint64_t> completion =
      guessed ? driver_->OldestToBlame(shard, change.deaths.logged()) : change.deaths.suspect();
  std::optional<Poisoning> poisoned;
  if (completion) {
    const auto entry = driver_->Poison(shard, *completion, "poisoned: owners died on it");
    BATON_CHECK(entry.ok());  // nobody else writes the logs
    poisoned = {entry->connection,
                arena::GenerationOf(*entry),
                *completion,
                arena::CompletionKind(entry->kind),
                entry->sequence,
                guessed,
                change.deaths.DeathsOf(blame),
                change.deaths.WorkersOf(blame)};
    ++change.poisoned;
  }
  change.deaths.Clear();
  return poisoned;
}

void BrokeredSuccession::OnCommit(uint32_t shard, bool released) {
  if (released) {
    // A first transaction that gives the shard back does not serve it.
    if (AwaitsFirstCommit(shard)) OnGivenBack(shard, shards_[shard].ownership.owner_id());
    return OnReleased(shard);
  }
  if (!AwaitsFirstCommit(shard)) return;
  Change& change = changes_[shard];
  const uint64_t blackout = options_.nanoseconds() - std::exchange(change.begun_ns, 0);
  const ShardState& state = shards_[shard];
  OnServed(shard, state.ownership.epoch(), state.report.epoch, change.planned, blackout);
  NameHeirs();
}

// An owner counts as asked even if the request was withdrawn in the meantime, because it could not
// know that.
void BrokeredSuccession::OnReleased(uint32_t shard) {
  ApplyAcceptsInto(shard);
  const ShardState& state = shards_[shard];
  const bool asked = state.asked_epoch == state.ownership.epoch();
  // A worker that gives a shard back unasked wants no shard.
  if (!asked) roster_[state.ownership.owner_slot()].ready = false;
  const EndedOwnership ended =
      EndOwnership(shard, asked ? "handoff" : "release", {.transactions = 0, .released = true});
  Give(shard);
  roster_.WakeNotified();
  MakeReport(shard, ended);
}

void BrokeredSuccession::OnInvalidCommit(uint32_t shard, const absl::Status& why) {
  const driver::Ownership& ownership = shards_[shard].ownership;
  const uint32_t slot = ownership.owner_slot();
  const uint64_t id = ownership.owner_id();
  listener_->OnEvent("worker_fenced",
                     absl::StrCat("worker ", id, " committed an invalid transaction to shard ",
                                  shard, ": ", why.message()),
                     id, static_cast<int>(shard), -1);
  // The worker's threads run on until it is killed, and could still store to a log or a state slot
  // of the successor. So the successor starts only when the process is dead.
  roster_[slot].fenced = true;
  HandleEnd(slot, id, "fenced", /*await_death=*/true);
  listener_->OnFenced(id);
}

// Called after the successor was woken, so as not to delay it. The report is still as of the cut,
// because the engine has done nothing else since.
void BrokeredSuccession::MakeReport(uint32_t shard, const EndedOwnership& ended) {
  shards_[shard].report = Reconcile(*arena_, shard, driver_->counters(shard), ended);
  TellEnd(shard);
  listener_->OnReport(shard, shards_[shard].report);
}

}  // namespace baton::driver_process
