#include "supervisor/keeper/engine.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/check.h"
#include "lib/base/errno_status.h"
#include "lib/base/realtime.h"
#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "lib/waiting/pause.h"
#include "lib/waiting/yield_budget.h"
#include "supervisor/keeper/device_event_text.h"

namespace baton::keeper {
namespace {

// Transactions of one shard in one turn, so that no shard starves another.
constexpr int kTransactionsPerTurn = 32;
// An owner with fewer entries in its commit log does not wait for room there: it has had room for
// the largest transaction, even when the driver was in the middle of one.
constexpr uint64_t kCrowdedEntries = arena::kCommitLogEntries / 4;
static_assert(kCrowdedEntries + 2 * arena::kMaxTransactionEntries < arena::kCommitLogEntries);
constexpr uint32_t kRealtimeYieldMicroseconds = 10;
constexpr std::string_view kCrash = "crash";        // as far as nobody knows better
constexpr std::string_view kDetached = "detached";  // cause of an end that is no death
// For the device to complete, as failed, what is outstanding when it is lost. One that works up to
// its removal does so at once; one that has shared receives, a second later at most.
constexpr uint64_t kLossNs = 2'000'000'000;
constexpr int kLossPauseMs = 5;

}  // namespace

Engine::Engine(arena::Arena* arena, EngineListener* listener, const EngineOptions& options)
    : arena_(arena), listener_(listener), options_(options), roster_(arena) {
  for (uint32_t i = 0; i < arena->shape().shards; ++i) {
    shards_.emplace_back(driver::Ownership(arena, i));
  }
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(arena::Arena* arena, verbs::Device* device,
                                                       EngineListener* listener,
                                                       const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine(arena, listener, options));
  engine->device_ = device;
  engine->device_info_ = device->info();
  engine->wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!engine->wake_) return ErrnoStatus(errno, "eventfd (see RLIMIT_NOFILE)");
  BATON_ASSIGN_OR_RETURN(engine->driver_, driver::QueueDriver::Create(arena, device, engine.get()));
  if (options.wrap_driver) {
    engine->driver_ = options.wrap_driver(std::move(engine->driver_), engine.get());
  }
  return engine;
}

Engine::~Engine() { Stop(); }

void Engine::Start() {
  started_ = true;
  thread_ = std::thread(&Engine::Loop, this);
}

void Engine::Stop() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

bool Engine::Post(std::function<void()> work) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return false;
    posted_.push_back(std::move(work));
  }
  has_posted_.store(true);
  eventfd_write(wake_.get(), 1);
  return true;
}

void Engine::Run(const std::function<void()>& work) {
  if (!started_) return work();
  std::mutex mutex;
  std::condition_variable done;
  bool finished = false;
  const bool posted = Post([&] {
    work();
    const std::lock_guard<std::mutex> lock(mutex);
    finished = true;
    done.notify_one();
  });
  if (!posted) return;
  std::unique_lock<std::mutex> lock(mutex);
  done.wait(lock, [&] { return finished; });
}

// ---------------------------------------------------------------- loop

void Engine::Loop() {
  if (options_.realtime_priority > 0) {
    const absl::Status status = UseRealtimePriority(options_.realtime_priority);
    if (!status.ok()) {
      listener_->OnEvent("no_realtime_priority", std::string(MessageOf(status)), 0, -1, -1);
    }
  }
  YieldBudget budget(options_.realtime_priority > 0
                         ? std::min(options_.yield_microseconds, kRealtimeYieldMicroseconds)
                         : options_.yield_microseconds);
  uint64_t idle_since = 0;  // 0: it is not
  while (!stop_.load(std::memory_order_relaxed)) {
    if (Turn() || (idle_since == 0 && Glance())) {
      if (idle_since != 0) budget.NoteWait(MonotonicNanoseconds() - idle_since);
      idle_since = 0;
      continue;
    }
    const uint64_t now = MonotonicNanoseconds();
    if (idle_since == 0) idle_since = now;
    if (now - idle_since < budget.nanoseconds()) {
      sched_yield();
      continue;
    }
    if (BeginSleep()) {
      AwaitSignal(LongestSleepMs());
    } else {
      // Something came in the last moment, or cannot be waited for.
      budget.NoteWait(now - idle_since);
      idle_since = 0;
    }
    EndSleep();
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  has_posted_.store(true);
  RunPosted();  // somebody may wait for it
}

bool Engine::Turn() {
  bool worked = RunPosted();
  device_->Progress();
  worked |= HandleEvents();
  worked |= HandleDeviceEvents();
  worked |= TurnShards();
  if (!loss_ && driver_->AllBroken()) {
    BeginLoss(absl::UnavailableError("the shared receive queues of all shards are broken"));
  }
  if (loss_) ContinueLoss();
  roster_.WakeNotified();
  return worked;
}

bool Engine::TurnShards() {
  bool worked = false;
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    if (IsLeftToOwner(shard)) continue;
    worked |= PollShard(shard);
    worked |= ApplyCommits(shard);
  }
  return worked;
}

