#include "supervisor/driver/native/native_engine.h"

#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/crash_point.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "lib/driver/connection_state.h"
#include "lib/driver/grants.h"
#include "supervisor/driver/engine/device_event_text.h"
#include "supervisor/driver/native/native_reports.h"

namespace baton::driver_process {
NativeEngine::NativeEngine(arena::Arena* arena, verbs::Device* device,
                           const NativeEngineOptions& options)
    : arena_(arena),
      device_(device),
      options_(options),
      counters_(std::make_unique<NativeCounters>(arena)),
      roster_(arena),
      device_info_(device->info()) {
  for (uint32_t i = 0; i < arena->shape().shards; ++i) {
    shards_.emplace_back(driver::Ownership(arena, i));
    arena::StoreRelease(arena->shard(i).owner.ownership, arena::PackOwnership(0, arena::kNobody));
  }
}

absl::StatusOr<std::unique_ptr<NativeEngine>> NativeEngine::Create(
    arena::Arena* arena, verbs::Device* device, const NativeEngineOptions& options) {
  BATON_RETURN_IF_ERROR(device->CheckForkable());
  std::unique_ptr<NativeEngine> engine(new NativeEngine(arena, device, options));
  BATON_RETURN_IF_ERROR(engine->Open());
  BATON_ASSIGN_OR_RETURN(engine->manager_,
                         native::ConnectionManager::Create(
                             arena, device, engine.get(), [raw = engine.get()](uint32_t shard) {
                               const uint32_t slot = raw->Holder(shard);
                               if (slot != arena::kNobody) raw->Wake(slot);
                             }));
  return engine;
}

absl::Status NativeEngine::Open() {
  const auto open = [](FileDescriptor* descriptor) {
    descriptor->Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    return *descriptor ? absl::OkStatus() : ErrnoStatus(errno, "eventfd (see RLIMIT_NOFILE)");
  };
  BATON_RETURN_IF_ERROR(open(&wake_));
  wakes_.resize(arena_->shape().workers);
  for (FileDescriptor& wake : wakes_) BATON_RETURN_IF_ERROR(open(&wake));
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
    return ErrnoStatus(errno, "a socket pair for news (see RLIMIT_NOFILE)");
  }
  news_.Reset(pair[0]);
  news_of_ours_.Reset(pair[1]);
  return absl::OkStatus();
}

NativeInheritance NativeEngine::InheritanceOf(uint32_t slot, uint64_t worker_id) {
  NativeInheritance inheritance;
  inheritance.arena = arena_;
  inheritance.device = device_;
  inheritance.pool = &manager_->pool();
  inheritance.objects = manager_->objects();
  inheritance.slot = slot;
  inheritance.worker_id = worker_id;
  inheritance.driver_wake = wake_.get();
  for (const FileDescriptor& wake : wakes_) inheritance.wakes.push_back(wake.get());
  inheritance.news = news_of_ours_.get();
  inheritance.realtime_priority = options_.realtime_priority;
  inheritance.outside_effects = options_.outside_effects;
  inheritance.poison_deaths = options_.poison_deaths;
  return inheritance;
}

std::vector<int> NativeEngine::descriptors() const {
  return {wake_.get(), news_.get(), device_->event_fd()};
}

// ---------------------------------------------------------------- turns

void NativeEngine::Turn() {
  eventfd_t count;
  (void)eventfd_read(wake_.get(), &count);
  // The rest waits for the next turn, which follows at once.
  if (manager_->Turn()) (void)eventfd_write(wake_.get(), 1);
  LookAtShards();
  LookAtSharedReceives();
  ReadNews();
  roster_.WakeNotified();
}

// Its owner or claimant. The word is one that workers write.
uint32_t NativeEngine::Holder(uint32_t shard) const {
  const uint32_t slot = arena::ClaimantOrOwner(shards_[shard].ownership.owner_slot());
  return slot < arena_->shape().workers ? slot : arena::kNobody;
}

void NativeEngine::Wake(uint32_t slot) const { (void)eventfd_write(wakes_[slot].get(), 1); }

void NativeEngine::ReadNews() {
  driver_process::ReadNews(news_.get(), [this](const News& news) {
    if (news.kind == kWorkerFailed) last_failure_ = news.message;
    listener_->OnEvent(news.kind, news.message, 0, news.shard, news.connection);
  });
}

// Notices changes of owner that workers made among themselves.
void NativeEngine::LookAtShards() {
  bool changed = false;
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    ShardState& state = shards_[shard];
    const uint64_t word = state.ownership.word();
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
      state.ownership.Vacate(word);
    } else if (slot == arena::kNobody) {
      GiveToSomebody(shard);
    } else if (!arena::IsClaim(slot) && epoch != state.known_epoch) {
      OnNewOwner(shard, slot);
      changed = true;
    }
    ReadReports(shard);
    const uint64_t served = arena::LoadAcquire(arena_->native_shard(shard).served_epoch);
    if (served == state.known_epoch && served != state.served_epoch) {
      OnFirstCommit(shard);
      changed = true;
    }
  }
  if (changed) NameHeirs();
}

