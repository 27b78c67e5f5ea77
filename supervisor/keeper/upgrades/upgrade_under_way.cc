#include "supervisor/keeper/upgrades/upgrade_under_way.h"

#include <signal.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/channel/waits.h"
#include "lib/text/text.h"

namespace baton::keeper {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The time between two looks at what nobody reports: health, deadlines, owners of shards.
constexpr milliseconds kTick(10);
// A program that has just become ready may still start threads and fault its pages in, which delays
// the thread that serves. The upgrade waits this long before the shards move, so that peers do not
// wait.
constexpr milliseconds kSettling(150);
// Operators see at most this many of a program's arguments.
constexpr int kMaxArguments = 128;
constexpr size_t kMaxArgumentBytes = 1024;

std::string PhaseName(v1::UpgradePhase phase) {
  switch (phase) {
    case v1::UPGRADE_PHASE_STARTING:
      return "waits until its workers are ready";
    case v1::UPGRADE_PHASE_HANDING_OVER:
      return "hands the shards over";
    case v1::UPGRADE_PHASE_WATCHING:
      return "is in its watch window";
    case v1::UPGRADE_PHASE_CANARY:
      return "has its canary shards";
    case v1::UPGRADE_PHASE_RETURNING:
      return "is being undone";
    default:
      return "waits for the end of the old workers";
  }
}

std::string EndedTooSoon(pid_t pid, const std::string& how) {
  return absl::StrCat("process ", pid, " ", how,
                      " before it was ready: see its output in the keeper's log");
}

}  // namespace

UpgradeUnderWay::UpgradeUnderWay(const KeeperParts& context, uint64_t id, ProgramChange change,
                                 const v1::UpgradePlan& plan, Callbacks callbacks)
    : context_(context),
      callbacks_(std::move(callbacks)),
      change_(std::move(change)),
      trace_parent_(context_.events.trace_parent()),
      plan_(WithTimesOf(context_.config.service(), plan)),
      canary_(plan.canary_shards().begin(), plan.canary_shards().end()),
      trial_(context_.driver, plan.gates()),
      processes_(context_.loop, context_.programs,
                 [this](const internal::StartedWorker& process) {
                   const auto self = shared_from_this();  // the call may end the upgrade
                   OnProcessEnded(process);
                 }),
      timer_(context_.loop) {
  status_.set_id(id);
  status_.set_exec(change_.to.path());
  for (const std::string& argument : change_.to.arguments()) {
    if (status_.arguments_size() == kMaxArguments) break;
    *status_.add_arguments() = OneLine(argument, kMaxArgumentBytes);
  }
  status_.set_rollback(change_.rollback);
  status_.set_no_rollback(plan.no_rollback());
  for (const uint32_t shard : canary_) status_.add_canary_shards(shard);
}

// ---------------------------------------------------------------- starting

void UpgradeUnderWay::Start(std::function<void(const absl::Status&)> done) {
  const absl::StatusOr<uint32_t> count = CountProcesses();
  if (!count.ok()) {
    return boost::asio::post(context_.loop,
                             [done = std::move(done), count] { done(count.status()); });
  }
  status_.set_started_unix_micros(UnixMicroseconds());
  processes_.Start(change_.to, *count,
                   [this, count, done = std::move(done)](const absl::Status& status) {
                     const auto self = shared_from_this();  // `done` may drop the upgrade
                     begun_ = status.ok();
                     done(status);
                     if (begun_) OnLaunched(*count);
                   });
  // The next keeper must not go on with an upgrade whose processes could not be started.
  if (processes_.List().size() != *count) return;
  // If this keeper dies before the programs are entered, the next one has to know whose the
  // processes are.
  EnterPhase(v1::UPGRADE_PHASE_STARTING, milliseconds(plan_.ready_timeout_ms()));
}

