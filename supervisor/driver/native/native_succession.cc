#include "supervisor/driver/native/native_succession.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/crash_point.h"
#include "supervisor/driver/engine/shard_deaths.h"
#include "supervisor/driver/engine/shard_reports.h"

namespace baton::driver_process {

NativeSuccession::NativeSuccession(arena::Arena* arena, EngineListener* listener,
                                   bool outside_effects, std::function<void(uint32_t slot)> wake)
    : Succession(arena, listener),
      outside_effects_(outside_effects),
      wake_(std::move(wake)),
      known_(arena->shape().shards) {
  for (uint32_t i = 0; i < arena->shape().shards; ++i) {
    arena::StoreRelease(arena->shard(i).owner.ownership, arena::PackOwnership(0, arena::kNobody));
  }
}

void NativeSuccession::WakeClaimantOrOwner(uint32_t shard) const {
  const uint32_t slot = ClaimantOrOwner(shard);
  if (slot != arena::kNobody) wake_(slot);
}

// ---------------------------------------------------------------- what workers have done

void NativeSuccession::LookAtShards() {
  bool changed = false;
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    driver::Ownership& ownership = shards_[shard].ownership;
    Known& known = known_[shard];
    const uint64_t word = ownership.word();
    const uint64_t epoch = arena::OwnershipEpoch(word);
    const uint32_t slot = arena::OwnershipSlot(word);
    BATON_CRASH_POINT("native-looking");
    NoteRelease(shard);
    if (slot != arena::kNobody && arena::ClaimantOrOwner(slot) >= arena_->shape().workers) {
      listener_->OnEvent("ownership_broken",
                         absl::StrCat("shard ", shard, " belongs to worker slot ",
                                      arena::ClaimantOrOwner(slot), " of ", arena_->shape().workers,
                                      ", which a worker must have written: it is given to another"),
                         0, static_cast<int>(shard), -1);
      ownership.Vacate(word);
    } else if (slot == arena::kNobody) {
      Give(shard);
    } else if (!arena::IsClaim(slot) && epoch != known.epoch) {
      known.epoch = ownership.epoch();
      NoteOwner(shard, roster_[slot]);
      changed = true;
    }
    ReadReports(shard);
    const uint64_t served = arena::LoadAcquire(arena_->native_shard(shard).served_epoch);
    if (served == known.epoch && served != known.served) {
      OnFirstCommit(shard);
      changed = true;
    }
  }
  if (changed) NameHeirs();
}

// A worker that gives a shard back unasked does not want shards, so it is not ready any more.
void NativeSuccession::NoteRelease(uint32_t shard) {
  Known& known = known_[shard];
  const uint64_t released = arena::LoadAcquire(arena_->shard(shard).released_epoch);
  if (released == 0 || released == known.released) return;
  // The arena names the former owner a little later than the release, and only until the next
  // change.
  const arena::NativeShard& change = arena_->native_shard(shard);
  const uint64_t changed = arena::LoadAcquire(change.change_epoch);
  if (changed < released) return;
  known.released = released;
  if (released == shards_[shard].asked_epoch || changed != released) return;
  const uint64_t former = change.former_worker_id;
  for (uint32_t slot = 0; slot < arena_->shape().workers; ++slot) {
    if (former != 0 && roster_[slot].id == former) roster_[slot].ready = false;
  }
  OnGivenBack(shard, former);
}

// Reads the reports that successors wrote about ended owners, as far as they still exist.
void NativeSuccession::ReadReports(uint32_t shard) {
  Known& known = known_[shard];
  const uint64_t last = known.epoch == 0 ? 0 : known.epoch - 1;
  if (last > arena::kNativeReports) {
    known.reported = std::max(known.reported, last - arena::kNativeReports);
  }
  for (; known.reported < last; ++known.reported) {
    const uint64_t epoch = known.reported + 1;
    if (!ReadReport(shard, epoch)) {
      if (epoch < last) continue;  // its writer died: it stays as it is
      break;                       // it is being written: the next turn reads it
    }
    TellEnd(shard);
  }
  const uint64_t epoch = shards_[shard].report.epoch;
  if (epoch == 0) return;
  const uint64_t version = arena::LoadRelaxed(arena_->native_report(shard, epoch).version);
  if (version != known.report_version) ReadReport(shard, epoch);
}

