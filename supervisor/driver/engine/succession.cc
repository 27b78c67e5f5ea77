#include "supervisor/driver/engine/succession.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/crash_point.h"
#include "supervisor/driver/engine/shard_change.h"
#include "supervisor/driver/engine/shard_deaths.h"
#include "supervisor/driver/engine/shard_reports.h"

namespace baton::driver_process {
namespace {

constexpr std::string_view kCrash = "crash";        // unless a better cause is known
constexpr std::string_view kDetached = "detached";  // cause of an end that is no death
constexpr size_t kExplanations = 2 * arena::kMaxWorkers;

}  // namespace

Succession::Succession(arena::Arena* arena, EngineListener* listener, bool outside_effects)
    : roster_(arena),
      wakes_(arena),
      arena_(arena),
      listener_(listener),
      outside_effects_(outside_effects) {
  for (uint32_t i = 0; i < arena->shape().shards; ++i) {
    shards_.emplace_back(driver::Ownership(arena, i));
  }
}

// ---------------------------------------------------------------- workers

void Succession::AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake, StateVersions versions,
                           Standing standing) {
  roster_.Add(slot, id, versions, standing);
  wakes_.Add(slot, std::move(wake));
  arena::StoreRelease(arena_->worker_record(slot).id, id);
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
  wakes_.Notify(slot);
  wakes_.WakeNotified();
}

void Succession::SetReady(uint32_t slot) {
  last_failure_.clear();
  roster_[slot].ready = true;
  LookAtShards();
  NameHeirs();
}

void Succession::SetSilent(uint32_t slot, uint64_t id, bool silent) {
  Roster::Worker* const worker = roster_.Find(slot, id);
  if (worker == nullptr) return;
  worker->silent = silent;
  if (!silent) LookAtShards();
  NameHeirs();
}

bool Succession::IsIdle(uint32_t slot, uint64_t id) const {
  if (drivers_->heirs_claim()) return false;
  return roster_[slot].id != id ||
         std::none_of(shards_.begin(), shards_.end(), [&](const ShardState& shard) {
           return shard.ownership.owner_slot() == slot || shard.handoff_worker_id == id;
         });
}

void Succession::Retire(uint32_t slot, uint64_t id, bool retired) {
  Roster::Worker* const worker = roster_.Find(slot, id);
  if (worker == nullptr) return;
  worker->retired = retired;
  NameHeirs();
}

bool Succession::Settle() {
  if (drivers_ == nullptr) return true;  // an engine of tests
  const bool settled = drivers_->Settle();
  LookAtShards();
  return settled;
}

void Succession::PardonDeath(uint32_t slot, uint64_t id) {
  arena::StoreRelease(arena_->worker_record(slot).pardoned_id, id);
}

// Native reports may come when another worker has the slot.
void Succession::ExplainDeath(uint32_t /*slot*/, uint64_t id, std::string_view cause) {
  explanations_.emplace_back(id, cause);
  if (explanations_.size() > kExplanations) explanations_.pop_front();
}

bool Succession::NoteEnded(uint32_t slot, uint64_t id) {
  Roster::Worker* const worker = roster_.Find(slot, id);
  if (worker == nullptr || worker->ended) return false;
  worker->ended = true;
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    if (shards_[shard].handoff_worker_id != id) continue;
    CancelHandoff(shard, absl::UnavailableError("the successor died before it took over"));
  }
  return true;
}

void Succession::WorkerEnded(uint32_t slot, uint64_t id, std::string_view cause) {
  if (!NoteEnded(slot, id)) return;
  if (cause != kCrash) ExplainDeath(slot, id, cause);
  if (cause == kDetached) PardonDeath(slot, id);
  arena::StoreRelease(arena_->worker_record(slot).ended_id, id);
  drivers_->OnEnded();
  LookAtShards();
  NameHeirs();
}

// A native heir has usually claimed the worker's shards long before this.
void Succession::WorkerDead(uint32_t slot, uint64_t id) {
  if (roster_.Find(slot, id) == nullptr) return;
  WorkerEnded(slot, id, kCrash);
  roster_.Remove(slot);
  wakes_.Remove(slot);
  arena::StoreRelease(arena_->worker_record(slot).dead_id, id);
  drivers_->OnDead(slot);
  LookAtShards();
  NameHeirs();
}

