#include "supervisor/keeper/upgrades.h"

#include <signal.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "supervisor/keeper/state_version_check.h"

namespace baton::keeper {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Between two looks at what nobody tells: health, deadlines, who owns what.
constexpr milliseconds kTick(10);
// A program that has just started says that it is ready while threads of it still start and its
// pages come in, which holds up the thread that serves. Its shards do not wait for that: it does.
constexpr milliseconds kSettling(150);
// Between the move of a dying owner's shards and the proof of its death, that takes longest where
// much memory is to be given back.
constexpr milliseconds kDeathTime(500);
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

uint32_t OrDefault(uint32_t value, uint32_t otherwise) { return value != 0 ? value : otherwise; }

// By field. Nothing in it is looked up.
absl::Status CheckPlan(const v1::UpgradePlan& plan, uint32_t shards) {
  const std::set<uint32_t> canary(plan.canary_shards().begin(), plan.canary_shards().end());
  if (canary.empty() && (plan.canary_window_ms() != 0 || plan.pause_after_canary())) {
    return absl::InvalidArgumentError(
        absl::StrCat(plan.pause_after_canary() ? "pause_after_canary" : "canary_window_ms",
                     ": there are no canary_shards"));
  }
  if (!canary.empty() && *canary.rbegin() >= shards) {
    return absl::InvalidArgumentError(absl::StrCat("canary_shards: there is no shard ",
                                                   *canary.rbegin(), ", the service has ", shards));
  }
  if (canary.size() == shards) {
    return absl::InvalidArgumentError(absl::StrCat(
        "canary_shards: all ", shards, " shards of the service: leave some to the old program"));
  }
  const v1::HealthGates& gates = plan.gates();
  if (!(gates.max_blackout_us() >= 0)) {
    return absl::InvalidArgumentError("gates.max_blackout_us: give microseconds, or 0 for any");
  }
  const bool gated = gates.max_blackout_us() > 0 || gates.min_completions() > 0;
  if (plan.no_rollback() && (gated || !canary.empty())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no_rollback: the old program ends at once, so that ", gated ? "gates" : "canary_shards",
        " could not lead back to it: leave one of them out"));
  }
  return absl::OkStatus();
}

}  // namespace

struct Upgrades::Current {
  v1::Upgrade status;
  internal::Program old_program, new_program;
  std::string trace_parent;  // of who has begun it
  uint32_t watch_window_ms = 0, canary_window_ms = 0;
  std::set<uint32_t> canary;  // shards
  bool pause_after_canary = false;
  v1::HealthGates gates;
  std::map<uint32_t, uint64_t> owners_before;  // by shard, when the first were handed over
  size_t new_owners = 0;                      // among whom the shards are spread; 0: not chosen yet
  std::vector<uint32_t> on_their_way;         // shards, to the new workers
  std::map<uint32_t, uint64_t> acknowledged;  // completions, by shard, when the new workers got it
  bool workers_named = false;                 // how many new ones, by the operator
  std::set<uint64_t> old_workers, new_workers;  // that are attached
  std::vector<std::shared_ptr<StartedWorker>> children;
  steady_clock::time_point deadline;  // of the phase
  steady_clock::time_point last_tick;
  steady_clock::time_point ready_since;      // all new workers are; none: not yet
  steady_clock::time_point went_back_since;  // a shard has an old owner; none: no shard has
  bool served = false;                       // shards were handed to new workers
  bool moving = false;                       // shards are on their way to the new workers
  bool ending = false;                       // workers were asked to end: the deadline is theirs
  bool killed = false;                       // those that did not end
};

Upgrades::Upgrades(boost::asio::io_context& loop, const internal::KeeperConfig& config,
                   ServiceEngine& engine, const Policies& policies, EventLog& events,
                   WorkerSessions& workers, WorkerPrograms& programs)
    : loop_(loop),
      config_(config),
      engine_(engine),
      policies_(policies),
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
  if (current_->status.phase() == v1::UPGRADE_PHASE_CANARY) current_->pause_after_canary = false;
  current_->status.set_paused(false);
  return Describe();
}

