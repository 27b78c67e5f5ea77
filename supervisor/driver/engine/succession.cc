#include "supervisor/driver/engine/succession.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"

namespace baton::driver_process {
namespace {

constexpr std::string_view kCrash = "crash";        // as far as nobody knows better
constexpr std::string_view kDetached = "detached";  // cause of an end that is no death

}  // namespace

Succession::Succession(arena::Arena* arena, EngineListener* listener, SuccessionOptions options,
                       ApplyNext apply_next)
    : arena_(arena),
      listener_(listener),
      options_(std::move(options)),
      apply_next_(std::move(apply_next)),
      roster_(arena) {
  for (uint32_t i = 0; i < arena->shape().shards; ++i) {
    shards_.emplace_back(driver::Ownership(arena, i));
  }
}

// ---------------------------------------------------------------- workers

void Succession::SetStanding(uint32_t slot, uint64_t id, Standing standing) {
  Roster::Worker* const worker = roster_.Find(slot, id);
  if (worker == nullptr) return;
  worker->standing = standing;
  NameHeirs();
}

void Succession::AskToStop(uint32_t slot, uint64_t id) {
  if (roster_.Find(slot, id) != nullptr) roster_.AskToStop(slot);
}

void Succession::SetReady(uint32_t slot) {
  roster_[slot].ready = true;
  AssignWaiting();
  NameHeirs();
}

bool Succession::IsIdle(uint32_t slot, uint64_t id) const {
  const Roster::Worker& worker = roster_[slot];
  return worker.id != id ||
         (worker.shards == 0 &&
          std::none_of(shards_.begin(), shards_.end(),
                       [id](const ShardState& shard) { return shard.handoff_worker_id == id; }));
}

void Succession::Retire(uint32_t slot, uint64_t id) {
  Roster::Worker* const worker = roster_.Find(slot, id);
  if (worker == nullptr) return;
  worker->retired = true;
  NameHeirs();
}

void Succession::SetStalled(uint32_t slot, uint64_t id, bool stalled) {
  Roster::Worker* const worker = roster_.Find(slot, id);
  if (worker == nullptr) return;
  worker->stalled = stalled;
  if (!stalled) AssignWaiting();
  NameHeirs();
}

void Succession::WorkerStopped(uint32_t slot, uint64_t id, std::string_view cause) {
  StopWorker(slot, id, cause, options_.outside_effects);
}

void Succession::StopWorker(uint32_t slot, uint64_t id, std::string_view cause, bool await_death) {
  Roster::Worker* const worker = roster_.Find(slot, id);
  if (worker == nullptr || worker->stopped) return;
  worker->stopped = true;
  if (cause == kCrash) cause = worker->death;
  const uint64_t now = options_.nanoseconds();
  std::vector<std::pair<uint32_t, EndedOwnership>> moved;
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    if (shards_[shard].handoff_worker_id == id) {
      CancelHandoff(shard, absl::UnavailableError("the successor died before it took over"));
    }
    if (shards_[shard].ownership.owner_slot() != slot) continue;
    EndedOwnership& ended =
        moved.emplace_back(shard, EndOwnership(shard, cause, /*released=*/false)).second;
    shards_[shard].blackout_start_ns = now;
    // Before the successor is named: nobody reads the log now, or nobody whose doing counts.
    if (!worker->pardoned && cause != kDetached) ended.poisoned = CountDeath(shard, ended);
    if (await_death) shards_[shard].awaited_death_id = id;
    Assign(shard);
  }
  roster_.WakeNotified();
  for (const auto& [shard, ended] : moved) MakeReport(shard, ended);
  NameHeirs();
}

void Succession::PardonDeath(uint32_t slot, uint64_t id) {
  if (Roster::Worker* const worker = roster_.Find(slot, id)) worker->pardoned = true;
}

void Succession::ExplainDeath(uint32_t slot, uint64_t id, std::string_view cause) {
  if (Roster::Worker* const worker = roster_.Find(slot, id)) worker->death = cause;
}

void Succession::WorkerDead(uint32_t slot, uint64_t id) {
  if (roster_.Find(slot, id) == nullptr) return;
  WorkerStopped(slot, id, kCrash);
  for (ShardState& state : shards_) {
    state.ownership.ProveDead(id);
    if (state.awaited_death_id == id) state.awaited_death_id = 0;
  }
  roster_.Remove(slot);
  AssignWaiting();
}

Roster::Vacancy Succession::VacancyOf(uint32_t shard) const {
  const ShardState& state = shards_[shard];
  return {state.state_version, state.handoff_worker_id, state.ownership.owner_slot()};
}

