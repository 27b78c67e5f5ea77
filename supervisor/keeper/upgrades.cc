#include "supervisor/keeper/upgrades.h"

#include <signal.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "supervisor/keeper/state_version_check.h"
#include "supervisor/keeper/trial.h"
#include "supervisor/keeper/upgrade_plan.h"

namespace baton::keeper {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Between two looks at what nobody tells: health, deadlines, who owns what.
constexpr milliseconds kTick(10);
// A program that has just started says that it is ready while threads of it still start and its
// pages come in, which holds up the thread that serves. Its shards do not wait for that: it does.
constexpr milliseconds kSettling(150);
// What /proc appends to the path of a file that is no more.
constexpr std::string_view kDeleted = " (deleted)";

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

}  // namespace

struct Upgrades::Current {
  v1::Upgrade status;
  internal::Program old_program, new_program;
  std::string trace_parent;            // of who has begun it
  v1::UpgradePlan plan;                // no time is left out
  std::set<uint32_t> canary;           // shards
  size_t new_owners = 0;               // among whom the shards are spread; 0: not chosen yet
  std::vector<uint32_t> on_their_way;  // shards, to the new workers
  std::optional<Trial> trial;          // of the new workers
  std::set<uint64_t> old_workers, new_workers;  // that are attached
  std::unique_ptr<StartedProcesses> processes;  // of the new workers
  steady_clock::time_point deadline;            // of the phase
  steady_clock::time_point last_tick;
  steady_clock::time_point ready_since;  // all new workers are; none: not yet
  bool served = false;                   // shards were handed to new workers
  bool moving = false;                   // shards are on their way to the new workers
  bool ending = false;                   // workers were asked to end: the deadline is theirs
  bool killed = false;                   // those that did not end
};

Upgrades::Upgrades(boost::asio::io_context& loop, const internal::KeeperConfig& config,
                   ServiceEngine& engine, EventLog& events, WorkerSessions& workers,
                   WorkerPrograms& programs)
    : loop_(loop),
      config_(config),
      engine_(engine),
      events_(events),
      workers_(workers),
      programs_(programs),
      timer_(loop) {
  workers_.SetObserver(this);
}

Upgrades::~Upgrades() { workers_.SetObserver(nullptr); }

// ---------------------------------------------------------------- what is asked for

absl::Status Upgrades::CheckIdle() const {
  if (!current_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("upgrade ", current_->status.id(), " to ", current_->status.exec(),
                   " is under way (it ", PhaseName(current_->status.phase()),
                   "): wait until it has ended, or undo it with `baton rollback ",
                   config_.service().name(), "`"));
}

absl::Status Upgrades::CheckHoldable() const {
  if (!current_) {
    return absl::FailedPreconditionError(
        absl::StrCat("no upgrade of service \"", config_.service().name(), "\" is under way"));
  }
  const v1::UpgradePhase phase = current_->status.phase();
  if (phase != v1::UPGRADE_PHASE_RETURNING && phase != v1::UPGRADE_PHASE_RETIRING) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("upgrade ", current_->status.id(), " ",
                                                    PhaseName(phase), ": it cannot be held"));
}

absl::StatusOr<v1::Upgrade> Upgrades::Pause() {
  BATON_RETURN_IF_ERROR(CheckHoldable());
  if (!current_->status.paused()) AddEvent("upgrade_paused", "an operator asked for it");
  current_->status.set_paused(true);
  return Describe();
}

absl::StatusOr<v1::Upgrade> Upgrades::Resume() {
  BATON_RETURN_IF_ERROR(CheckHoldable());
  if (!current_->status.paused()) {
    return absl::FailedPreconditionError(
        absl::StrCat("upgrade ", current_->status.id(), " is not paused: it goes on by itself"));
  }
  AddEvent("upgrade_resumed", "an operator asked for it");
  // Also when he was asked for it before the window's end: it is said.
  if (current_->status.phase() == v1::UPGRADE_PHASE_CANARY) {
    current_->plan.clear_pause_after_canary();
  }
  current_->status.set_paused(false);
  return Describe();
}

