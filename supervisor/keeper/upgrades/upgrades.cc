#include "supervisor/keeper/upgrades/upgrades.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "supervisor/keeper/sessions/shard_owners.h"
#include "supervisor/keeper/upgrades/upgrade_plan.h"

namespace baton::keeper {
namespace {

// The suffix that /proc appends to the path of a deleted file.
constexpr std::string_view kDeleted = " (deleted)";
constexpr char kUpgradesKey[] = "upgrades";
// How long a version whose take-over went back may not take over again, from the end of the last
// take-over that went back. Doubled for each such take-over since an upgrade completed, up to 64
// times as long.
constexpr uint64_t kTakeOverPauseNs = 60'000'000'000;
constexpr uint64_t kMostDoublings = 6;
// Workers choose their environment, of up to 6 MiB, and when they take over. What is remembered of
// programs must leave room for the other entries that the driver holds.
constexpr size_t kMostBytesOfATaker = 256 << 10;
constexpr size_t kMostBytesOfAProgram = 1 << 20;
constexpr size_t kMostBytesOfPredecessors = 4 << 20;

bool IsFailedTakeOver(const v1::Upgrade& upgrade, const std::string& version) {
  return !upgrade.taken_over_by().empty() && upgrade.new_version() == version &&
         upgrade.phase() != v1::UPGRADE_PHASE_COMPLETED;
}

}  // namespace

Upgrades::Upgrades(const KeeperParts& context) : context_(context) {
  context_.workers.SetObserver(this);
}

Upgrades::~Upgrades() { context_.workers.SetObserver(nullptr); }

absl::Status Upgrades::CheckIdle() const {
  if (reads_program_) {
    return absl::FailedPreconditionError(
        absl::StrCat("an upgrade of service \"", context_.config.service().name(),
                     "\" begins: it finds out what its workers run; try again in some seconds"));
  }
  if (!current_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      current_->record().Progress(), ": wait until it has ended, or undo it with `baton rollback ",
      context_.config.service().name(), "`"));
}

absl::StatusOr<v1::Upgrade> Upgrades::SetPaused(bool paused) {
  if (!current_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no upgrade of service \"", context_.config.service().name(), "\" is under way"));
  }
  BATON_RETURN_IF_ERROR(current_->SetPaused(paused));
  return current_->Describe();
}

void Upgrades::Start(const v1::UpgradePlan& plan, Done done) {
  const absl::StatusOr<uint64_t> model = CheckPlan(plan);
  if (!model.ok()) return done(model.status());
  reads_program_ = true;
  context_.workers.ReadProgram(
      *model, context_.programs,
      [this, plan, done = std::move(done),
       trace = context_.events.trace_parent()](absl::StatusOr<internal::Program> old_program) {
        reads_program_ = false;
        const EventLog::TraceScope traced(context_.events, trace);
        Begin(PlanUpgrade(plan, std::move(old_program)), plan, done);
      });
}

absl::StatusOr<uint64_t> Upgrades::CheckPlan(const v1::UpgradePlan& plan) const {
  BATON_RETURN_IF_ERROR(CheckIdle());
  BATON_RETURN_IF_ERROR(CheckUpgradePlan(plan, context_.config.service().shards()));
  BATON_RETURN_IF_ERROR(context_.programs.Check(plan.exec()));
  const std::vector<WorkerInfo> workers = context_.workers.List();
  const auto model = absl::c_find_if(workers, [](const auto& worker) { return worker.ready; });
  if (model == workers.end()) {
    return absl::FailedPreconditionError(
        "no worker of the service is ready whose place the new ones could take, with its user, "
        "directory and arguments: start the new program as you did the first one");
  }
  return model->id;
}

absl::StatusOr<ProgramChange> Upgrades::PlanUpgrade(
    const v1::UpgradePlan& plan, absl::StatusOr<internal::Program> old_program) const {
  BATON_RETURN_IF_ERROR(old_program.status());
  internal::Program new_program = *old_program;
  new_program.set_path(plan.exec());
  if (plan.replace_arguments()) *new_program.mutable_arguments() = plan.arguments();
  for (const internal::Program* program : {&*old_program, &new_program}) {
    if (program->ByteSizeLong() <= kMostBytesOfAProgram) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "arguments and environment of ", program->path(), " have ", program->ByteSizeLong(),
        " bytes, and the next keeper would have to know them: ", kMostBytesOfAProgram,
        " can be kept"));
  }
  return ProgramChange{*std::move(old_program), std::move(new_program), /*rollback=*/false};
}