absl::StatusOr<v1::Upgrade> Upgrades::Start(const v1::UpgradePlan& plan) {
  BATON_RETURN_IF_ERROR(CheckIdle());
  BATON_RETURN_IF_ERROR(CheckPlan(plan, config_.service().shards()));
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
  const auto count = OrDefault(plan.workers(), std::max<uint32_t>(1, upgrade->old_workers.size()));
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
  upgrade->workers_named = plan.workers() != 0;
  upgrade->trace_parent = events_.trace_parent();
  upgrade->watch_window_ms = OrDefault(plan.watch_window_ms(), config_.service().watch_window_ms());
  upgrade->canary_window_ms = OrDefault(plan.canary_window_ms(), upgrade->watch_window_ms);
  upgrade->canary.insert(plan.canary_shards().begin(), plan.canary_shards().end());
  for (const uint32_t shard : upgrade->canary) status.add_canary_shards(shard);
  upgrade->pause_after_canary = plan.pause_after_canary();
  upgrade->gates = plan.gates();
  upgrade->last_tick = steady_clock::now();
  current_ = std::move(upgrade);
  const absl::Status launched = Launch(count);
  if (!launched.ok()) {
    for (const auto& child : current_->children) child->Signal(SIGKILL);
    current_.reset();
    return launched;
  }
  last_id_ = current_->status.id();
  AddEvent("upgrade_started",
           absl::StrCat(rollback ? "to return, " : "", count, " of ", current_->status.exec(),
                        " started beside the workers that are there"));
  EnterPhase(
      v1::UPGRADE_PHASE_STARTING,
      milliseconds(OrDefault(plan.ready_timeout_ms(), config_.service().ready_timeout_ms())));
  Tick();
  return Describe();
}

absl::Status Upgrades::Launch(uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    BATON_ASSIGN_OR_RETURN(StartedProgram started, programs_.Start(current_->new_program));
    auto child = std::make_shared<StartedWorker>(loop_, std::move(started));
    current_->children.push_back(child);
    WatchChild(child);
  }
  return absl::OkStatus();
}

// Keeps the child until it has ended, whatever becomes of the upgrade: it is ours to reap.
void Upgrades::WatchChild(const std::shared_ptr<StartedWorker>& child) {
  child->pidfd.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                          [this, child](const boost::system::error_code& error) {
                            if (!error) OnChildEnded(child);
                          });
}

void Upgrades::OnChildEnded(const std::shared_ptr<StartedWorker>& child) {
  child->Reap();
  if (!current_) return;
  const auto& children = current_->children;
  if (std::find(children.begin(), children.end(), child) == children.end()) return;
  // One that has attached is told of by its session, too, and the shards that it owned are moved by
  // then.
  if (current_->status.phase() == v1::UPGRADE_PHASE_STARTING && child->worker_id == 0) {
    return Return(absl::StrCat("process ", child->pid, " ", child->how_ended,
                               " before it was ready: see its output in the keeper's log"));
  }
  CheckEnded();
}

Standing Upgrades::OnAttached(uint64_t worker_id, pid_t pid) {
  if (!current_) return Standing::kFirst;
  for (const auto& child : current_->children) {
    if (child->pid != pid || child->worker_id != 0 || !child->how_ended.empty()) continue;
    child->worker_id = worker_id;
    current_->new_workers.insert(worker_id);
    current_->status.add_new_worker_ids(worker_id);
    for (const WorkerInfo& worker : workers_.List()) {
      if (worker.id == worker_id) current_->status.set_new_version(worker.version);
    }
    return Standing::kLast;
  }
  return Standing::kFirst;
}

void Upgrades::OnReady(uint64_t) {
  if (current_ && current_->status.phase() == v1::UPGRADE_PHASE_STARTING) Advance();
}