absl::StatusOr<v1::Upgrade> Upgrades::Start(const v1::UpgradePlan& plan) {
  BATON_RETURN_IF_ERROR(CheckIdle());
  BATON_RETURN_IF_ERROR(CheckUpgradePlan(plan, config_.service().shards()));
  BATON_RETURN_IF_ERROR(programs_.Check(plan.exec()));
  const std::vector<WorkerInfo> workers = workers_.List();
  const auto model = std::find_if(workers.begin(), workers.end(),
                                  [](const WorkerInfo& worker) { return worker.ready; });
  if (model == workers.end()) {
    return absl::FailedPreconditionError(
        "no worker of the service is ready whose place the new ones could take, with its user, "
        "directory and arguments: start the new program as you did the first one");
  }
  BATON_ASSIGN_OR_RETURN(internal::Program old_program,
                         programs_.Of(model->pid, model->uid, model->gid));
  internal::Program new_program = old_program;
  new_program.set_path(plan.exec());
  if (plan.replace_arguments()) {
    new_program.clear_arguments();
    for (const std::string& argument : plan.arguments()) new_program.add_arguments(argument);
  }
  return Begin(std::move(old_program), std::move(new_program), plan, /*rollback=*/false);
}

absl::StatusOr<v1::Upgrade> Upgrades::Rollback(const internal::Rollback& request) {
  if (current_) {
    switch (current_->status.phase()) {
      case v1::UPGRADE_PHASE_RETURNING:
        return Describe();
      case v1::UPGRADE_PHASE_RETIRING:
        return absl::FailedPreconditionError(absl::StrCat(
            "upgrade ", current_->status.id(),
            " has passed its watch window and ends its old workers: ask again in a moment"));
      default:
        Return("an operator asked for it");
        return current_ ? Describe() : history_.front();
    }
  }
  if (predecessors_.empty()) {
    return absl::FailedPreconditionError(
        "no program before the present one is known: name one with `baton upgrade --exec`");
  }
  const internal::Program program = predecessors_.front();
  if (program.path().ends_with(kDeleted)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the file of the program before was replaced, ", program.path(),
                     ": name one that is there with `baton upgrade --exec`"));
  }
  BATON_RETURN_IF_ERROR(programs_.Check(program.path()));
  v1::UpgradePlan plan;
  plan.set_ready_timeout_ms(request.ready_timeout_ms());
  plan.set_watch_window_ms(request.watch_window_ms());
  plan.set_no_rollback(request.no_rollback());
  return Begin({}, program, plan, /*rollback=*/true);
}

std::optional<v1::Upgrade> Upgrades::UnderWay() const {
  return current_ ? std::optional(Describe()) : std::nullopt;
}

std::vector<v1::Upgrade> Upgrades::List() const {
  std::vector<v1::Upgrade> upgrades;
  if (current_) upgrades.push_back(Describe());
  upgrades.insert(upgrades.end(), history_.begin(), history_.end());
  return upgrades;
}

v1::Upgrade Upgrades::Describe() const {
  v1::Upgrade upgrade = current_->status;
  if (upgrade.phase() == v1::UPGRADE_PHASE_STARTING) upgrade.set_detail(WhyNotReady());
  if (upgrade.phase() == v1::UPGRADE_PHASE_WATCHING ||
      upgrade.phase() == v1::UPGRADE_PHASE_CANARY) {
    upgrade.set_watch_seconds_left(std::max(
        0.0, std::chrono::duration<double>(current_->deadline - steady_clock::now()).count()));
  }
  return upgrade;
}

// ---------------------------------------------------------------- starting

absl::StatusOr<v1::Upgrade> Upgrades::Begin(internal::Program old_program,
                                            internal::Program new_program,
                                            const v1::UpgradePlan& plan, bool rollback) {
  auto upgrade = std::make_unique<Current>();
  for (const WorkerInfo& worker : workers_.List()) {
    if (!worker.ready) continue;
    upgrade->old_workers.insert(worker.id);
    upgrade->status.add_old_worker_ids(worker.id);
    upgrade->status.set_old_version(worker.version);
  }
  const uint32_t count =
      plan.workers() != 0 ? plan.workers() : std::max<uint32_t>(1, upgrade->old_workers.size());
  if (count > workers_.free_slots()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "workers: ", count, " new ones do not fit beside those attached, there is room for ",
        workers_.free_slots(), ": raise max_workers"));
  }
  v1::Upgrade& status = upgrade->status;
  status.set_id(last_id_ + 1);
  status.set_exec(new_program.path());
  for (const std::string& argument : new_program.arguments()) {
    *status.add_arguments() = argument;
  }
  status.set_rollback(rollback);
  status.set_no_rollback(plan.no_rollback());
  status.set_started_unix_micros(UnixMicroseconds());
  upgrade->old_program = std::move(old_program);
  upgrade->new_program = std::move(new_program);
  upgrade->trace_parent = events_.trace_parent();
  upgrade->plan = WithTimesOf(config_.service(), plan);
  upgrade->trial.emplace(engine_, plan.gates());
  upgrade->canary.insert(plan.canary_shards().begin(), plan.canary_shards().end());
  for (const uint32_t shard : upgrade->canary) status.add_canary_shards(shard);
  upgrade->last_tick = steady_clock::now();
  current_ = std::move(upgrade);
  current_->processes = std::make_unique<StartedProcesses>(
      loop_, programs_, [this](const StartedProcess& process) { OnProcessEnded(process); });
  const absl::Status started = current_->processes->Start(current_->new_program, count);
  if (!started.ok()) {
    current_.reset();
    return started;
  }
  last_id_ = current_->status.id();
  AddEvent("upgrade_started",
           absl::StrCat(rollback ? "to return, " : "", count, " of ", current_->status.exec(),
                        " started beside the workers that are there"));
  EnterPhase(v1::UPGRADE_PHASE_STARTING, milliseconds(current_->plan.ready_timeout_ms()));
  Tick();
  return Describe();
}