// Short looks at memory, without a call of the system: who has just been served is about to commit.
bool Engine::Glance() {
  for (size_t looks = 0; looks < kLooksBeforeYield; looks += shards_.size()) {
    if (TurnShards()) {
      roster_.WakeNotified();
      return true;
    }
    Pause();
  }
  return false;
}

bool Engine::IsLeftToOwner(uint32_t shard) const {
  return options_.owners_drive && shards_[shard].ownership.owned();
}

void Engine::Drive(uint32_t shard) {
  PollShard(shard);
  while (ApplyCommits(shard)) {
  }
  roster_.WakeNotified();
}

bool Engine::RunPosted() {
  if (!has_posted_.load(std::memory_order_acquire)) return false;
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work.swap(posted_);
    has_posted_.store(false);
  }
  for (const auto& item : work) item();
  return !work.empty();
}

bool Engine::HandleEvents() {
  bool worked = false;
  uint32_t shard;
  while (driver_->HandleEvent(&shard)) {
    worked = true;
    if (shard != driver::QueueDriver::kNoShard) NotifyOwner(shard);
  }
  return worked;
}

bool Engine::ApplyCommits(uint32_t shard) {
  ShardState& state = shards_[shard];
  bool worked = false, crowded = false;
  for (int i = 0; i < kTransactionsPerTurn && state.ownership.owned(); ++i) {
    // Looked at each time: the owner fills the log meanwhile.
    crowded |= driver_->PendingEntries(shard) >= kCrowdedEntries;
    if (budget_ != nullptr && NanosecondsToWait(shard) != 0) [[unlikely]]
      break;
    absl::Status error;
    const driver::CommitOutcome outcome = driver_->ApplyNext(shard, &error);
    if (outcome == driver::CommitOutcome::kIdle) break;
    worked = true;
    if (outcome == driver::CommitOutcome::kInvalid) {
      OnInvalidCommit(shard, error);
      break;
    }
    if (budget_ != nullptr) [[unlikely]] {
      budget_->Take(state.ownership.owner_slot(), driver_->requests_applied());
    }
    const bool released = outcome == driver::CommitOutcome::kReleased;
    if (state.blackout_start_ns != 0) {
      released ? OnRefused(shard) : OnFirstCommit(shard);
    }
    if (released) {
      // Even if that was withdrawn in the meantime: it could not know.
      const bool asked = state.asked_epoch == state.ownership.epoch();
      // Who gives a shard back without being asked wants none.
      if (!asked) roster_[state.ownership.owner_slot()].ready = false;
      const EndedOwnership ended =
          EndOwnership(shard, asked ? "handoff" : "release", /*released=*/true);
      Assign(shard);
      roster_.WakeNotified();
      MakeReport(shard, ended);
      break;
    }
  }
  if (worked && crowded) NotifyOwner(shard);  // there is room again
  return worked;
}

// What an owner has committed waits so long; not when it is asked to release, nor at the cut: the
// successor is not to wait for it.
uint64_t Engine::NanosecondsToWait(uint32_t shard) {
  const driver::Ownership& ownership = shards_[shard].ownership;
  if (ownership.release_asked() || driver_->PendingEntries(shard) == 0) return 0;
  // Nor is the first one of a new owner to wait, nor who was asked to end.
  if (shards_[shard].blackout_start_ns != 0) return 0;
  if ((arena_->header().stop_requested >> ownership.owner_slot() & 1) != 0) return 0;
  return budget_->NanosecondsToWait(ownership.owner_slot(), options_.nanoseconds());
}