absl::StatusOr<uint32_t> UpgradeUnderWay::CountProcesses() {
  for (const WorkerInfo& worker : context_.workers.List()) {
    if (!worker.ready) continue;
    old_workers_.insert(worker.id);
    status_.add_old_worker_ids(worker.id);
    status_.set_old_version(worker.version);
  }
  const uint32_t count =
      plan_.workers() != 0 ? plan_.workers() : std::max<uint32_t>(1, old_workers_.size());
  if (count > context_.workers.free_slots()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "workers: ", count, " new ones do not fit beside those attached, there is room for ",
        context_.workers.free_slots(), ": raise max_workers"));
  }
  return count;
}

void UpgradeUnderWay::OnLaunched(uint32_t count) {
  last_tick_ = steady_clock::now();
  AddEvent("upgrade_started",
           absl::StrCat(change_.rollback ? "to return, " : "", count, " of ", status_.exec(),
                        " started beside the workers that are there"));
  EnterPhase(v1::UPGRADE_PHASE_STARTING, milliseconds(plan_.ready_timeout_ms()));
  Tick();
  // Some of the processes may have ended meanwhile.
  for (const internal::StartedWorker& process : processes_.List()) {
    if (process.how_ended().empty()) continue;
    return Return(EndedTooSoon(process.pid(), process.how_ended()));
  }
  if (!lost_.empty()) Return(lost_);
}

void UpgradeUnderWay::OnProcessEnded(const internal::StartedWorker& process) {
  if (!begun_) return;  // OnLaunched looks again
  // The session of a worker that has attached reports its end, too, and its shards have moved by
  // then.
  if (status_.phase() == v1::UPGRADE_PHASE_STARTING && process.worker_id() == 0) {
    return Return(EndedTooSoon(process.pid(), process.how_ended()));
  }
  CheckEnded();
}

Standing UpgradeUnderWay::OnAttached(uint64_t worker_id, pid_t pid) {
  if (!processes_.NoteAttached(pid, worker_id)) return Standing::kFirst;
  if (new_workers_.insert(worker_id).second) status_.add_new_worker_ids(worker_id);
  const std::vector<WorkerInfo> workers = context_.workers.List();
  if (const WorkerInfo* const worker = FindWorker(workers, worker_id)) {
    status_.set_new_version(worker->version);
  }
  NoteChange();
  return Standing::kLast;
}

void UpgradeUnderWay::OnReady() {
  if (begun_ && status_.phase() == v1::UPGRADE_PHASE_STARTING) Advance();
}

std::string UpgradeUnderWay::WhyNotReady() const {
  const std::vector<WorkerInfo> workers = context_.workers.List();
  for (const internal::StartedWorker& process : processes_.List()) {
    if (process.worker_id() == 0) {
      return absl::StrCat("process ", process.pid(), " has not attached");
    }
    const WorkerInfo* const worker = FindWorker(workers, process.worker_id());
    if (worker == nullptr) continue;
    if (!worker->ready) {
      return absl::StrCat("worker ", worker->id, " has attached and is not ready");
    }
    if (!worker->healthy) return absl::StrCat("worker ", worker->id, " says that it is unhealthy");
  }
  return "";
}

void UpgradeUnderWay::Advance() {
  const std::string missing = WhyNotReady();
  if (!missing.empty()) {
    ready_since_ = {};
    if (steady_clock::now() >= deadline_) Return(absl::StrCat(missing, ": time is over"));
    return;
  }
  const steady_clock::time_point now = steady_clock::now();
  if (ready_since_ == steady_clock::time_point()) ready_since_ = now;
  if (now < ready_since_ + kSettling || status_.paused()) return;
  const absl::Status readable = CheckStateVersions(context_.driver, Attached(old_workers_),
                                                   Attached(new_workers_), !status_.no_rollback());
  if (!readable.ok()) return Return(std::string(MessageOf(readable)));
  HandOver();
}

std::vector<WorkerInfo> UpgradeUnderWay::Attached(const std::set<uint64_t>& worker_ids) const {
  std::vector<WorkerInfo> attached = context_.workers.List();
  std::erase_if(attached, [&](const auto& worker) { return worker_ids.count(worker.id) == 0; });
  return attached;
}