void Upgrades::OnProcessEnded(const StartedProcess& process) {
  // One that has attached is told of by its session, too, and the shards that it owned are moved by
  // then.
  if (current_->status.phase() == v1::UPGRADE_PHASE_STARTING && process.worker_id == 0) {
    return Return(absl::StrCat("process ", process.pid, " ", process.how_ended,
                               " before it was ready: see its output in the keeper's log"));
  }
  CheckEnded();
}

Standing Upgrades::OnAttached(uint64_t worker_id, pid_t pid) {
  if (!current_ || !current_->processes->NoteAttached(pid, worker_id)) return Standing::kFirst;
  current_->new_workers.insert(worker_id);
  current_->status.add_new_worker_ids(worker_id);
  for (const WorkerInfo& worker : workers_.List()) {
    if (worker.id == worker_id) current_->status.set_new_version(worker.version);
  }
  return Standing::kLast;
}

void Upgrades::OnReady(uint64_t) {
  if (current_ && current_->status.phase() == v1::UPGRADE_PHASE_STARTING) Advance();
}

std::string Upgrades::WhyNotReady() const {
  const std::vector<WorkerInfo> workers = workers_.List();
  for (const StartedProcess& process : current_->processes->List()) {
    if (process.worker_id == 0) {
      return absl::StrCat("process ", process.pid, " has not attached");
    }
    const auto worker = std::find_if(workers.begin(), workers.end(), [&](const WorkerInfo& info) {
      return info.id == process.worker_id;
    });
    if (worker == workers.end()) continue;
    if (!worker->ready)
      return absl::StrCat("worker ", worker->id, " has attached and is not ready");
    if (!worker->healthy) return absl::StrCat("worker ", worker->id, " says that it is unhealthy");
  }
  return "";
}

void Upgrades::Advance() {
  const std::string missing = WhyNotReady();
  if (!missing.empty()) {
    current_->ready_since = {};
    if (steady_clock::now() >= current_->deadline) Return(absl::StrCat(missing, ": time is over"));
    return;
  }
  const steady_clock::time_point now = steady_clock::now();
  if (current_->ready_since == steady_clock::time_point()) current_->ready_since = now;
  if (now < current_->ready_since + kSettling || current_->status.paused()) return;
  const absl::Status readable = CheckPrograms();
  if (!readable.ok()) return Return(std::string(MessageOf(readable)));
  HandOver();
}

absl::Status Upgrades::CheckPrograms() {
  return CheckStateVersions(engine_, Attached(current_->old_workers),
                            Attached(current_->new_workers), !current_->status.no_rollback());
}

std::vector<WorkerInfo> Upgrades::Attached(const std::set<uint64_t>& worker_ids) const {
  std::vector<WorkerInfo> attached = workers_.List();
  std::erase_if(attached, [&](const auto& worker) { return worker_ids.count(worker.id) == 0; });
  return attached;
}

// ---------------------------------------------------------------- going on

// That are to move to the new workers: the canaries, then the others.
std::vector<uint32_t> Upgrades::NextShards() const {
  std::vector<uint32_t> shards;
  for (uint32_t shard = 0; shard < config_.service().shards(); ++shard) {
    const bool first = current_->canary.empty() || current_->canary.count(shard) != 0;
    const bool turn = current_->served ? !current_->trial->HasShard(shard) : first;
    if (turn) shards.push_back(shard);
  }
  return shards;
}