// ---------------------------------------------------------------- what drivers have done

void Succession::LookAtShards() {
  bool changed = NoteEnds();
  for (uint32_t shard = 0; shard < shard_count(); ++shard) changed |= LookAt(shard);
  if (changed) NameHeirs();
}

// The dead process may have asked an owner to release, and a worker that was asked stays ready.
void Succession::TakeOver() {
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    const uint64_t asked = arena::LoadRelaxed(arena_->shard(shard).owner.release_requested);
    shards_[shard].asked_epoch = std::max(shards_[shard].asked_epoch, asked);
  }
}

bool Succession::LookAt(uint32_t shard) {
  if (VacateBroken(shard)) return false;
  const bool owned = shards_[shard].ownership.owned();
  BATON_CRASH_POINT("succession-looking");
  // An owner may have served and gone since the last look.
  bool changed = NoteFirstCommit(shard, /*gone=*/true);
  changed |= NoteRelease(shard);
  if (!owned) Give(shard);
  changed |= NoteOwner(shard);
  ReadReports(shard);
  return NoteFirstCommit(shard, /*gone=*/false) || changed;
}

// Returns true if the word was invalid, and nobody has the shard now.
bool Succession::VacateBroken(uint32_t shard) {
  driver::Ownership& ownership = shards_[shard].ownership;
  const uint64_t word = ownership.word();
  const uint32_t slot = arena::ClaimantOrOwner(arena::OwnershipSlot(word));
  if (slot == arena::kNobody || slot < arena_->shape().workers) return false;
  listener_->OnEvent("ownership_broken",
                     absl::StrCat("shard ", shard, " belongs to worker slot ", slot, " of ",
                                  arena_->shape().workers,
                                  ", which a worker must have written: it is given to another"),
                     0, static_cast<int>(shard), -1);
  ownership.Vacate(word);
  return true;
}

bool Succession::NoteOwner(uint32_t shard) {
  ShardState& state = shards_[shard];
  const uint64_t word = state.ownership.word();
  const uint32_t slot = arena::OwnershipSlot(word);
  // A claimant is no owner yet. An invalid slot is seen by the next look.
  if (slot >= arena_->shape().workers || arena::OwnershipEpoch(word) == state.known.epoch) {
    return false;
  }
  state.known.epoch = arena::OwnershipEpoch(word);
  state.waiting_reason.clear();
  const Roster::Worker& worker = roster_[slot];
  if (worker.versions.declared()) state.state_version = worker.versions.writes;
  return true;
}

// Native workers could write these words, and are not fenced.
bool Succession::IsFencedId(uint64_t id) const {
  return !drivers_->heirs_claim() && WasFenced(*arena_, id);
}

// Drivers fence workers, and may learn of a worker's death first.
bool Succession::NoteEnds() {
  if (drivers_->heirs_claim()) return false;
  bool changed = false;
  for (uint32_t slot = 0; slot < arena_->shape().workers; ++slot) {
    Roster::Worker& worker = roster_[slot];
    const arena::WorkerRecord& record = arena_->worker_record(slot);
    if (worker.id != 0 && worker.id == arena::LoadAcquire(record.ended_id)) {
      changed |= NoteEnded(slot, worker.id);
    }
    const uint64_t fenced = arena::LoadAcquire(record.fenced_id);
    if (worker.id == 0 || worker.id != fenced || worker.fenced) continue;
    worker.fenced = changed = true;
    NoteEnded(slot, worker.id);
    listener_->OnFenced(worker.id);
  }
  return changed;
}

// A worker that gives a shard back unasked does not want shards, so it is not ready any more. One
// counts as asked even if the request was withdrawn, because it could not know that.
bool Succession::NoteRelease(uint32_t shard) {
  Known& known = shards_[shard].known;
  const uint64_t released = arena::LoadAcquire(arena_->shard(shard).released_epoch);
  if (released == 0 || released == known.released) return false;
  // The arena names the former owner a little later than the release, and only until the next
  // change.
  const arena::SuccessionRecord& change = arena_->succession(shard);
  const uint64_t changed = arena::LoadAcquire(change.change_epoch);
  if (changed < released) return false;
  known.released = released;
  if (released == shards_[shard].asked_epoch) return false;
  uint64_t former = change.former_worker_id, version = 0;
  if (changed != released) {
    const auto report = ReadShardReport(*arena_, shard, released, &version);
    former = report ? report->former_worker_id : 0;
  }
  for (uint32_t slot = 0; slot < arena_->shape().workers; ++slot) {
    if (former != 0 && roster_[slot].id == former) roster_[slot].ready = false;
  }
  OnGivenBack(shard, former);
  return true;
}