// When they are broken in all shards, the service has no use of its device.
void NativeEngine::LookAtSharedReceives() {
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    if (arena::LoadRelaxed(arena_->shard(shard).shared_receives_refused) == 0) return;
  }
  listener_->OnDeviceLost(
      absl::UnavailableError("the shared receive queues of all shards are broken"));
}

// A worker that gives a shard back unasked does not want shards, so it is not ready any more.
void NativeEngine::NoteRelease(uint32_t shard) {
  ShardState& state = shards_[shard];
  const uint64_t released = arena::LoadAcquire(arena_->shard(shard).released_epoch);
  if (released == 0 || released == state.noted_release) return;
  // The arena names the former owner a little later, and until the next change.
  const arena::NativeShard& change = arena_->native_shard(shard);
  const uint64_t changed = arena::LoadAcquire(change.change_epoch);
  if (changed < released) return;
  state.noted_release = released;
  if (released == state.asked_epoch || changed != released) return;
  const uint64_t former = change.former_worker_id;
  for (uint32_t slot = 0; slot < arena_->shape().workers; ++slot) {
    if (former != 0 && roster_[slot].id == former) roster_[slot].ready = false;
  }
  if (state.handoff_worker_id != 0 && state.handoff_worker_id == former) {
    FinishHandoff(shard,
                  absl::AbortedError(absl::StrCat("worker ", former,
                                                  " could not adopt the shard and gave it back")),
                  0);
  }
}

void NativeEngine::OnNewOwner(uint32_t shard, uint32_t slot) {
  ShardState& state = shards_[shard];
  state.known_epoch = state.ownership.epoch();
  state.waiting_reason.clear();
  const Roster::Worker& worker = roster_[slot];
  if (worker.versions.declared()) state.state_version = worker.versions.writes;
}

// Reads the reports that successors wrote about ended owners, as far as they still exist.
void NativeEngine::ReadReports(uint32_t shard) {
  ShardState& state = shards_[shard];
  const uint64_t last = state.known_epoch == 0 ? 0 : state.known_epoch - 1;
  if (last > arena::kNativeReports) {
    state.reported_epoch = std::max(state.reported_epoch, last - arena::kNativeReports);
  }
  for (; state.reported_epoch < last; ++state.reported_epoch) {
    const uint64_t epoch = state.reported_epoch + 1;
    if (!ReadReport(shard, epoch)) {
      if (epoch < last) continue;  // who wrote it died, and it stays as it is
      break;                       // it is being written: at the next turn
    }
    const ReconciliationReport& report = state.report;
    listener_->OnEvent("ownership_ended",
                       absl::StrCat("shard ", shard, " epoch ", epoch, " of worker ",
                                    report.former_worker_id, " ended: ", report.cause),
                       report.former_worker_id, static_cast<int>(shard), -1);
    if (report.poisoned) {
      listener_->OnEvent("connection_poisoned", DescribePoisoning(shard, *report.poisoned),
                         report.former_worker_id, static_cast<int>(shard),
                         static_cast<int>(report.poisoned->connection));
    }
  }
  const uint64_t epoch = state.report.epoch;
  if (epoch == 0) return;
  const uint64_t version = arena::LoadRelaxed(arena_->native_report(shard, epoch).version);
  if (version != state.report_version) ReadReport(shard, epoch);
}

bool NativeEngine::ReadReport(uint32_t shard, uint64_t epoch) {
  ShardState& state = shards_[shard];
  uint64_t version = 0;
  std::optional<ReconciliationReport> report = ReadNativeReport(*arena_, shard, epoch, &version);
  if (!report) return false;
  if (report->released) {
    report->cause = state.asked_epoch == epoch ? "handoff" : "release";
  } else {
    const bool explained = report->former_worker_id == state.explained_worker_id;
    report->cause = explained ? std::string(state.explanation) : "crash";
  }
  state.report = *std::move(report);
  state.report_version = version;
  listener_->OnReport(shard, state.report);
  return true;
}