void Succession::Assign(uint32_t shard) {
  ShardState& state = shards_[shard];
  const Roster::Vacancy vacancy = VacancyOf(shard);
  const uint32_t slot = roster_.Choose(vacancy);
  if (slot == arena::kNobody) {
    state.waiting_reason = roster_.WhyNobody(vacancy);
    return;
  }
  if (state.awaited_death_id != 0) {
    state.waiting_reason = absl::StrCat("the death of worker ", state.awaited_death_id,
                                        "'s process is not proven yet");
    return;
  }
  if (!state.ownership.CanGrant()) {
    state.waiting_reason = "the deaths of its former owners are not proven yet";
    return;
  }
  Roster::Worker& worker = roster_[slot];
  state.ownership.Grant(slot, worker.id);
  state.waiting_reason.clear();
  if (worker.versions.declared()) state.state_version = worker.versions.writes;
  if (state.blackout_start_ns == 0) state.blackout_start_ns = options_.nanoseconds();
  ++worker.shards;
  NotifyOwner(shard);
}

void Succession::AssignWaiting() {
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    if (!shards_[shard].ownership.owned()) Assign(shard);
  }
}

void Succession::NameHeirs() {
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    const uint32_t heir = roster_.Choose(VacancyOf(shard));
    shards_[shard].ownership.NameHeir(heir == arena::kNobody ? 0 : roster_[heir].id);
  }
}

// ---------------------------------------------------------------- changes of owner

// The cut. What the owner has published up to here counts and is applied; nothing after it does.
EndedOwnership Succession::EndOwnership(uint32_t shard, std::string_view cause, bool released) {
  ShardState& state = shards_[shard];
  uint64_t recovered = 0;
  if (!released) {
    absl::Status error;
    while (recovered < arena::kCommitLogEntries) {
      const driver::CommitOutcome outcome = apply_next_(shard, &error);
      released = outcome == driver::CommitOutcome::kReleased;
      if (outcome != driver::CommitOutcome::kApplied) break;
      ++recovered;
    }
  }
  if (options_.break_recovery) driver_->ForgetUnacknowledged(shard);
  EndedOwnership ended = {state.ownership.epoch(), state.ownership.owner_id(), recovered, cause};
  if (state.blackout_start_ns == 0) state.blackout_start_ns = options_.nanoseconds();
  state.planned = released;
  --roster_[state.ownership.owner_slot()].shards;
  NotifyOwner(shard);  // the former owner, so that it learns
  state.ownership.End(released);
  return ended;
}

// A completion on which so many owners died in a row is given to no other.
std::optional<Poisoning> Succession::CountDeath(uint32_t shard, const EndedOwnership& ended) {
  ShardState& state = shards_[shard];
  if (state.planned) return std::nullopt;  // its release was the last that it did
  const DeathCount::Blame blame =
      state.deaths.Add(DescribeDeath(*arena_, shard, ended.epoch, ended.owner_id,
                                     arena_->shard(shard).completion_tail),
                       options_.poison_deaths);
  if (blame == DeathCount::Blame::kNobody) return std::nullopt;
  const bool guessed = blame == DeathCount::Blame::kOldest;
  const std::optional<uint64_t> completion =
      guessed ? driver_->OldestToBlame(shard, state.deaths.logged()) : state.deaths.suspect();
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
                state.deaths.DeathsOf(blame),
                state.deaths.WorkersOf(blame)};
    ++state.poisoned;
  }
  state.deaths.Clear();
  return poisoned;
}

void Succession::OnCommit(uint32_t shard, bool released) {
  if (AwaitsFirstCommit(shard)) released ? OnRefused(shard) : OnFirstCommit(shard);
  if (released) OnReleased(shard);
}

// Even if that was withdrawn in the meantime, an owner that was asked could not know.
void Succession::OnReleased(uint32_t shard) {
  const ShardState& state = shards_[shard];
  const bool asked = state.asked_epoch == state.ownership.epoch();
  // A worker that gives a shard back unasked wants no shard.
  if (!asked) roster_[state.ownership.owner_slot()].ready = false;
  const EndedOwnership ended =
      EndOwnership(shard, asked ? "handoff" : "release", /*released=*/true);
  Assign(shard);
  roster_.WakeNotified();
  MakeReport(shard, ended);
}