// ---------------------------------------------------------------- going on

// Returns the shards to move to the new workers next: the canaries, then the others.
std::vector<uint32_t> UpgradeUnderWay::NextShards() const {
  std::vector<uint32_t> shards;
  for (uint32_t shard = 0; shard < context_.config.service().shards(); ++shard) {
    const bool first = canary_.empty() || canary_.count(shard) != 0;
    const bool turn = served_ ? !trial_.HasShard(shard) : first;
    if (turn) shards.push_back(shard);
  }
  return shards;
}

void UpgradeUnderWay::HandOver() {
  if (Attached(new_workers_).empty()) return Return("none of its workers is left");
  // The moves have a time-out of their own.
  EnterPhase(v1::UPGRADE_PHASE_HANDING_OVER, milliseconds(0));
  std::vector<WorkerInfo> owners = Attached(new_workers_);
  // Computed only in the first step: in the second, some of the owners are new workers already.
  if (new_owners_ == 0) {
    owners_before_ = OwnersOf(context_.driver);
    new_owners_ = std::max<size_t>(1, NewOwners());
  }
  owners.resize(std::min(owners.size(), new_owners_));
  std::vector<ShardMove> moves;
  on_their_way_ = NextShards();
  for (const uint32_t shard : on_their_way_) {
    moves.push_back({shard, owners[shard % owners.size()].slot});
  }
  served_ = moving_ = true;
  NoteChange();
  Move(moves, &UpgradeUnderWay::OnHandedOver);
}

void UpgradeUnderWay::Move(const std::vector<ShardMove>& moves,
                           void (UpgradeUnderWay::*next)(const HandoffsResult&)) {
  MoveShards(context_.loop, context_.driver, moves, context_.config.service().handoff_timeout_ms(),
             [us = weak_from_this(), next](const HandoffsResult& result) {
               if (const auto self = us.lock()) ((*self).*next)(result);
             });
}

// Returns among how many of the new workers the shards are spread. If the keeper keeps standbys
// running, there are more workers than owners. Then as many new workers own shards as old ones did.
size_t UpgradeUnderWay::NewOwners() const {
  const bool standbys = arena::IsNative(context_.driver.arena().shape()) ||
                        context_.policies.policy().hot_standbys() != 0;
  if (plan_.workers() != 0 || !standbys) return new_workers_.size();
  std::set<uint64_t> owners;
  for (const auto& [shard, owner] : owners_before_) owners.insert(owner);
  return owners.size();
}

void UpgradeUnderWay::OnHandedOver(const HandoffsResult& result) {
  status_.set_slowest_blackout_us(std::max(status_.slowest_blackout_us(), result.slowest_us));
  moving_ = false;
  if (status_.phase() != v1::UPGRADE_PHASE_HANDING_OVER) {
    // The upgrade is being undone, and has waited only for this.
    return Return(status_.detail());
  }
  if (!result.status.ok()) return Return(std::string(MessageOf(result.status)));
  trial_.BeginWindow(on_their_way_);
  const bool all = trial_.shard_count() == context_.config.service().shards();
  AddEvent(all ? "upgrade_handed_over" : "upgrade_canary",
           absl::StrCat(result.moved, " shards moved to ", status_.exec(), ", the slowest in ",
                        static_cast<int64_t>(result.slowest_us), " us"));
  const std::string problem = trial_.ProblemOfBlackout(result.slowest_us);
  if (!problem.empty()) return Return(problem);
  if (!all) {
    return EnterPhase(v1::UPGRADE_PHASE_CANARY, milliseconds(plan_.canary_window_ms()));
  }
  EnterPhase(v1::UPGRADE_PHASE_WATCHING,
             milliseconds(status_.no_rollback() ? 0 : plan_.watch_window_ms()));
  if (status_.no_rollback()) LookAtNewWorkers();
}