void Engine::SetPostRates(uint32_t of_service, uint32_t of_worker) {
  budget_.reset();
  if (of_service == 0 && of_worker == 0) return;
  budget_ = std::make_unique<PostBudget>(of_service, of_worker, arena_->shape().workers,
                                         options_.nanoseconds());
}

bool Engine::HandleDeviceEvents() {
  bool worked = false;
  uint32_t shard;
  while (driver_->HandleDeviceEvent(&shard)) {
    worked = true;
    if (shard != driver::QueueDriver::kNoShard) NotifyOwner(shard);
  }
  return worked;
}

bool Engine::PollShard(uint32_t shard) {
  if (shards_[shard].unreadable) return false;
  const absl::StatusOr<bool> news = driver_->PollCompletions(shard);
  if (!news.ok()) {
    // P6: nothing can be said of the requests of this shard any more. The others' connections end
    // in order; then the keeper ends, and its parent starts another.
    shards_[shard].unreadable = true;
    BeginLoss(news.status());
    driver_->GiveUp(shard, MessageOf(news.status()));
    NotifyOwner(shard);
    return true;
  }
  if (*news) NotifyOwner(shard);
  return *news;
}

void Engine::BeginLoss(absl::Status why) {
  if (loss_) return;
  loss_ = Loss{std::move(why), options_.nanoseconds() + kLossNs};
  driver_->EndAll(MessageOf(loss_->why));
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) NotifyOwner(shard);
}

// The owners are told of the ends of their connections before the keeper's: those are in logs that
// they have for themselves.
void Engine::ContinueLoss() {
  if (!driver_->AllEnded() && options_.nanoseconds() < loss_->deadline_ns) return;
  for (uint32_t shard = 0; shard < shards_.size() && !driver_->AllEnded(); ++shard) {
    driver_->GiveUp(shard, "the device does not complete what is outstanding");
    NotifyOwner(shard);
  }
  roster_.WakeNotified();
  listener_->OnDeviceLost(loss_->why);
  stop_.store(true);
}

void Engine::NotifyOwner(uint32_t shard) {
  const uint32_t slot = shards_[shard].ownership.owner_slot();
  if (slot != arena::kNobody) roster_.Notify(slot);
}

bool Engine::HasCommitsToApply(uint32_t shard) {
  if (!shards_[shard].ownership.owned() || driver_->PendingEntries(shard) == 0) return false;
  return budget_ == nullptr || NanosecondsToWait(shard) == 0;
}

bool Engine::MaySleep() {
  if (has_posted_.load() || stop_.load()) return false;
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    if (IsLeftToOwner(shard)) continue;
    if (!shards_[shard].unreadable && !driver_->RequestNotification(shard).ok()) return false;
    if (HasCommitsToApply(shard)) return false;
  }
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    if (!IsLeftToOwner(shard) && PollShard(shard)) return false;
  }
  return true;
}

// A signal comes for everything but time.
int Engine::LongestSleepMs() {
  if (loss_) return kLossPauseMs;
  if (budget_ == nullptr) return -1;
  constexpr uint64_t kMillisecondNs = 1'000'000;
  uint64_t longest = ~uint64_t{0};
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    if (!shards_[shard].ownership.owned() || driver_->PendingEntries(shard) == 0) continue;
    longest = std::min(longest, NanosecondsToWait(shard));
  }
  if (longest == ~uint64_t{0}) return -1;
  return static_cast<int>(longest / kMillisecondNs + 1);
}

bool Engine::AwaitSignal(int timeout_ms) {
  std::array<pollfd, 2 + arena::kMaxWorkers> entries;
  entries[0] = {wake_.get(), POLLIN, 0};
  entries[1] = {device_->event_fd(), POLLIN, 0};
  const size_t workers = roster_.ListenForSignals(&entries[2]);
  if (poll(entries.data(), 2 + workers, timeout_ms) <= 0) return false;
  if (entries[0].revents & POLLIN) {
    eventfd_t value;
    eventfd_read(wake_.get(), &value);
  }
  roster_.TakeSignals(&entries[2]);
  return true;
}

bool Engine::BeginSleep() {
  arena::StoreRelaxed(arena_->header().driver_sleeping, 1u);
  // Orders the flag before the last look at the commit logs; Shard::Commit has the other half.
  arena::FullFence();
  return MaySleep();
}