// `gone`: looks for one whose epoch is over. Native workers can write an epoch that has never been.
bool Succession::NoteFirstCommit(uint32_t shard, bool gone) {
  Known& known = shards_[shard].known;
  const arena::SuccessionRecord& change = arena_->succession(shard);
  const driver::Ownership& ownership = shards_[shard].ownership;
  const uint64_t served = arena::LoadAcquire(change.served_epoch);
  if (served <= known.served || served > ownership.epoch()) return false;
  if ((served != ownership.epoch()) != gone) return false;
  if (gone && change.change_epoch != served) return false;  // nobody knows who it was
  if (!gone && served != known.epoch) return false;
  known.served = served;
  last_served_ns_ = MonotonicNanoseconds();
  OnServed(shard, served, gone ? change.former_worker_id : ownership.owner_id());
  return true;
}

// Reads the reports about ended owners, as far as they still exist. A native successor writes them,
// and writes over the one that is kReports older.
void Succession::ReadReports(uint32_t shard) {
  const ShardState& state = shards_[shard];
  Known& known = shards_[shard].known;
  uint64_t last = known.epoch == 0 ? 0 : known.epoch - 1;
  if (!state.ownership.owned()) last = state.ownership.epoch();
  if (last > arena::kReports) {
    known.reported = std::max(known.reported, last - arena::kReports);
  }
  for (; known.reported < last; ++known.reported) {
    const uint64_t epoch = known.reported + 1;
    if (!ReadReport(shard, epoch)) {
      if (epoch < last) continue;  // its writer died, or no bank was free for the epoch
      break;                       // it is being written: the next turn reads it
    }
    TellEnd(shard);
  }
  const uint64_t epoch = state.report.epoch;
  if (epoch == 0) return;
  const uint64_t version = arena::LoadRelaxed(arena_->report(shard, epoch).version);
  if (version != known.report_version) ReadReport(shard, epoch);
}

bool Succession::ReadReport(uint32_t shard, uint64_t epoch) {
  ShardState& state = shards_[shard];
  uint64_t version = 0;
  std::optional<ReconciliationReport> report = ReadShardReport(*arena_, shard, epoch, &version);
  if (!report) return false;
  report->cause = CauseOf(shard, *report);
  state.report = *std::move(report);
  state.known.report_version = version;
  listener_->OnReport(shard, state.report);
  return true;
}