void Upgrades::HandOver() {
  // The moves have a time-out of their own.
  EnterPhase(v1::UPGRADE_PHASE_HANDING_OVER, milliseconds(0));
  std::vector<WorkerInfo> owners = Attached(current_->new_workers);
  // Of the second step, too: by then some of the owners are new ones.
  if (current_->new_owners == 0) current_->new_owners = std::max<size_t>(1, NewOwners());
  owners.resize(std::min(owners.size(), current_->new_owners));
  std::vector<ShardMove> moves;
  current_->on_their_way = NextShards();
  for (const uint32_t shard : current_->on_their_way) {
    moves.push_back({shard, owners[shard % owners.size()].slot});
  }
  current_->served = current_->moving = true;
  MoveShards(loop_, engine_, moves, config_.service().handoff_timeout_ms(),
             [this, id = current_->status.id()](const HandoffsResult& result) {
               if (current_ && current_->status.id() == id) OnHandedOver(result);
             });
}

// Among how many of the new workers the shards are spread. The keeper of a native service has more
// workers than owners, so that some stand by: of as many new ones as there were, as many own.
size_t Upgrades::NewOwners() {
  if (current_->plan.workers() != 0 || !arena::IsNative(engine_.arena().shape())) {
    return current_->new_workers.size();
  }
  std::set<uint64_t> owners;
  engine_.Run([&] {
    for (uint32_t shard = 0; shard < config_.service().shards(); ++shard) {
      const uint64_t owner = engine_.owner(shard).worker_id;
      if (owner != 0) owners.insert(owner);
    }
  });
  return owners.size();
}

void Upgrades::OnHandedOver(const HandoffsResult& result) {
  v1::Upgrade& status = current_->status;
  status.set_slowest_blackout_us(std::max(status.slowest_blackout_us(), result.slowest_us));
  current_->moving = false;
  if (status.phase() != v1::UPGRADE_PHASE_HANDING_OVER) {
    // It is to be undone, and waited only for this.
    return Return(status.detail());
  }
  if (!result.status.ok()) return Return(std::string(MessageOf(result.status)));
  current_->trial->BeginWindow(current_->on_their_way);
  const bool all = current_->trial->shard_count() == config_.service().shards();
  AddEvent(all ? "upgrade_handed_over" : "upgrade_canary",
           absl::StrCat(result.moved, " shards moved to ", status.exec(), ", the slowest in ",
                        static_cast<int64_t>(result.slowest_us), " us"));
  const std::string problem = current_->trial->ProblemOfBlackout(result.slowest_us);
  if (!problem.empty()) return Return(problem);
  if (!all) {
    return EnterPhase(v1::UPGRADE_PHASE_CANARY, milliseconds(current_->plan.canary_window_ms()));
  }
  EnterPhase(v1::UPGRADE_PHASE_WATCHING,
             milliseconds(status.no_rollback() ? 0 : current_->plan.watch_window_ms()));
  if (status.no_rollback()) LookAtNewWorkers();
}

void Upgrades::LookAtNewWorkers() {
  const Trial::Verdict verdict = current_->trial->Look(Attached(current_->new_workers));
  if (!verdict.problem.empty()) return Return(verdict.problem);
  if (verdict.open || current_->status.paused()) return;
  if (steady_clock::now() >= current_->deadline) OnWindowOver();
}

void Upgrades::OnWindowOver() {
  const std::string problem = current_->trial->ProblemOfWindow();
  if (!problem.empty()) return Return(problem);
  if (current_->status.phase() == v1::UPGRADE_PHASE_WATCHING) {
    if (PromoteNewWorkers()) Retire();
    return;
  }
  if (current_->plan.pause_after_canary()) {
    current_->plan.clear_pause_after_canary();
    AddEvent("upgrade_paused", "its canary window is over; `baton upgrades resume` lets it go on");
    current_->status.set_paused(true);
    return;
  }
  HandOver();
}

