#include "supervisor/driver/engine/succession.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::driver_process {

Succession::Succession(arena::Arena* arena, EngineListener* listener)
    : arena_(arena), listener_(listener), roster_(arena) {
  for (uint32_t i = 0; i < arena->shape().shards; ++i) {
    shards_.emplace_back(driver::Ownership(arena, i));
  }
}

// ---------------------------------------------------------------- workers

void Succession::AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake, StateVersions versions,
                           Standing standing) {
  roster_.Add(slot, id, std::move(wake), versions, standing);
}

void Succession::SetStanding(uint32_t slot, uint64_t id, Standing standing) {
  Roster::Worker* const worker = roster_.Find(slot, id);
  if (worker == nullptr) return;
  worker->standing = standing;
  NameHeirs();
}

void Succession::AskToStop(uint32_t slot, uint64_t id) {
  if (roster_.Find(slot, id) == nullptr) return;
  roster_.AskToStop(slot);
  roster_.WakeNotified();
}

void Succession::SetReady(uint32_t slot) {
  last_failure_.clear();
  roster_[slot].ready = true;
  GiveVacant();
  NameHeirs();
}

void Succession::SetSilent(uint32_t slot, uint64_t id, bool silent) {
  Roster::Worker* const worker = roster_.Find(slot, id);
  if (worker == nullptr) return;
  worker->silent = silent;
  if (!silent) GiveVacant();
  NameHeirs();
}

void Succession::Retire(uint32_t slot, uint64_t id) {
  Roster::Worker* const worker = roster_.Find(slot, id);
  if (worker == nullptr) return;
  worker->retired = true;
  NameHeirs();
}

Roster::Worker* Succession::NoteEnded(uint32_t slot, uint64_t id) {
  Roster::Worker* const worker = roster_.Find(slot, id);
  if (worker == nullptr || worker->ended) return nullptr;
  worker->ended = true;
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    if (shards_[shard].handoff_worker_id != id) continue;
    CancelHandoff(shard, absl::UnavailableError("the successor died before it took over"));
  }
  return worker;
}

// ---------------------------------------------------------------- who is next

uint32_t Succession::ClaimantOrOwner(uint32_t shard) const {
  const uint32_t slot = arena::ClaimantOrOwner(shards_[shard].ownership.owner_slot());
  return slot < arena_->shape().workers ? slot : arena::kNobody;
}

Roster::Vacancy Succession::VacancyOf(uint32_t shard) const {
  const ShardState& state = shards_[shard];
  return {state.state_version, state.handoff_worker_id, ClaimantOrOwner(shard)};
}

uint32_t Succession::ChooseFor(uint32_t shard) {
  const Roster::Vacancy vacancy = VacancyOf(shard);
  const uint32_t slot = roster_.Choose(vacancy);
  if (slot != arena::kNobody) return slot;
  std::string& reason = shards_[shard].waiting_reason = roster_.WhyNobody(vacancy);
  if (!last_failure_.empty()) {
    absl::StrAppend(&reason, "; the last one could not be run: ", last_failure_);
  }
  return slot;
}

void Succession::NameHeirs() {
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    NameHeir(shard, roster_.Choose(VacancyOf(shard)));
  }
}

void Succession::NameHeir(uint32_t shard, uint32_t slot) {
  shards_[shard].ownership.NameHeir(slot == arena::kNobody ? 0 : roster_[slot].id);
}

void Succession::NoteOwner(uint32_t shard, const Roster::Worker& worker) {
  ShardState& state = shards_[shard];
  state.waiting_reason.clear();
  if (worker.versions.declared()) state.state_version = worker.versions.writes;
}

void Succession::NotifyClaimantOrOwner(uint32_t shard) {
  const uint32_t slot = ClaimantOrOwner(shard);
  if (slot != arena::kNobody) roster_.Notify(slot);
}

ShardOwner Succession::owner(uint32_t shard) const {
  const driver::Ownership& ownership = shards_[shard].ownership;
  ShardOwner owner;
  owner.epoch = ownership.epoch();
  owner.heir_id = ownership.heir_id();
  owner.slot = ClaimantOrOwner(shard);
  if (owner.slot != arena::kNobody) {
    const bool claimed = ownership.owner_slot() != owner.slot;
    owner.worker_id = claimed ? roster_[owner.slot].id : ownership.owner_id();
  }
  return owner;
}

// ---------------------------------------------------------------- handoff

void Succession::Handoff(uint32_t shard, uint32_t slot, HandoffDone done) {
  BeforeHandoff(shard);
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
  if (!state.ownership.owned()) return Give(shard);
  state.asked_epoch = state.ownership.epoch();
  NameHeir(shard, slot);  // before the release: a native former heir would claim the shard
  AskRelease(shard);
  NotifyClaimantOrOwner(shard);
  roster_.WakeNotified();
}

void Succession::AskRelease(uint32_t shard) {
  shards_[shard].ownership.AskRelease(shards_[shard].asked_epoch);
}

void Succession::CancelHandoff(uint32_t shard, const absl::Status& why) {
  if (shards_[shard].handoff_worker_id == 0) return;
  shards_[shard].ownership.WithdrawRelease();
  FinishHandoff(shard, why, 0);
  NameHeir(shard, roster_.Choose(VacancyOf(shard)));
}

void Succession::FinishHandoff(uint32_t shard, const absl::Status& status, double blackout_us) {
  ShardState& state = shards_[shard];
  state.handoff_worker_id = 0;
  const HandoffDone done = std::exchange(state.handoff_done, nullptr);
  if (done) done(status, blackout_us);
}

void Succession::OnServed(uint32_t shard, uint64_t epoch, uint64_t ended_epoch, bool planned,
                          uint64_t blackout_ns) {
  ShardState& state = shards_[shard];
  const uint64_t owner = state.ownership.owner_id();
  listener_->OnEvent("shard_moved",
                     absl::StrCat("shard ", shard, " epoch ", epoch, ": worker ", owner,
                                  " goes on after ", blackout_ns / 1000, " us"),
                     owner, static_cast<int>(shard), -1);
  if (epoch > 1) {
    (planned ? state.handoff_blackout : state.failover_blackout).Record(blackout_ns);
    listener_->OnServed(shard, ended_epoch, owner, blackout_ns);
  }
  // An owner that was asked to release before it had committed anything does so next.
  if (state.handoff_worker_id == 0 || state.ownership.release_asked()) return;
  FinishHandoff(shard,
                owner == state.handoff_worker_id
                    ? absl::OkStatus()
                    : absl::AbortedError(absl::StrCat("worker ", owner, " took the shard over")),
                static_cast<double>(blackout_ns) / 1000);
}

void Succession::OnGivenBack(uint32_t shard, uint64_t worker_id) {
  if (worker_id == 0 || shards_[shard].handoff_worker_id != worker_id) return;
  FinishHandoff(shard,
                absl::AbortedError(absl::StrCat("worker ", worker_id,
                                                " could not adopt the shard and gave it back")),
                0);
}

void Succession::TellEnd(uint32_t shard) {
  const ReconciliationReport& report = shards_[shard].report;
  listener_->OnEvent("ownership_ended",
                     absl::StrCat("shard ", shard, " epoch ", report.epoch, " of worker ",
                                  report.former_worker_id, " ended: ", report.cause),
                     report.former_worker_id, static_cast<int>(shard), -1);
  if (!report.poisoned) return;
  listener_->OnEvent("connection_poisoned", DescribePoisoning(shard, *report.poisoned),
                     report.former_worker_id, static_cast<int>(shard),
                     static_cast<int>(report.poisoned->connection));
}

}  // namespace baton::driver_process