void NativeEngine::OnFirstCommit(uint32_t shard) {
  ShardState& state = shards_[shard];
  const arena::NativeShard& change = arena_->native_shard(shard);
  state.served_epoch = state.known_epoch;
  last_served_ns_ = MonotonicNanoseconds();
  const uint64_t blackout = change.blackout_ns;
  const bool released = arena::ChangeCause(change.cause) == arena::ChangeCause::kRelease;
  if (state.known_epoch > 1) {
    (released ? state.handoff_blackout : state.failover_blackout).Record(blackout);
  }
  const uint64_t owner = state.ownership.owner_id();
  listener_->OnEvent("shard_moved",
                     absl::StrCat("shard ", shard, " epoch ", state.known_epoch, ": worker ", owner,
                                  " goes on after ", blackout / 1000, " us"),
                     owner, static_cast<int>(shard), -1);
  if (state.known_epoch > 1) listener_->OnServed(shard, state.known_epoch - 1, owner, blackout);
  if (state.handoff_worker_id == 0 || state.ownership.release_asked()) return;
  FinishHandoff(shard,
                owner == state.handoff_worker_id
                    ? absl::OkStatus()
                    : absl::AbortedError(absl::StrCat("worker ", owner, " took the shard over")),
                static_cast<double>(blackout) / 1000);
}

// ---------------------------------------------------------------- who is next

Roster::Vacancy NativeEngine::VacancyOf(uint32_t shard) const {
  const ShardState& state = shards_[shard];
  return {state.state_version, state.handoff_worker_id, arena::kNobody};
}

void NativeEngine::GiveToSomebody(uint32_t shard) {
  ShardState& state = shards_[shard];
  const uint32_t slot = roster_.Choose(VacancyOf(shard));
  if (slot == arena::kNobody) {
    state.waiting_reason = roster_.WhyNobody(VacancyOf(shard));
    if (!last_failure_.empty()) {
      absl::StrAppend(&state.waiting_reason, "; the last one could not be run: ", last_failure_);
    }
    return;
  }
  const uint64_t word = state.ownership.word();
  BATON_CRASH_POINT("native-before-giving");
  if (arena::OwnershipSlot(word) == arena::kNobody && state.ownership.Claim(word, slot)) {
    Wake(slot);
  }
}

// With outside effects an heir is named for a handoff, or for a release that a former keeper asked
// for, and only then: of an owner that dies, the process has to be dead first, and then the shard
// is given to somebody.
void NativeEngine::NameHeirs() {
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    ShardState& state = shards_[shard];
    Roster::Vacancy vacancy = VacancyOf(shard);
    vacancy.except_slot = Holder(shard);
    const uint32_t heir = roster_.Choose(vacancy);
    const bool release_expected = state.handoff_worker_id != 0 || state.ownership.release_asked();
    const bool may_claim =
        heir != arena::kNobody && (!options_.outside_effects || release_expected);
    const uint64_t named = may_claim ? heir + 1 : 0;
    uint64_t& word = arena_->native_shard(shard).heir;
    state.ownership.NameHeir(heir == arena::kNobody ? 0 : roster_[heir].id);
    if (arena::LoadRelaxed(word) == named) continue;
    arena::StoreRelease(word, named);
    // Its watch begins, and it looks whether there is something to claim already.
    state.ownership.Announce();
    if (named != 0) Wake(heir);
  }
}

// ---------------------------------------------------------------- workers

void NativeEngine::AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake,
                             StateVersions versions, Standing standing) {
  roster_.Add(slot, id, std::move(wake), versions, standing);
}

void NativeEngine::SetStanding(uint32_t slot, uint64_t id, Standing standing) {
  Roster::Worker* const worker = roster_.Find(slot, id);
  if (worker == nullptr) return;
  worker->standing = standing;
  NameHeirs();
}

void NativeEngine::AskToStop(uint32_t slot, uint64_t id) {
  if (roster_.Find(slot, id) == nullptr) return;
  roster_.AskToStop(slot);
  roster_.WakeNotified();
}

void NativeEngine::SetReady(uint32_t slot) {
  last_failure_.clear();
  roster_[slot].ready = true;
  LookAtShards();
  NameHeirs();
}

void NativeEngine::SetStalled(uint32_t slot, uint64_t id, bool stalled) {
  Roster::Worker* const worker = roster_.Find(slot, id);
  if (worker == nullptr) return;
  worker->stalled = stalled;
  NameHeirs();
}

// Pardons the death in each shard that the worker owns: only there could a completion be blamed.
void NativeEngine::PardonDeath(uint32_t slot, uint64_t id) {
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    if (arena::ClaimantOrOwner(shards_[shard].ownership.owner_slot()) != slot) continue;
    arena::StoreRelease(arena_->native_shard(shard).pardoned_worker_id, id);
  }
}

// Its heir may have made its report before the process is known to be dead.
void NativeEngine::ExplainDeath(uint32_t slot, uint64_t id, std::string_view cause) {
  for (ShardState& state : shards_) {
    if (state.ownership.owner_slot() != slot) continue;
    state.explained_worker_id = id;
    state.explanation = cause;
  }
}

void NativeEngine::WorkerStopped(uint32_t slot, uint64_t id, std::string_view) {
  Roster::Worker* const worker = roster_.Find(slot, id);
  if (worker == nullptr || worker->stopped) return;
  worker->stopped = true;
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    if (shards_[shard].handoff_worker_id == id) {
      CancelHandoff(shard, absl::UnavailableError("the successor died before it took over"));
    }
  }
  NameHeirs();
}