// They are the first in standing from now on, if every shard is theirs. That is looked at and done
// in one turn of the engine: otherwise one of them could die in between, and the old workers, which
// have the shards then, would be ended.
bool Upgrades::PromoteNewWorkers() {
  const std::vector<WorkerInfo> old_workers = Attached(current_->old_workers);
  const std::vector<WorkerInfo> new_workers = Attached(current_->new_workers);
  bool all = true;
  engine_.Run([&] {
    for (uint32_t shard = 0; shard < config_.service().shards(); ++shard) {
      all = all && current_->new_workers.count(engine_.owner(shard).worker_id) != 0;
    }
    if (!all) return;
    for (const WorkerInfo& worker : new_workers) {
      engine_.SetStanding(worker.slot, worker.id, Standing::kFirst);
    }
    for (const WorkerInfo& worker : old_workers) {
      engine_.SetStanding(worker.slot, worker.id, Standing::kLast);
    }
  });
  return all;
}

void Upgrades::OnGone(uint64_t worker_id, const std::string& kill_cause) {
  if (!current_) return;
  if (current_->old_workers.erase(worker_id) != 0) return CheckEnded();
  if (current_->new_workers.erase(worker_id) == 0) return;
  const std::string ended = current_->processes->HowEnded(worker_id);
  const std::string how = kill_cause.empty() ? ended : absl::StrCat("was killed: ", kill_cause);
  switch (current_->status.phase()) {
    case v1::UPGRADE_PHASE_STARTING:
    case v1::UPGRADE_PHASE_HANDING_OVER:
    case v1::UPGRADE_PHASE_CANARY:
    case v1::UPGRADE_PHASE_WATCHING:
      return Return(absl::StrCat("worker ", worker_id, " ", how.empty() ? "detached" : how));
    default:
      CheckEnded();
  }
}

// ---------------------------------------------------------------- ending

void Upgrades::Return(const std::string& why) {
  v1::Upgrade& status = current_->status;
  status.set_detail(why);
  status.set_paused(false);
  const bool to_nobody = current_->old_workers.empty();
  const bool given_up = status.no_rollback() && current_->served;
  if ((to_nobody || given_up) && !current_->new_workers.empty()) {
    for (const uint64_t worker_id : current_->new_workers) {
      workers_.SetStanding(worker_id, Standing::kFirst);
    }
    return Finish(
        v1::UPGRADE_PHASE_FAILED,
        absl::StrCat(why, to_nobody ? "; the old workers are gone, so the new ones stay"
                                    : "; the return was given up, so both programs stay"));
  }
  if (status.phase() != v1::UPGRADE_PHASE_RETURNING) AddEvent("upgrade_returning", why);
  EnterPhase(v1::UPGRADE_PHASE_RETURNING, milliseconds(0));
  // What is on its way arrives, or comes back, first: OnHandedOver goes on.
  if (current_->moving) return;
  std::vector<uint32_t> old_slots, new_slots;
  for (const WorkerInfo& worker : workers_.List()) {
    if (current_->old_workers.count(worker.id) != 0) old_slots.push_back(worker.slot);
    if (current_->new_workers.count(worker.id) != 0) new_slots.push_back(worker.slot);
  }
  std::vector<ShardMove> moves;
  engine_.Run([&] {
    for (uint32_t shard = 0; shard < config_.service().shards(); ++shard) {
      const uint32_t owner = engine_.owner(shard).slot;
      if (std::count(new_slots.begin(), new_slots.end(), owner) == 0 || old_slots.empty()) continue;
      moves.push_back({shard, old_slots[shard % old_slots.size()]});
    }
  });
  MoveShards(loop_, engine_, moves, config_.service().handoff_timeout_ms(),
             [this, id = status.id()](const HandoffsResult& result) {
               if (current_ && current_->status.id() == id) OnReturned(result);
             });
}

void Upgrades::OnReturned(const HandoffsResult& result) {
  current_->status.set_slowest_return_us(result.slowest_us);
  // An old worker that has taken its shards back can die before that is told here.
  if (current_->old_workers.empty() && !current_->new_workers.empty()) {
    return Return(current_->status.detail());
  }
  if (result.status.ok()) return End(current_->new_workers);
  // Their deaths give the shards to the heirs.
  for (const uint64_t worker_id : current_->new_workers) {
    (void)workers_.Kill(
        worker_id, absl::StrCat("it does not give its shards back: ", result.status.message()));
  }
  End({});
}

void Upgrades::Retire() {
  EnterPhase(v1::UPGRADE_PHASE_RETIRING, milliseconds(0));
  programs_.OnServing(current_->new_program);
  End(current_->old_workers);
}