bool NativeSuccession::ReadReport(uint32_t shard, uint64_t epoch) {
  ShardState& state = shards_[shard];
  Known& known = known_[shard];
  uint64_t version = 0;
  std::optional<ReconciliationReport> report = ReadShardReport(*arena_, shard, epoch, &version);
  if (!report) return false;
  if (report->released) {
    report->cause = state.asked_epoch == epoch ? "handoff" : "release";
  } else {
    const bool explained = report->former_worker_id == known.explained_worker_id;
    report->cause = explained ? std::string(known.explanation) : "crash";
  }
  state.report = *std::move(report);
  known.report_version = version;
  listener_->OnReport(shard, state.report);
  return true;
}

void NativeSuccession::OnFirstCommit(uint32_t shard) {
  const arena::NativeShard& change = arena_->native_shard(shard);
  const uint64_t epoch = known_[shard].served = known_[shard].epoch;
  last_served_ns_ = MonotonicNanoseconds();
  const bool released = arena::ChangeCause(change.cause) == arena::ChangeCause::kRelease;
  OnServed(shard, epoch, epoch - 1, released, change.blackout_ns);
}

// ---------------------------------------------------------------- who is next

void NativeSuccession::Give(uint32_t shard) {
  const uint32_t slot = ChooseFor(shard);
  if (slot == arena::kNobody) return;
  driver::Ownership& ownership = shards_[shard].ownership;
  const uint64_t word = ownership.word();
  BATON_CRASH_POINT("native-before-giving");
  if (arena::OwnershipSlot(word) == arena::kNobody && ownership.Claim(word, slot)) wake_(slot);
}

// With outside effects an heir may claim the shard only for a handoff, or for a release that a
// former keeper asked for. If an owner dies, its process has to be dead first. Then the driver
// gives the shard to a worker.
void NativeSuccession::NameHeir(uint32_t shard, uint32_t slot) {
  Succession::NameHeir(shard, slot);
  ShardState& state = shards_[shard];
  const bool release_expected = state.handoff_worker_id != 0 || state.ownership.release_asked();
  const bool may_claim = slot != arena::kNobody && (!outside_effects_ || release_expected);
  const uint64_t named = may_claim ? slot + 1 : 0;
  uint64_t& word = arena_->native_shard(shard).heir;
  if (arena::LoadRelaxed(word) == named) return;
  arena::StoreRelease(word, named);
  // The heir begins to watch the owner, and looks whether it can claim the shard already.
  state.ownership.Announce();
  if (named != 0) wake_(slot);
}

void NativeSuccession::AskRelease(uint32_t shard) {
  BATON_CRASH_POINT("native-before-asking");
  Succession::AskRelease(shard);
  BATON_CRASH_POINT("native-release-asked");
}

// ---------------------------------------------------------------- ends of workers

// Pardons the death in each shard that the worker owns: only there could a completion be blamed.
void NativeSuccession::PardonDeath(uint32_t slot, uint64_t id) {
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    if (ClaimantOrOwner(shard) != slot) continue;
    arena::StoreRelease(arena_->native_shard(shard).pardoned_worker_id, id);
  }
}

// Stores the cause now, because the heir may make its report before the process is known to be
// dead.
void NativeSuccession::ExplainDeath(uint32_t slot, uint64_t id, std::string_view cause) {
  for (uint32_t shard = 0; shard < shard_count(); ++shard) {
    if (shards_[shard].ownership.owner_slot() != slot) continue;
    known_[shard].explained_worker_id = id;
    known_[shard].explanation = cause;
  }
}

void NativeSuccession::WorkerEnded(uint32_t slot, uint64_t id, std::string_view) {
  if (NoteEnded(slot, id) != nullptr) NameHeirs();
}

// The heir has usually claimed the worker's shards long before this. Shards that nobody has claimed
// are given to another worker, so that no ownership word names the slot any more.
void NativeSuccession::WorkerDead(uint32_t slot, uint64_t id) {
  if (roster_.Find(slot, id) == nullptr) return;
  WorkerEnded(slot, id, "crash");
  roster_.Remove(slot);
  for (ShardState& state : shards_) {
    const uint64_t word = state.ownership.word();
    BATON_CRASH_POINT("native-before-vacating");
    if (arena::ClaimantOrOwner(arena::OwnershipSlot(word)) == slot) state.ownership.Vacate(word);
  }
  LookAtShards();
  NameHeirs();
}

uint64_t NativeSuccession::poisoned_connections(uint32_t shard) const {
  return LoadDeaths(*arena_, shard).poisoned;
}

}  // namespace baton::driver_process