void UpgradeUnderWay::LookAtNewWorkers() {
  const Trial::Verdict verdict = trial_.Look(Attached(new_workers_));
  if (!verdict.problem.empty()) return Return(verdict.problem);
  if (verdict.open || status_.paused()) return;
  if (steady_clock::now() >= deadline_) OnWindowOver();
}

void UpgradeUnderWay::OnWindowOver() {
  const std::string problem = trial_.ProblemOfWindow();
  if (!problem.empty()) return Return(problem);
  if (status_.phase() == v1::UPGRADE_PHASE_WATCHING) {
    // Checks and promotes in one turn of the engine. If a new worker died in between, the old
    // workers, which have its shards then, would be ended.
    if (context_.driver.Promote(PlacesOf(Attached(new_workers_)),
                                PlacesOf(Attached(old_workers_)))) {
      Retire();
    }
    return;
  }
  if (plan_.pause_after_canary()) {
    plan_.clear_pause_after_canary();
    AddEvent("upgrade_paused", "its canary window is over; `baton upgrades resume` lets it go on");
    status_.set_paused(true);
    return NoteChange();
  }
  HandOver();
}

void UpgradeUnderWay::OnGone(uint64_t worker_id, const std::string& kill_cause) {
  if (old_workers_.erase(worker_id) != 0) {
    NoteChange();
    return CheckEnded();
  }
  if (new_workers_.erase(worker_id) == 0) return;
  const std::string ended = processes_.HowEnded(worker_id);
  const std::string how = kill_cause.empty() ? ended : absl::StrCat("was killed: ", kill_cause);
  const std::string what = absl::StrCat("worker ", worker_id, " ", how.empty() ? "detached" : how);
  if (!begun_) {  // OnLaunched reports that
    lost_ = what;
    return;
  }
  switch (status_.phase()) {
    case v1::UPGRADE_PHASE_STARTING:
    case v1::UPGRADE_PHASE_HANDING_OVER:
    case v1::UPGRADE_PHASE_CANARY:
    case v1::UPGRADE_PHASE_WATCHING:
      // The next keeper learns of the death and of the return, or of neither. Nothing else would
      // tell it that the worker is gone.
      return Return(what);
    default:
      NoteChange();
      CheckEnded();
  }
}

// ---------------------------------------------------------------- what is asked for

std::string UpgradeUnderWay::Progress() const {
  return absl::StrCat("upgrade ", status_.id(), " to ", status_.exec(), " is under way (it ",
                      PhaseName(status_.phase()), ")");
}

absl::Status UpgradeUnderWay::CheckBegun() const {
  if (begun_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "upgrade ", status_.id(), " is about to start its processes: ask again in a moment"));
}

absl::Status UpgradeUnderWay::Undo() {
  BATON_RETURN_IF_ERROR(CheckBegun());
  if (status_.phase() == v1::UPGRADE_PHASE_RETIRING) {
    return absl::FailedPreconditionError(absl::StrCat(
        "upgrade ", status_.id(),
        " has passed its watch window and ends its old workers: ask again in a moment"));
  }
  if (status_.phase() != v1::UPGRADE_PHASE_RETURNING) Return("an operator asked for it");
  return absl::OkStatus();
}

absl::Status UpgradeUnderWay::CheckHoldable() const {
  BATON_RETURN_IF_ERROR(CheckBegun());
  const v1::UpgradePhase phase = status_.phase();
  if (phase != v1::UPGRADE_PHASE_RETURNING && phase != v1::UPGRADE_PHASE_RETIRING) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("upgrade ", status_.id(), " ", PhaseName(phase), ": it cannot be held"));
}

absl::Status UpgradeUnderWay::Pause() {
  BATON_RETURN_IF_ERROR(CheckHoldable());
  if (!status_.paused()) AddEvent("upgrade_paused", "an operator asked for it");
  status_.set_paused(true);
  NoteChange();
  return absl::OkStatus();
}