std::string Succession::CauseOf(uint32_t shard, const ReconciliationReport& report) const {
  if (report.released) return shards_[shard].asked_epoch == report.epoch ? "handoff" : "release";
  if (IsFencedId(report.former_worker_id)) return "fenced";
  for (const auto& [id, cause] : explanations_) {
    if (id == report.former_worker_id) return std::string(cause);
  }
  return std::string(kCrash);
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

void Succession::OnServed(uint32_t shard, uint64_t epoch, uint64_t owner) {
  ShardState& state = shards_[shard];
  const arena::SuccessionRecord& change = arena_->succession(shard);
  const uint64_t blackout_ns = change.blackout_ns;
  listener_->OnEvent("shard_moved",
                     absl::StrCat("shard ", shard, " epoch ", epoch, ": worker ", owner,
                                  " goes on after ", blackout_ns / 1000, " us"),
                     owner, static_cast<int>(shard), -1);
  if (epoch > 1) {
    const bool released = arena::ChangeCause(change.served_cause) == arena::ChangeCause::kRelease;
    (released ? state.handoff_blackout : state.failover_blackout).Record(blackout_ns);
    // The next change may have begun already.
    listener_->OnServed(shard, std::min(change.change_epoch, epoch - 1), owner, blackout_ns);
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

// ---------------------------------------------------------------- who is next

uint32_t Succession::ClaimantOrOwner(uint32_t shard) const {
  const uint32_t slot = arena::ClaimantOrOwner(shards_[shard].ownership.owner_slot());
  return slot < arena_->shape().workers ? slot : arena::kNobody;
}

Roster::Vacancy Succession::VacancyOf(uint32_t shard) const {
  const ShardState& state = shards_[shard];
  return {state.state_version, state.handoff_worker_id, ClaimantOrOwner(shard)};
}

void Succession::CountShards() {
  for (uint32_t slot = 0; slot < arena_->shape().workers; ++slot) roster_[slot].shards = 0;
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    const uint32_t slot = ClaimantOrOwner(shard);
    if (slot != arena::kNobody) ++roster_[slot].shards;
  }
}

uint32_t Succession::ChooseFor(uint32_t shard) {
  CountShards();
  const Roster::Vacancy vacancy = VacancyOf(shard);
  const uint32_t slot = roster_.Choose(vacancy);
  if (slot != arena::kNobody) return slot;
  std::string& reason = shards_[shard].waiting_reason = roster_.WhyNobody(vacancy);
  if (!last_failure_.empty()) {
    absl::StrAppend(&reason, "; the last one could not be run: ", last_failure_);
  }
  return slot;
}

void Succession::Give(uint32_t shard) {
  const uint32_t slot = ChooseFor(shard);
  NameHeir(shard, slot);
  if (slot == arena::kNobody) return;
  std::string why = drivers_->Give(shard, slot);
  if (!why.empty()) shards_[shard].waiting_reason = std::move(why);
}

// The shards of one owner are spread over its heirs, as if each heir had those before already.
// Natively one heir inherits them all, because it may have to adopt them together (Claims::Next).
void Succession::NameHeirs() {
  std::vector<std::pair<uint32_t, uint32_t>> by_owner;  // native workers may claim meanwhile
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    by_owner.emplace_back(ClaimantOrOwner(shard), shard);
  }
  std::sort(by_owner.begin(), by_owner.end());
  uint32_t former_owner = arena::kNobody;
  for (const auto& [owner, shard] : by_owner) {
    if (shard == by_owner.front().second || owner != former_owner) CountShards();
    former_owner = owner;
    const uint32_t slot = roster_.Choose(VacancyOf(shard));
    NameHeir(shard, slot);
    if (slot != arena::kNobody && !drivers_->heirs_claim()) ++roster_[slot].shards;
  }
}

// With outside effects an heir may claim the shard only for a handoff, or for a release that a
// former keeper asked for. If an owner dies, its process has to be dead first. Then this class
// gives the shard to a worker.
void Succession::NameHeir(uint32_t shard, uint32_t slot) {
  ShardState& state = shards_[shard];
  state.ownership.NameHeir(slot == arena::kNobody ? 0 : roster_[slot].id);
  const bool release_expected = state.handoff_worker_id != 0 || state.ownership.release_asked();
  if (drivers_->heirs_claim() && outside_effects_ && !release_expected) slot = arena::kNobody;
  const uint64_t named = slot == arena::kNobody ? 0 : slot + 1;
  uint64_t& word = arena_->succession(shard).heir;
  if (arena::LoadRelaxed(word) == named) return;
  arena::StoreRelease(word, named);
  drivers_->OnHeir(shard, slot);
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

uint64_t Succession::poisoned_connections(uint32_t shard) const {
  return LoadDeaths(*arena_, shard).poisoned;
}

// ---------------------------------------------------------------- handoff

void Succession::Handoff(uint32_t shard, uint32_t slot, HandoffDone done) {
  NoteRelease(shard);  // before `asked_epoch` changes, which says whether the last owner was asked
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
  if (!state.ownership.owned()) return LookAtShards();
  state.asked_epoch = state.ownership.epoch();
  NameHeir(shard, slot);  // before the release: a native former heir would claim the shard
  BATON_CRASH_POINT("succession-before-asking");
  state.ownership.AskRelease(state.asked_epoch);
  BATON_CRASH_POINT("succession-release-asked");
  const uint32_t owner = ClaimantOrOwner(shard);
  if (owner != arena::kNobody) wakes_.Notify(owner);
  wakes_.WakeNotified();
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

}  // namespace baton::driver_process