// Its heir has claimed its shards, as a rule long before this. What nobody has claimed is given to
// somebody, so that the slot is in no word any more.
void NativeEngine::WorkerDead(uint32_t slot, uint64_t id) {
  if (roster_.Find(slot, id) == nullptr) return;
  WorkerStopped(slot, id, "crash");
  roster_.Remove(slot);
  for (ShardState& state : shards_) {
    const uint64_t word = state.ownership.word();
    BATON_CRASH_POINT("native-before-vacating");
    if (arena::ClaimantOrOwner(arena::OwnershipSlot(word)) == slot) state.ownership.Vacate(word);
  }
  LookAtShards();
  NameHeirs();
}

// ---------------------------------------------------------------- handoff

void NativeEngine::Handoff(uint32_t shard, uint32_t slot, HandoffDone done) {
  ShardState& state = shards_[shard];
  NoteRelease(shard);  // of an owner that was asked before: its epoch is forgotten here
  const Roster::Worker& worker = roster_[slot];
  const absl::Status fit = Roster::CheckSuccessor(worker, state.state_version);
  if (!fit.ok()) return done(fit, 0);
  if (state.handoff_worker_id != 0) {
    return done(absl::AbortedError("another handoff of this shard is under way"), 0);
  }
  if (state.ownership.owner_slot() == slot) return done(absl::OkStatus(), 0);
  state.handoff_worker_id = worker.id;
  state.handoff_done = std::move(done);
  if (state.ownership.owner_slot() == arena::kNobody) return GiveToSomebody(shard);
  state.asked_epoch = state.ownership.epoch();
  NameHeirs();  // before the release, which the former heir would claim
  BATON_CRASH_POINT("native-before-asking");
  state.ownership.AskRelease(state.asked_epoch);
  BATON_CRASH_POINT("native-release-asked");
  const uint32_t owner = Holder(shard);
  if (owner != arena::kNobody) roster_.Notify(owner);
  roster_.WakeNotified();
}

void NativeEngine::CancelHandoff(uint32_t shard, const absl::Status& why) {
  ShardState& state = shards_[shard];
  if (state.handoff_worker_id == 0) return;
  state.ownership.WithdrawRelease();
  FinishHandoff(shard, why, 0);
  NameHeirs();
}

void NativeEngine::FinishHandoff(uint32_t shard, const absl::Status& status, double blackout_us) {
  ShardState& state = shards_[shard];
  state.handoff_worker_id = 0;
  const HandoffDone done = std::exchange(state.handoff_done, nullptr);
  if (done) done(status, blackout_us);
}

// ---------------------------------------------------------------- what workers ask for

absl::StatusOr<uint32_t> NativeEngine::ReserveGrant(uint64_t offset, uint64_t length,
                                                    uint32_t access) {
  return driver::ReserveGrant(*arena_, *device_, manager_->objects().get(), offset, length, access);
}

void NativeEngine::RegisterGrant(uint32_t grant, GrantDone done) {
  done(driver::RegisterGrant(*arena_, device_, manager_->objects().get(), grant));
}

void NativeEngine::RevokeGrant(uint32_t grant, GrantDone done) {
  done(driver::RevokeGrant(*arena_, manager_->objects().get(), grant));
}

// ---------------------------------------------------------------- what is told

ShardOwner NativeEngine::owner(uint32_t shard) const {
  const driver::Ownership& ownership = shards_[shard].ownership;
  ShardOwner owner;
  owner.epoch = ownership.epoch();
  // A claimant is as good as its owner: who hangs in this is to be killed, too.
  owner.slot = Holder(shard);
  if (owner.slot != arena::kNobody) {
    const bool claimed = ownership.owner_slot() != owner.slot;
    owner.worker_id = claimed ? roster_[owner.slot].id : ownership.owner_id();
  }
  owner.heir_id = ownership.heir_id();
  return owner;
}

void NativeEngine::OnRefusedConnection(std::string_view why) {
  const auto told = refusals_.Tell(why, MonotonicNanoseconds());
  if (told) listener_->OnEvent("connection_refused", *told, 0, -1, -1);
}

void NativeEngine::OnDeviceEvent(const verbs::DeviceEvent& event) {
  device_info_ = device_->info();
  const DeviceEventText text = DescribeDeviceEvent(event, device_info_);
  listener_->OnEvent(text.kind, text.message, 0, -1, -1);
  if (event.type == verbs::DeviceEventType::kDeviceLost) {
    listener_->OnDeviceLost(absl::UnavailableError(
        absl::StrCat("device ", device_info_.name, " is lost: ", event.text)));
  }
}

}  // namespace baton::driver_process