absl::Status UpgradeUnderWay::Resume() {
  BATON_RETURN_IF_ERROR(CheckHoldable());
  if (!status_.paused()) {
    return absl::FailedPreconditionError(
        absl::StrCat("upgrade ", status_.id(), " is not paused: it goes on by itself"));
  }
  AddEvent("upgrade_resumed", "an operator asked for it");
  // Also cancels a pause that is planned for the end of the window: the operator has said to go on.
  if (status_.phase() == v1::UPGRADE_PHASE_CANARY) plan_.clear_pause_after_canary();
  status_.set_paused(false);
  NoteChange();
  return absl::OkStatus();
}

v1::Upgrade UpgradeUnderWay::Describe() const {
  v1::Upgrade upgrade = status_;
  if (upgrade.phase() == v1::UPGRADE_PHASE_STARTING) upgrade.set_detail(WhyNotReady());
  if (upgrade.phase() == v1::UPGRADE_PHASE_WATCHING ||
      upgrade.phase() == v1::UPGRADE_PHASE_CANARY) {
    upgrade.set_watch_seconds_left(
        std::max(0.0, std::chrono::duration<double>(deadline_ - steady_clock::now()).count()));
  }
  return upgrade;
}

// ---------------------------------------------------------------- ending

void UpgradeUnderWay::Return(const std::string& why) {
  status_.set_detail(why);
  status_.set_paused(false);
  const bool to_nobody = old_workers_.empty();
  const bool given_up = status_.no_rollback() && served_;
  if ((to_nobody || given_up) && !new_workers_.empty()) {
    for (const uint64_t worker_id : new_workers_) context_.workers.MakeFirst(worker_id);
    return Finish(
        v1::UPGRADE_PHASE_FAILED,
        absl::StrCat(why, to_nobody ? "; the old workers are gone, so the new ones stay"
                                    : "; the return was given up, so both programs stay"));
  }
  if (status_.phase() != v1::UPGRADE_PHASE_RETURNING) AddEvent("upgrade_returning", why);
  EnterPhase(v1::UPGRADE_PHASE_RETURNING, milliseconds(0));
  // Shards on their way arrive, or come back, first. OnHandedOver then goes on.
  if (moving_) return;
  Move(MovesBack(context_.driver, Attached(new_workers_), Attached(old_workers_), owners_before_),
       &UpgradeUnderWay::OnReturned);
}

void UpgradeUnderWay::OnReturned(const HandoffsResult& result) {
  status_.set_slowest_return_us(result.slowest_us);
  // An old worker that has taken its shards back can die before this call.
  if (old_workers_.empty() && !new_workers_.empty()) {
    return Return(status_.detail());
  }
  if (result.status.ok()) return End(new_workers_);
  // The deaths of the new workers give the shards to the heirs.
  for (const uint64_t worker_id : new_workers_) {
    (void)context_.workers.Kill(
        worker_id, absl::StrCat("it does not give its shards back: ", result.status.message()));
  }
  End({});
}

void UpgradeUnderWay::Retire() {
  EnterPhase(v1::UPGRADE_PHASE_RETIRING, milliseconds(0));
  context_.programs.OnServing(change_.to);
  End(old_workers_);
}

// Asks the workers to end. KillOverdue() kills those that are still there when their time is over.
void UpgradeUnderWay::End(const std::set<uint64_t>& worker_ids) {
  ending_ = true;
  deadline_ = steady_clock::now() + context_.workers.stop_timeout();
  NoteChange();
  for (const uint64_t worker_id : worker_ids) context_.workers.AskToStop(worker_id);
  if (status_.phase() == v1::UPGRADE_PHASE_RETURNING) {
    processes_.SignalUnattached(SIGTERM);
  }
  CheckEnded();
}