// Asks them, and kills those that are still there when their time is over.
void Upgrades::End(const std::set<uint64_t>& worker_ids) {
  current_->ending = true;
  current_->deadline = steady_clock::now() + milliseconds(config_.service().stop_timeout_ms());
  for (const uint64_t worker_id : worker_ids) workers_.AskToStop(worker_id);
  if (current_->status.phase() == v1::UPGRADE_PHASE_RETURNING) {
    current_->processes->SignalUnattached(SIGTERM);
  }
  CheckEnded();
}

void Upgrades::KillOverdue() {
  const bool retiring = current_->status.phase() == v1::UPGRADE_PHASE_RETIRING;
  if (current_->killed) {
    // Not even that helped; nothing more can be done.
    return Finish(Outcome(), absl::StrCat(current_->status.detail(), retiring ? "" : "; ",
                                          "a process that was killed is still there"));
  }
  current_->killed = true;
  current_->deadline = steady_clock::now() + milliseconds(config_.service().stop_timeout_ms());
  for (const uint64_t worker_id : retiring ? current_->old_workers : current_->new_workers) {
    (void)workers_.Kill(worker_id, absl::StrCat("it was asked to end ",
                                                config_.service().stop_timeout_ms(), " ms ago"));
  }
  if (retiring) return;
  current_->processes->SignalAll(SIGKILL);
}

void Upgrades::CheckEnded() {
  if (!current_->ending) return;
  if (current_->status.phase() == v1::UPGRADE_PHASE_RETIRING) {
    if (current_->old_workers.empty()) Finish(Outcome(), "");
    return;
  }
  if (!current_->processes->AllEnded() || !current_->new_workers.empty()) return;
  Finish(Outcome(), current_->status.detail());
}

// Of what is under way when everybody has ended who had to.
v1::UpgradePhase Upgrades::Outcome() const {
  if (current_->status.phase() == v1::UPGRADE_PHASE_RETIRING) return v1::UPGRADE_PHASE_COMPLETED;
  return current_->served ? v1::UPGRADE_PHASE_ROLLED_BACK : v1::UPGRADE_PHASE_FAILED;
}

void Upgrades::Finish(v1::UpgradePhase phase, const std::string& detail) {
  v1::Upgrade& status = current_->status;
  status.set_phase(phase);
  status.set_detail(detail);
  status.set_ended_unix_micros(UnixMicroseconds());
  if (phase == v1::UPGRADE_PHASE_COMPLETED) {
    RememberProgram();
    AddEvent("upgrade_completed",
             absl::StrCat(status.exec(), " serves, its predecessor has ended"));
  } else {
    AddEvent(phase == v1::UPGRADE_PHASE_ROLLED_BACK ? "upgrade_rolled_back" : "upgrade_failed",
             detail);
  }
  history_.push_front(status);
  if (history_.size() > kHistory) history_.pop_back();
  timer_.cancel();
  current_.reset();
}

// A return takes one step back; what it came from is not a predecessor.
void Upgrades::RememberProgram() {
  if (current_->status.rollback()) {
    predecessors_.pop_front();
    return;
  }
  predecessors_.push_front(std::move(current_->old_program));
  if (predecessors_.size() > kHistory) predecessors_.pop_back();
}

// ---------------------------------------------------------------- time

void Upgrades::EnterPhase(v1::UpgradePhase phase, milliseconds limit) {
  current_->status.set_phase(phase);
  current_->deadline = steady_clock::now() + limit;
}

void Upgrades::Tick() {
  const steady_clock::time_point now = steady_clock::now();
  const auto since = now - std::exchange(current_->last_tick, now);
  if (current_->status.paused()) current_->deadline += since;
  switch (current_->status.phase()) {
    case v1::UPGRADE_PHASE_STARTING:
      Advance();
      break;
    case v1::UPGRADE_PHASE_CANARY:
    case v1::UPGRADE_PHASE_WATCHING:
      LookAtNewWorkers();
      break;
    default:
      if (current_->ending && steady_clock::now() >= current_->deadline) KillOverdue();
      break;
  }
  if (!current_) return;
  timer_.expires_after(kTick);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && current_) Tick();
  });
}

// Of the trace of who asks for something now, and otherwise of who has begun it.
void Upgrades::AddEvent(const std::string& kind, const std::string& message) {
  const std::string asking = events_.trace_parent();
  if (asking.empty()) events_.set_trace_parent(current_->trace_parent);
  events_.Add(kind, absl::StrCat("upgrade ", current_->status.id(), ": ", message),
              UnixMicroseconds(), 0, -1, -1);
  events_.set_trace_parent(asking);
}

}  // namespace baton::keeper