void Engine::EndSleep() {
  arena::StoreRelaxed(arena_->header().driver_sleeping, 0u);
  roster_.WakeNotified();
}

// ---------------------------------------------------------------- workers

void Engine::AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake, StateVersions versions,
                       Standing standing) {
  roster_.Add(slot, id, std::move(wake), versions, standing);
  if (budget_ != nullptr) budget_->Refill(slot, options_.nanoseconds());
}

void Engine::SetStanding(uint32_t slot, uint64_t id, Standing standing) {
  Roster::Worker* const worker = roster_.Find(slot, id);
  if (worker == nullptr) return;
  worker->standing = standing;
  NameHeirs();
}

void Engine::AskToStop(uint32_t slot, uint64_t id) {
  if (roster_.Find(slot, id) != nullptr) roster_.AskToStop(slot);
}

void Engine::SetReady(uint32_t slot) {
  roster_[slot].ready = true;
  AssignWaiting();
  NameHeirs();
}

void Engine::SetStalled(uint32_t slot, uint64_t id, bool stalled) {
  Roster::Worker* const worker = roster_.Find(slot, id);
  if (worker == nullptr) return;
  worker->stalled = stalled;
  if (!stalled) AssignWaiting();
  NameHeirs();
}

void Engine::WorkerStopped(uint32_t slot, uint64_t id, std::string_view cause) {
  StopWorker(slot, id, cause, options_.outside_effects);
}

void Engine::StopWorker(uint32_t slot, uint64_t id, std::string_view cause, bool await_death) {
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

void Engine::PardonDeath(uint32_t slot, uint64_t id) {
  if (Roster::Worker* const worker = roster_.Find(slot, id)) worker->pardoned = true;
}

void Engine::ExplainDeath(uint32_t slot, uint64_t id, std::string_view cause) {
  if (Roster::Worker* const worker = roster_.Find(slot, id)) worker->death = cause;
}

void Engine::WorkerDead(uint32_t slot, uint64_t id) {
  if (roster_.Find(slot, id) == nullptr) return;
  WorkerStopped(slot, id, kCrash);
  for (ShardState& state : shards_) {
    state.ownership.ProveDead(id);
    if (state.awaited_death_id == id) state.awaited_death_id = 0;
  }
  roster_.Remove(slot);
  AssignWaiting();
}

Roster::Vacancy Engine::VacancyOf(uint32_t shard) const {
  const ShardState& state = shards_[shard];
  return {state.state_version, state.handoff_worker_id, state.ownership.owner_slot()};
}

void Engine::Assign(uint32_t shard) {
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

void Engine::AssignWaiting() {
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    if (!shards_[shard].ownership.owned()) Assign(shard);
  }
}

void Engine::NameHeirs() {
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    const uint32_t heir = roster_.Choose(VacancyOf(shard));
    shards_[shard].ownership.NameHeir(heir == arena::kNobody ? 0 : roster_[heir].id);
  }
}

// ---------------------------------------------------------------- changes of owner

// The cut. What the owner has published up to here counts and is applied; nothing after it does.
EndedOwnership Engine::EndOwnership(uint32_t shard, std::string_view cause, bool released) {
  ShardState& state = shards_[shard];
  uint64_t recovered = 0;
  if (!released) {
    absl::Status error;
    while (recovered < arena::kCommitLogEntries) {
      const driver::CommitOutcome outcome = driver_->ApplyNext(shard, &error);
      released = outcome == driver::CommitOutcome::kReleased;
      if (outcome != driver::CommitOutcome::kApplied) break;
      if (budget_ != nullptr) {
        budget_->Take(state.ownership.owner_slot(), driver_->requests_applied());
      }
      ++recovered;
    }
  }
  if (options_.break_recovery) driver_->ForgetUnacknowledged(shard);
  const EndedOwnership ended = {state.ownership.epoch(), state.ownership.owner_id(), recovered,
                                cause};
  if (state.blackout_start_ns == 0) state.blackout_start_ns = options_.nanoseconds();
  state.planned = released;
  --roster_[state.ownership.owner_slot()].shards;
  NotifyOwner(shard);  // the former owner, so that it learns
  state.ownership.End(released);
  return ended;
}