void Upgrades::Rollback(const internal::Rollback& request, Done done) {
  if (const auto upgrade = current_) {
    const absl::Status undone = upgrade->Undo();
    return undone.ok() ? done(upgrade->Describe()) : done(undone);
  }
  if (const absl::Status idle = CheckIdle(); !idle.ok()) return done(idle);
  v1::UpgradePlan plan;
  plan.set_ready_timeout_ms(request.ready_timeout_ms());
  plan.set_watch_window_ms(request.watch_window_ms());
  plan.set_no_rollback(request.no_rollback());
  Begin(PlanReturn(), plan, std::move(done));
}

absl::StatusOr<ProgramChange> Upgrades::PlanReturn() const {
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
  BATON_RETURN_IF_ERROR(context_.programs.Check(program.path()));
  return ProgramChange{{}, program, /*rollback=*/true};
}

void Upgrades::Begin(absl::StatusOr<ProgramChange> change, const v1::UpgradePlan& plan, Done done) {
  if (!change.ok()) return done(change.status());
  current_ = Make(last_id_ + 1, *std::move(change), plan);
  current_->Start([this, done = std::move(done)](const absl::Status& started) {
    if (!started.ok()) {
      current_.reset();
      Hold();
      return done(started);
    }
    ++last_id_;
    done(current_->Describe());
  });
}

// ---------------------------------------------------------------- take-over

absl::Status Upgrades::CheckTakeOver(const std::string& version) const {
  BATON_RETURN_IF_ERROR(CheckIdle());
  // Those of other versions in between do not count as an end of the row: two bad programs would
  // take turns.
  const v1::Upgrade* last = nullptr;
  uint64_t failures = 0;
  for (const v1::Upgrade& upgrade : history_) {
    if (upgrade.phase() == v1::UPGRADE_PHASE_COMPLETED) break;
    if (!IsFailedTakeOver(upgrade, version)) continue;
    if (failures++ == 0) last = &upgrade;
  }
  if (last == nullptr) return absl::OkStatus();
  const uint64_t pause = kTakeOverPauseNs << std::min(failures - 1, kMostDoublings);
  const uint64_t since = MonotonicNanoseconds() - take_over_failed_ns_;
  if (since >= pause) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "upgrade ", last->id(), ", a take-over by version \"", version, "\", did not complete (",
      last->detail(), "), and none has completed since: start another version, wait ",
      (pause - since) / 1'000'000'000 + 1, " s, or use `baton upgrade`"));
}

bool Upgrades::HasNew(pid_t pid) const {
  return pid == taking_over_ || (current_ && current_->HasNew(pid));
}

void Upgrades::TakeOver(const WorkerInfo& worker, const std::string& by,
                        std::function<void(const absl::Status&)> done) {
  struct Reading {
    ProgramChange change;
    int left = 2;
  };
  const auto reading = std::make_shared<Reading>();
  reading->change.taken_over_by = by;
  reads_program_ = true;
  taking_over_ = worker.pid;
  const auto read = [&](uint64_t worker_id, internal::Program ProgramChange::*which) {
    context_.workers.ReadProgram(
        worker_id, context_.programs,
        [this, reading, which, done](absl::StatusOr<internal::Program> program) {
          if (program.ok() && program->ByteSizeLong() <= kMostBytesOfATaker) {
            reading->change.*which = *std::move(program);
          }
          if (--reading->left > 0) return;
          reads_program_ = false;
          done(BeginTakeOver(std::exchange(taking_over_, 0), std::move(reading->change)));
        });
  };
  const std::vector<WorkerInfo> workers = context_.workers.List();
  uint64_t old_owner = 0;
  for (const auto& [shard, owner] : OwnersOf(context_.driver)) {
    const WorkerInfo* const other = FindWorker(workers, owner);
    if (other != nullptr && other->pid != worker.pid) old_owner = owner;
  }
  read(old_owner, &ProgramChange::from);  // fails if there is none
  read(worker.id, &ProgramChange::to);
}

// Other workers of the process may have asked meanwhile, and were told that it begins.
absl::Status Upgrades::BeginTakeOver(pid_t pid, ProgramChange change) {
  std::vector<WorkerInfo> workers = context_.workers.List();
  std::erase_if(workers, [pid](const auto& one) { return one.pid != pid || !one.ready; });
  if (workers.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the workers of process ", pid, " left or were asked to end meanwhile"));
  }
  current_ = Make(++last_id_, std::move(change), v1::UpgradePlan());
  current_->StartWith(workers.front());
  return absl::OkStatus();
}