void Succession::OnFirstCommit(uint32_t shard) {
  ShardState& state = shards_[shard];
  const uint64_t blackout = options_.nanoseconds() - std::exchange(state.blackout_start_ns, 0);
  if (state.ownership.epoch() > 1) {
    (state.planned ? state.handoff_blackout : state.failover_blackout).Record(blackout);
  }
  const uint64_t owner = state.ownership.owner_id();
  listener_->OnEvent("shard_moved",
                     absl::StrCat("shard ", shard, " epoch ", state.ownership.epoch(), ": worker ",
                                  owner, " goes on after ", blackout / 1000, " us"),
                     owner, static_cast<int>(shard), -1);
  if (state.ownership.epoch() > 1) {
    listener_->OnServed(shard, state.report.epoch, owner, blackout);
  }
  // An owner that was asked to release before it had committed anything does so next.
  if (state.handoff_worker_id != 0 && !state.ownership.release_asked()) {
    FinishHandoff(shard,
                  owner == state.handoff_worker_id
                      ? absl::OkStatus()
                      : absl::AbortedError(absl::StrCat("worker ", owner, " took the shard over")),
                  static_cast<double>(blackout) / 1000);
  }
  NameHeirs();
}

// The new owner's first transaction gives the shard back: it does not serve it.
void Succession::OnRefused(uint32_t shard) {
  const ShardState& state = shards_[shard];
  const uint64_t owner = state.ownership.owner_id();
  if (state.handoff_worker_id != owner) return;
  FinishHandoff(shard,
                absl::AbortedError(
                    absl::StrCat("worker ", owner, " could not adopt the shard and gave it back")),
                0);
}

void Succession::OnInvalidCommit(uint32_t shard, const absl::Status& why) {
  ShardState& state = shards_[shard];
  const uint32_t slot = state.ownership.owner_slot();
  const uint64_t id = state.ownership.owner_id();
  listener_->OnEvent("worker_fenced",
                     absl::StrCat("worker ", id, " committed an invalid transaction to shard ",
                                  shard, ": ", why.message()),
                     id, static_cast<int>(shard), -1);
  // Its threads run on until it is killed, and a late store to a log or a state slot would be the
  // successor's: it starts only when the process is dead.
  roster_[slot].fenced = true;
  StopWorker(slot, id, "fenced", /*await_death=*/true);
  listener_->OnFenced(id);
}

void Succession::Handoff(uint32_t shard, uint32_t slot, HandoffDone done) {
  ShardState& state = shards_[shard];
  const Roster::Worker& worker = roster_[slot];
  const absl::Status fit = Roster::CheckSuccessor(worker, state.state_version);
  if (!fit.ok()) return done(fit, 0);
  if (state.handoff_worker_id != 0) {
    return done(absl::AbortedError("another handoff of this shard is under way"), 0);
  }
  if (state.ownership.owner_slot() == slot) return done(absl::OkStatus(), 0);
  state.handoff_worker_id = worker.id;
  state.handoff_done = std::move(done);
  state.ownership.NameHeir(worker.id);
  if (!state.ownership.owned()) return Assign(shard);
  state.asked_epoch = state.ownership.epoch();
  state.ownership.AskRelease(state.asked_epoch);
  NotifyOwner(shard);
}

void Succession::CancelHandoff(uint32_t shard, const absl::Status& why) {
  ShardState& state = shards_[shard];
  if (state.handoff_worker_id == 0) return;
  if (state.ownership.owned()) state.ownership.WithdrawRelease();
  FinishHandoff(shard, why, 0);
}

void Succession::FinishHandoff(uint32_t shard, const absl::Status& status, double blackout_us) {
  ShardState& state = shards_[shard];
  state.handoff_worker_id = 0;
  const HandoffDone done = std::exchange(state.handoff_done, nullptr);
  if (done) done(status, blackout_us);
}

// ---------------------------------------------------------------- reports

// Runs after the successor was woken, so as not to delay it: nothing that it tells has changed
// since the cut, because the engine has done nothing else.
void Succession::MakeReport(uint32_t shard, const EndedOwnership& ended) {
  ReconciliationReport& report = shards_[shard].report;
  report = Reconcile(*arena_, shard, driver_->counters(shard), ended);
  listener_->OnEvent("ownership_ended",
                     absl::StrCat("shard ", shard, " epoch ", report.epoch, " of worker ",
                                  report.former_worker_id, " ended: ", report.cause),
                     report.former_worker_id, static_cast<int>(shard), -1);
  if (report.poisoned) {
    listener_->OnEvent("connection_poisoned", DescribePoisoning(shard, *report.poisoned),
                       report.former_worker_id, static_cast<int>(shard),
                       static_cast<int>(report.poisoned->connection));
  }
  listener_->OnReport(shard, report);
}

ShardOwner Succession::owner(uint32_t shard) const {
  const driver::Ownership& ownership = shards_[shard].ownership;
  return {ownership.epoch(), ownership.owner_id(), ownership.owner_slot(), ownership.heir_id()};
}

void Succession::NotifyOwner(uint32_t shard) {
  const uint32_t slot = shards_[shard].ownership.owner_slot();
  if (slot != arena::kNobody) roster_.Notify(slot);
}

}  // namespace baton::driver_process