// A completion on which so many owners died in a row is given to no other.
std::optional<Poisoning> Engine::CountDeath(uint32_t shard, const EndedOwnership& ended) {
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

void Engine::OnFirstCommit(uint32_t shard) {
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
    listener_->OnServed(shard, state.ownership.epoch(), owner, blackout);
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
void Engine::OnRefused(uint32_t shard) {
  const ShardState& state = shards_[shard];
  const uint64_t owner = state.ownership.owner_id();
  if (state.handoff_worker_id != owner) return;
  FinishHandoff(shard,
                absl::AbortedError(
                    absl::StrCat("worker ", owner, " could not adopt the shard and gave it back")),
                0);
}

void Engine::OnInvalidCommit(uint32_t shard, const absl::Status& why) {
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

void Engine::Handoff(uint32_t shard, uint32_t slot, HandoffDone done) {
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
  state.ownership.AskRelease(true);
  NotifyOwner(shard);
}

void Engine::CancelHandoff(uint32_t shard, const absl::Status& why) {
  ShardState& state = shards_[shard];
  if (state.handoff_worker_id == 0) return;
  if (state.ownership.owned()) state.ownership.AskRelease(false);
  FinishHandoff(shard, why, 0);
}

void Engine::FinishHandoff(uint32_t shard, const absl::Status& status, double blackout_us) {
  ShardState& state = shards_[shard];
  state.handoff_worker_id = 0;
  const HandoffDone done = std::exchange(state.handoff_done, nullptr);
  if (done) done(status, blackout_us);
}

// ---------------------------------------------------------------- reports

// Runs after the successor was woken, so as not to delay it: nothing that it tells has changed
// since the cut, because the engine has done nothing else.
void Engine::MakeReport(uint32_t shard, const EndedOwnership& ended) {
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

ShardOwner Engine::owner(uint32_t shard) const {
  const driver::Ownership& ownership = shards_[shard].ownership;
  return {ownership.epoch(), ownership.owner_id(), ownership.owner_slot(), ownership.heir_id()};
}

// ---------------------------------------------------------------- connections and the device

absl::StatusOr<verbs::Address> Engine::Listen(const verbs::Address& address) {
  return driver_->Listen(address);
}

bool Engine::IsListening(const verbs::Address& address) const {
  return driver_->IsListening(address);
}

std::vector<verbs::Address> Engine::listeners() const { return driver_->listeners(); }

absl::StatusOr<uint32_t> Engine::Connect(uint32_t shard, const verbs::Address& address,
                                         std::string_view private_data, uint64_t tag) {
  return driver_->Connect(shard, address, private_data, tag);
}

uint32_t Engine::DisconnectAll(std::string_view why) {
  const uint32_t count = driver_->DisconnectAll(why);
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) NotifyOwner(shard);
  return count;
}

absl::StatusOr<uint32_t> Engine::Grant(uint64_t offset, uint64_t length, uint32_t access) {
  return driver_->Grant(offset, length, access);
}

absl::Status Engine::Revoke(uint32_t grant) { return driver_->Revoke(grant); }

void Engine::OnConnectionState(uint32_t connection, std::string_view what) {
  const arena::ConnectionRecord& record = arena_->connection(connection);
  listener_->OnEvent("connection",
                     absl::StrCat("connection ", connection, " with ",
                                  static_cast<const char*>(record.peer_address), " ",
                                  absl::string_view(what.data(), what.size())),
                     0, static_cast<int>(record.shard), static_cast<int>(connection));
}

void Engine::OnRefusedConnection(std::string_view why) {
  const auto told = refusals_.Tell(why, options_.nanoseconds());
  if (told) listener_->OnEvent("connection_refused", *told, 0, -1, -1);
}

void Engine::OnDeviceEvent(const verbs::DeviceEvent& event, uint32_t connection) {
  device_info_ = device_->info();
  const DeviceEventText text = DescribeDeviceEvent(event, device_info_);
  const bool known = connection != kNoConnection;
  listener_->OnEvent(
      text.kind, known ? absl::StrCat("connection ", connection, ": ", text.message) : text.message,
      0, known ? static_cast<int>(arena_->connection(connection).shard) : -1,
      known ? static_cast<int>(connection) : -1);
  if (event.type == verbs::DeviceEventType::kDeviceLost) {
    BeginLoss(absl::UnavailableError(
        absl::StrCat("device ", device_info_.name, " is lost: ", event.text)));
  }
}

}  // namespace baton::keeper