std::string Upgrades::WhyNotReady() const {
  const std::vector<WorkerInfo> workers = workers_.List();
  for (const auto& child : current_->children) {
    if (child->worker_id == 0) {
      return absl::StrCat("process ", child->pid, " has not attached");
    }
    const auto worker = std::find_if(workers.begin(), workers.end(), [&](const WorkerInfo& info) {
      return info.id == child->worker_id;
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
  std::vector<WorkerInfo> old_workers, new_workers;
  for (const WorkerInfo& worker : workers_.List()) {
    if (current_->old_workers.count(worker.id) != 0) old_workers.push_back(worker);
    if (current_->new_workers.count(worker.id) != 0) new_workers.push_back(worker);
  }
  return CheckStateVersions(engine_, old_workers, new_workers, !current_->status.no_rollback());
}

// ---------------------------------------------------------------- going on

// That are to move to the new workers: the canaries, then the others.
std::vector<uint32_t> Upgrades::NextShards() const {
  std::vector<uint32_t> shards;
  for (uint32_t shard = 0; shard < config_.service().shards(); ++shard) {
    const bool first = current_->canary.empty() || current_->canary.count(shard) != 0;
    const bool turn = current_->served ? current_->acknowledged.count(shard) == 0 : first;
    if (turn) shards.push_back(shard);
  }
  return shards;
}

void Upgrades::HandOver() {
  // The moves have a time-out of their own.
  EnterPhase(v1::UPGRADE_PHASE_HANDING_OVER, milliseconds(0));
  std::vector<uint32_t> slots;
  for (const WorkerInfo& worker : workers_.List()) {
    if (current_->new_workers.count(worker.id) != 0) slots.push_back(worker.slot);
  }
  // Of the second step, too: by then some of the owners are new ones.
  if (current_->new_owners == 0) {
    NoteOwners();
    current_->new_owners = NewOwners();
  }
  slots.resize(std::min(slots.size(), current_->new_owners));
  std::vector<ShardMove> moves;
  current_->on_their_way = NextShards();
  for (const uint32_t shard : current_->on_their_way) {
    moves.push_back({shard, slots[shard % slots.size()]});
  }
  current_->served = current_->moving = true;
  MoveShards(loop_, engine_, moves, config_.service().handoff_timeout_ms(),
             [this, id = current_->status.id()](const HandoffsResult& result) {
               if (current_ && current_->status.id() == id) OnHandedOver(result);
             });
}

void Upgrades::NoteOwners() {
  engine_.Run([this] {
    for (uint32_t shard = 0; shard < config_.service().shards(); ++shard) {
      const uint64_t owner = engine_.owner(shard).worker_id;
      if (owner != 0) current_->owners_before[shard] = owner;
    }
  });
}

// Among how many of the new workers the shards are spread. Where the keeper keeps standbys running
// there are more workers than owners: of as many new ones as there were, as many own.
size_t Upgrades::NewOwners() const {
  const bool standbys =
      arena::IsNative(engine_.arena().shape()) || policies_.policy().hot_standbys() != 0;
  if (current_->workers_named || !standbys) return current_->new_workers.size();
  std::set<uint64_t> owners;
  for (const auto& [shard, owner] : current_->owners_before) owners.insert(owner);
  return std::max<size_t>(1, owners.size());
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
  engine_.Run([this] {
    for (const uint32_t shard : current_->on_their_way) current_->acknowledged[shard] = 0;
    // Counted anew in each window.
    for (auto& [shard, acknowledged] : current_->acknowledged) {
      acknowledged = engine_.arena().shard(shard).acknowledged;
    }
  });
  const bool all = current_->acknowledged.size() == config_.service().shards();
  AddEvent(all ? "upgrade_handed_over" : "upgrade_canary",
           absl::StrCat(result.moved, " shards moved to ", status.exec(), ", the slowest in ",
                        static_cast<int64_t>(result.slowest_us), " us"));
  const double max_blackout_us = current_->gates.max_blackout_us();
  if (max_blackout_us > 0 && result.slowest_us > max_blackout_us) {
    return Return(absl::StrCat("gate: a shard was not served for ",
                               static_cast<int64_t>(result.slowest_us), " us, more than ",
                               static_cast<int64_t>(max_blackout_us)));
  }
  if (!all) {
    return EnterPhase(v1::UPGRADE_PHASE_CANARY, milliseconds(current_->canary_window_ms));
  }
  EnterPhase(v1::UPGRADE_PHASE_WATCHING,
             milliseconds(status.no_rollback() ? 0 : current_->watch_window_ms));
  if (status.no_rollback()) LookAtNewWorkers();
}

// Empty: there is none. Who died is told of by OnGone.
std::string Upgrades::ProblemOfNewWorkers() {
  for (const WorkerInfo& worker : workers_.List()) {
    if (current_->new_workers.count(worker.id) == 0) continue;
    if (!worker.healthy) return absl::StrCat("worker ", worker.id, " says that it is unhealthy");
    // Whatever becomes of those that hang otherwise: this one is on trial.
    if (worker.hangs) return absl::StrCat("worker ", worker.id, " shows no sign of life");
  }
  return "";
}

// Empty: none did.
std::string Upgrades::ShardThatWentBack() {
  std::string found;
  engine_.Run([&] {
    for (const auto& [shard, acknowledged] : current_->acknowledged) {
      const uint64_t owner = engine_.owner(shard).worker_id;
      if (owner == 0 || current_->new_workers.count(owner) != 0) continue;
      found = absl::StrCat("shard ", shard, " went back to worker ", owner);
    }
  });
  return found;
}

void Upgrades::LookAtNewWorkers() {
  const std::string problem = ProblemOfNewWorkers();
  if (!problem.empty()) return Return(problem);
  const steady_clock::time_point now = steady_clock::now();
  const std::string went_back = ShardThatWentBack();
  if (!went_back.empty()) {
    // Its heir serves it since its owner began to die: OnGone, which knows why, comes later.
    if (current_->went_back_since == steady_clock::time_point()) current_->went_back_since = now;
    if (now >= current_->went_back_since + kDeathTime) Return(went_back);
    return;
  }
  current_->went_back_since = {};
  if (now >= current_->deadline && !current_->status.paused()) OnWindowOver();
}

void Upgrades::OnWindowOver() {
  const uint64_t least = current_->gates.min_completions();
  if (const uint64_t count = least == 0 ? 0 : CompletionsDealtWith(); count < least) {
    return Return(absl::StrCat("gate: the new program has dealt with ", count,
                               " completions in its window, fewer than ", least));
  }
  if (current_->status.phase() == v1::UPGRADE_PHASE_WATCHING) {
    if (PromoteNewWorkers()) Retire();
    return;
  }
  if (std::exchange(current_->pause_after_canary, false)) {
    AddEvent("upgrade_paused", "its canary window is over; `baton upgrades resume` lets it go on");
    current_->status.set_paused(true);
    return;
  }
  HandOver();
}

// By the new workers, in this window.
uint64_t Upgrades::CompletionsDealtWith() {
  uint64_t count = 0;
  engine_.Run([&] {
    for (const auto& [shard, before] : current_->acknowledged) {
      count += engine_.arena().shard(shard).acknowledged - before;
    }
  });
  return count;
}

// They are the first in standing from now on, if every shard is theirs. That is looked at and done
// in one turn of the engine: otherwise one of them could die in between, and the old workers, which
// have the shards then, would be ended.
bool Upgrades::PromoteNewWorkers() {
  const std::vector<WorkerInfo> workers = workers_.List();
  bool all = true;
  engine_.Run([&] {
    for (uint32_t shard = 0; shard < config_.service().shards(); ++shard) {
      all = all && current_->new_workers.count(engine_.owner(shard).worker_id) != 0;
    }
    if (!all) return;
    for (const WorkerInfo& worker : workers) {
      const bool fresh = current_->new_workers.count(worker.id) != 0;
      const bool old = current_->old_workers.count(worker.id) != 0;
      if (!fresh && !old) continue;
      engine_.SetStanding(worker.slot, worker.id, fresh ? Standing::kFirst : Standing::kLast);
    }
  });
  return all;
}

void Upgrades::OnGone(uint64_t worker_id, const std::string& kill_cause) {
  if (!current_) return;
  if (current_->old_workers.erase(worker_id) != 0) return CheckEnded();
  if (current_->new_workers.erase(worker_id) == 0) return;
  std::string how = kill_cause.empty() ? "" : absl::StrCat("was killed: ", kill_cause);
  for (const auto& child : current_->children) {
    if (child->worker_id != worker_id) continue;
    child->Reap();
    if (how.empty()) how = child->how_ended;
  }
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
  const std::vector<ShardMove> moves = MovesBack();
  MoveShards(loop_, engine_, moves, config_.service().handoff_timeout_ms(),
             [this, id = status.id()](const HandoffsResult& result) {
               if (current_ && current_->status.id() == id) OnReturned(result);
             });
}

// Of what the new workers have: to whoever had it, if he is still there.
std::vector<ShardMove> Upgrades::MovesBack() {
  std::map<uint64_t, uint32_t> slots;
  std::vector<uint32_t> old_slots;
  for (const WorkerInfo& worker : workers_.List()) {
    slots[worker.id] = worker.slot;
    if (current_->old_workers.count(worker.id) != 0) old_slots.push_back(worker.slot);
  }
  std::vector<ShardMove> moves;
  if (old_slots.empty()) return moves;
  engine_.Run([&] {
    for (uint32_t shard = 0; shard < config_.service().shards(); ++shard) {
      if (current_->new_workers.count(engine_.owner(shard).worker_id) == 0) continue;
      const auto before = current_->owners_before.find(shard);
      const bool there = before != current_->owners_before.end() &&
                         current_->old_workers.count(before->second) != 0;
      moves.push_back({shard, there ? slots[before->second] : old_slots[shard % old_slots.size()]});
    }
  });
  return moves;
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
    for (const auto& child : current_->children) {
      if (child->worker_id == 0) child->Signal(SIGTERM);
    }
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
  for (const auto& child : current_->children) child->Signal(SIGKILL);
}

void Upgrades::CheckEnded() {
  if (!current_->ending) return;
  if (current_->status.phase() == v1::UPGRADE_PHASE_RETIRING) {
    if (current_->old_workers.empty()) Finish(Outcome(), "");
    return;
  }
  const auto& children = current_->children;
  const bool running = std::any_of(children.begin(), children.end(),
                                   [](const auto& child) { return child->how_ended.empty(); });
  if (running || !current_->new_workers.empty()) return;
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