std::shared_ptr<UpgradeUnderWay> Upgrades::Make(uint64_t id, ProgramChange change,
                                                const v1::UpgradePlan& plan) {
  return std::make_shared<UpgradeUnderWay>(
      context_, id, std::move(change), plan,
      UpgradeUnderWay::Callbacks{[this] { OnOver(); }, [this] { Hold(); }});
}

void Upgrades::Hold() const {
  internal::HeldUpgrades held;
  for (const v1::Upgrade& upgrade : history_) *held.add_history() = upgrade;
  for (const internal::Program& program : predecessors_) *held.add_predecessors() = program;
  held.set_last_id(last_id_);
  held.set_take_over_failed_ns(take_over_failed_ns_);
  if (current_) *held.mutable_under_way() = current_->Held();
  context_.driver.Hold(kUpgradesKey, held.SerializeAsString());
}

void Upgrades::Restore(const DriverClient::HeldByKey& held) {
  const auto entry = held.find(kUpgradesKey);
  if (entry == held.end()) return;
  context_.driver.DealWithHeld(kUpgradesKey, [&] { GoOnFrom(entry->second.value); });
}

void Upgrades::GoOnFrom(const std::string& value) {
  internal::HeldUpgrades upgrades;
  if (!upgrades.ParseFromString(value)) return;
  history_.assign(upgrades.history().begin(), upgrades.history().end());
  predecessors_.assign(upgrades.predecessors().begin(), upgrades.predecessors().end());
  last_id_ = upgrades.last_id();
  take_over_failed_ns_ = upgrades.take_over_failed_ns();
  if (!upgrades.has_under_way()) return;
  const internal::HeldUpgrade& under_way = upgrades.under_way();
  last_id_ = under_way.status().id();  // the former keeper may have died before it counted this one
  current_ = Make(under_way.status().id(),
                  {under_way.from(), under_way.to(), under_way.status().rollback(),
                   under_way.status().taken_over_by()},
                  under_way.plan());
  const auto upgrade = current_;  // Continue() may end it
  upgrade->Continue(under_way);
}

void Upgrades::OnOver() {
  const auto upgrade = std::exchange(current_, nullptr);
  history_.push_front(upgrade->Describe());
  if (history_.size() > kHistory) history_.pop_back();
  const bool completed = history_.front().phase() == v1::UPGRADE_PHASE_COMPLETED;
  const bool taken_over = !history_.front().taken_over_by().empty();
  if (taken_over && !completed) take_over_failed_ns_ = MonotonicNanoseconds();
  if (completed && taken_over && upgrade->record().change().from.path().empty()) {
    predecessors_.clear();  // the one before is unknown, and those are older
  } else if (completed && upgrade->record().change().rollback) {
    // A return takes one step back; the program that it leaves is not a predecessor.
    predecessors_.pop_front();
  } else if (completed) {
    predecessors_.push_front(upgrade->record().change().from);
    size_t bytes = 0;
    const auto too_many = absl::c_find_if(predecessors_, [&](const internal::Program& program) {
      return (bytes += program.ByteSizeLong()) > kMostBytesOfPredecessors;
    });
    predecessors_.erase(too_many, predecessors_.end());
    if (predecessors_.size() > kHistory) predecessors_.pop_back();
  }
  Hold();
}

std::optional<v1::Upgrade> Upgrades::UnderWay() const {
  return idle() ? std::nullopt : std::optional(current_->Describe());
}

std::vector<v1::Upgrade> Upgrades::List() const {
  std::vector<v1::Upgrade> upgrades;
  if (!idle()) upgrades.push_back(current_->Describe());
  upgrades.insert(upgrades.end(), history_.begin(), history_.end());
  return upgrades;
}

Standing Upgrades::OnAttached(uint64_t worker_id, pid_t pid) {
  return current_ ? current_->OnAttached(worker_id, pid) : Standing::kFirst;
}

void Upgrades::OnReady(uint64_t worker_id) {
  if (const auto upgrade = current_) upgrade->OnReady(worker_id);
}

void Upgrades::OnGone(uint64_t worker_id, const std::string& kill_cause) {
  if (const auto upgrade = current_) upgrade->OnGone(worker_id, kill_cause);
}

}  // namespace baton::keeper