void UpgradeUnderWay::KillOverdue() {
  const bool retiring = status_.phase() == v1::UPGRADE_PHASE_RETIRING;
  if (killed_) {
    // Not even the kill helped; nothing more can be done.
    return Finish(Outcome(), absl::StrCat(status_.detail(), retiring ? "" : "; ",
                                          "a process that was killed is still there"));
  }
  killed_ = true;
  deadline_ = steady_clock::now() + context_.workers.stop_timeout();
  NoteChange();
  for (const uint64_t worker_id : retiring ? old_workers_ : new_workers_) {
    (void)context_.workers.KillOverdue(worker_id);
  }
  if (!retiring) processes_.SignalAll(SIGKILL);
}

void UpgradeUnderWay::CheckEnded() {
  if (!ending_) return;
  if (status_.phase() == v1::UPGRADE_PHASE_RETIRING) {
    if (old_workers_.empty()) Finish(Outcome(), "");
    return;
  }
  if (!processes_.AllEnded() || !new_workers_.empty()) return;
  Finish(Outcome(), status_.detail());
}

// Returns the outcome of the upgrade when all workers that had to end have ended.
v1::UpgradePhase UpgradeUnderWay::Outcome() const {
  if (status_.phase() == v1::UPGRADE_PHASE_RETIRING) return v1::UPGRADE_PHASE_COMPLETED;
  return served_ ? v1::UPGRADE_PHASE_ROLLED_BACK : v1::UPGRADE_PHASE_FAILED;
}

void UpgradeUnderWay::Finish(v1::UpgradePhase phase, const std::string& detail) {
  status_.set_phase(phase);
  status_.set_detail(detail);
  status_.set_ended_unix_micros(UnixMicroseconds());
  if (phase == v1::UPGRADE_PHASE_COMPLETED) {
    AddEvent("upgrade_completed",
             absl::StrCat(status_.exec(), " serves, its predecessor has ended"));
  } else {
    AddEvent(phase == v1::UPGRADE_PHASE_ROLLED_BACK ? "upgrade_rolled_back" : "upgrade_failed",
             detail);
  }
  timer_.cancel();
  over_ = true;
  callbacks_.on_over();
}

// ---------------------------------------------------------------- time

void UpgradeUnderWay::EnterPhase(v1::UpgradePhase phase, milliseconds limit) {
  status_.set_phase(phase);
  deadline_ = steady_clock::now() + limit;
  NoteChange();
}

void UpgradeUnderWay::Tick() {
  const steady_clock::time_point now = steady_clock::now();
  const auto since = now - std::exchange(last_tick_, now);
  if (status_.paused()) deadline_ += since;
  switch (status_.phase()) {
    case v1::UPGRADE_PHASE_STARTING:
      Advance();
      break;
    case v1::UPGRADE_PHASE_CANARY:
    case v1::UPGRADE_PHASE_WATCHING:
      LookAtNewWorkers();
      break;
    default:
      if (ending_ && steady_clock::now() >= deadline_) KillOverdue();
      break;
  }
  if (!over_) TickLater();
}

void UpgradeUnderWay::TickLater() {
  After(timer_, kTick, [us = weak_from_this()] {
    if (const auto self = us.lock()) self->Tick();
  });
}

// ---------------------------------------------------------------- another keeper

internal::HeldUpgrade UpgradeUnderWay::Held() const {
  internal::HeldUpgrade held;
  *held.mutable_from() = change_.from;
  *held.mutable_to() = change_.to;
  *held.mutable_plan() = plan_;
  *held.mutable_status() = status_;
  held.set_trace_parent(trace_parent_);
  held.mutable_owners_before()->insert(owners_before_.begin(), owners_before_.end());
  held.set_new_owners(static_cast<uint32_t>(new_owners_));
  for (const uint32_t shard : on_their_way_) held.add_on_their_way(shard);
  held.mutable_acknowledged()->insert(trial_.acknowledged().begin(), trial_.acknowledged().end());
  for (const uint64_t worker : old_workers_) held.add_old_workers(worker);
  for (const uint64_t worker : new_workers_) held.add_new_workers(worker);
  for (const internal::StartedWorker& one : processes_.List()) *held.add_processes() = one;
  const auto left =
      std::chrono::duration_cast<std::chrono::nanoseconds>(deadline_ - steady_clock::now());
  held.set_deadline_ns(MonotonicNanoseconds() + static_cast<uint64_t>(left.count()));
  held.set_served(served_);
  held.set_ending(ending_);
  held.set_killed(killed_);
  return held;
}

void UpgradeUnderWay::Continue(const internal::HeldUpgrade& held) {
  status_ = held.status();
  trace_parent_ = held.trace_parent();
  plan_ = held.plan();
  owners_before_ = ShardOwners(held.owners_before().begin(), held.owners_before().end());
  new_owners_ = held.new_owners();
  on_their_way_.assign(held.on_their_way().begin(), held.on_their_way().end());
  trial_.ContinueWindow({held.acknowledged().begin(), held.acknowledged().end()});
  old_workers_.insert(held.old_workers().begin(), held.old_workers().end());
  new_workers_.insert(held.new_workers().begin(), held.new_workers().end());
  for (const internal::StartedWorker& process : held.processes()) {
    processes_.Watch(process, context_.programs.PidfdOf(process.pid()));
  }
  deadline_ =
      steady_clock::now() +
      std::chrono::nanoseconds(static_cast<int64_t>(held.deadline_ns() - MonotonicNanoseconds()));
  last_tick_ = steady_clock::now();
  begun_ = true;
  served_ = held.served();
  ending_ = held.ending();
  killed_ = held.killed();
  AddEvent("upgrade_continued", absl::StrCat("the keeper before this one has ended; the upgrade ",
                                             PhaseName(status_.phase())));
  TickLater();
  ContinuePhase();
}

// Finds the deaths of workers and the moves of shards that were reported to no keeper.
void UpgradeUnderWay::ContinuePhase() {
  const std::set<uint64_t> old_workers = old_workers_, new_workers = new_workers_;
  for (const auto* workers : {&old_workers, &new_workers}) {
    for (const uint64_t worker : *workers) {
      if (!context_.workers.IsAttached(worker)) OnGone(worker, "");
      if (over_) return;
    }
  }
  const ShardOwners owners = OwnersOf(context_.driver);
  const auto has_moved = [&](uint32_t shard) {
    const auto owner = owners.find(shard);
    return owner != owners.end() && new_workers_.count(owner->second) != 0;
  };
  switch (status_.phase()) {
    case v1::UPGRADE_PHASE_STARTING:
      for (const internal::StartedWorker& process : processes_.List()) {
        const bool attached =
            process.worker_id() == 0 || context_.workers.IsAttached(process.worker_id());
        if (attached && process.how_ended().empty()) continue;
        return Return(EndedTooSoon(process.pid(), attached ? process.how_ended() : "has left"));
      }
      return;
    case v1::UPGRADE_PHASE_HANDING_OVER:
      if (!std::all_of(on_their_way_.begin(), on_their_way_.end(), has_moved)) {
        return Return("the keeper ended while shards were on their way");
      }
      return OnHandedOver(HandoffsResult{.moved = static_cast<uint32_t>(on_their_way_.size())});
    case v1::UPGRADE_PHASE_RETURNING:
      if (!ending_) return Return(status_.detail());
      return End(new_workers_);
    case v1::UPGRADE_PHASE_RETIRING:
      context_.programs.OnServing(change_.to);
      return End(old_workers_);
    default:
      return;
  }
}

// The event carries the trace of the present request or, if there is none, of the one that began
// the upgrade.
void UpgradeUnderWay::AddEvent(const std::string& kind, const std::string& message) {
  const std::string asking = context_.events.trace_parent();
  const EventLog::TraceScope traced(context_.events, asking.empty() ? trace_parent_ : asking);
  context_.events.Add(kind, absl::StrCat("upgrade ", status_.id(), ": ", message));
}

}  // namespace baton::keeper
