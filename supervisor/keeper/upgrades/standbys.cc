#include "supervisor/keeper/upgrades/standbys.h"

#include <signal.h>

#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/channel/waits.h"

namespace baton::keeper {
namespace {

// The time between two looks at which workers are ready and own shards, which nobody reports.
constexpr std::chrono::milliseconds kTick(100);
constexpr char kStandbysKey[] = "lasting/standbys";

}  // namespace

Standbys::Standbys(const KeeperParts& context, const Upgrades& upgrades)
    : context_(context), upgrades_(upgrades), timer_(context.loop) {
  context_.policies.SetListener([this] { OnPolicy(); });
  OnPolicy();
}

Standbys::~Standbys() { context_.policies.SetListener(nullptr); }

void Standbys::Restore(const DriverClient::HeldByKey& held) {
  if (const auto entry = held.find(kStandbysKey); entry != held.end()) {
    context_.driver.DealWithHeld(kStandbysKey, [&] { GoOnFrom(entry->second.value); });
  }
  // The end of an upgrade that is under way is still to be noticed.
  if (upgrades_.idle()) last_upgrade_ = upgrades_.last_id();
  LookLater();
}

void Standbys::GoOnFrom(const std::string& value) {
  const std::vector<WorkerInfo> workers = context_.workers.List();
  held_ = value;
  for (const absl::string_view text : absl::StrSplit(held_, ' ', absl::SkipEmpty())) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(text, &pid)) continue;
    const WorkerInfo* const worker = FindProcess(workers, pid);
    if (worker != nullptr && worker->ready) {
      AddReady(pid);
      continue;
    }
    // The standby has yet to attach to this keeper, or is still warming up.
    StartedProgram started;
    started.pid = pid;
    started.pidfd = context_.programs.PidfdOf(pid);
    if (started.pidfd) AddStarted(std::move(started)).attached = worker != nullptr;
  }
  // The former keeper may have died before it ended the surplus.
  lowered_ = standbys_.size() > wanted_;
}

void Standbys::AddReady(pid_t pid) {
  Standby& standby = standbys_.emplace_back();
  standby.pid = pid;
  standby.attached = standby.ready = standby.was_ready = true;
}

Standbys::Standby& Standbys::AddStarted(StartedProgram started) {
  Standby& standby = standbys_.emplace_back();
  standby.pid = started.pid;
  standby.process =
      std::make_shared<WatchedProcess>(context_.loop, context_.programs, std::move(started));
  standby.started_ns = MonotonicNanoseconds();
  standby.deadline =
      Clock::now() + std::chrono::milliseconds(context_.config.service().ready_timeout_ms());
  AwaitReadable(standby.process->pidfd, [this, process = standby.process] { OnEnded(process); });
  return standby;
}

void Standbys::Hold() {
  std::string pids;
  for (const Standby& standby : standbys_) absl::StrAppend(&pids, standby.pid, " ");
  if (pids == held_) return;
  held_ = pids;
  context_.driver.Hold(kStandbysKey, held_);
}

// ---------------------------------------------------------------- looking

void Standbys::OnPolicy() {
  const uint32_t before = std::exchange(wanted_, context_.policies.policy().hot_standbys());
  lowered_ |= wanted_ < before;
  LookLater();
}

void Standbys::LookLater() {
  if (wanted_ == 0 && standbys_.empty() && replaced_ == 0) {
    lowered_ = false;
    ForgetProgram();
    Hold();
    timer_.cancel();
    return;
  }
  const Clock::time_point now = Clock::now();
  const bool waits = now < not_before_ && not_before_ < now + kTick;
  After(timer_, waits ? not_before_ - now : kTick, [this] { Look(); });
}

void Standbys::Look() {
  const std::vector<WorkerInfo> workers = context_.workers.List();
  const WorkerRoles roles = RolesOf(workers, context_.driver);
  Follow(workers, roles);
  CheckDeadlines();
  if (!upgrades_.idle()) {
    LeaveToUpgrade();
  } else {
    if (last_upgrade_ != upgrades_.last_id()) TakeOverFromUpgrade(roles);
    RememberProgram(roles);
    if (std::exchange(lowered_, false)) EndSurplus(roles);
    StartMissing(roles);
  }
  Hold();
  LookLater();
}

// Updates the state of each standby.
void Standbys::Follow(const std::vector<WorkerInfo>& workers, const WorkerRoles& roles) {
  for (Standby& standby : standbys_) {
    const bool was_attached =
        std::exchange(standby.attached, FindProcess(workers, standby.pid) != nullptr);
    standby.serves = FindProcess(roles.owners, standby.pid) != nullptr;
    const bool ready = standby.serves || FindProcess(roles.standbys, standby.pid) != nullptr;
    const bool fell = (standby.ready && !ready) || (was_attached && !standby.attached);
    if (fell && !standby.ending) standby.deadline = Clock::now() + context_.workers.stop_timeout();
    standby.ready = ready;
    standby.was_ready |= ready;
    standby.has_served |= standby.serves;
    // It was given a shard before it was asked to end, so it goes on.
    if (standby.serves) standby.unwanted = standby.ending = standby.killed = false;
    if (standby.unwanted) End(standby);
    // A standby that has attached since is asked to end now.
    if (standby.ending && standby.attached) (void)context_.workers.Retire(standby.pid);
  }
  std::erase_if(standbys_, [this](const Standby& standby) {
    if (standby.process || standby.attached) return false;
    replaced_ += standby.replaced;
    return true;
  });
}

// The upgrade replaces the workers that were ready when it began. This ends all other standbys,
// which run the old program, too. A standby that serves stays, because the upgrade moves its
// shards.
void Standbys::LeaveToUpgrade() {
  ForgetProgram();
  if (std::exchange(upgrade_met_, upgrades_.last_id()) != upgrades_.last_id()) {
    const v1::Upgrade upgrade = *upgrades_.UnderWay();
    const std::set<uint64_t> ids(upgrade.old_worker_ids().begin(), upgrade.old_worker_ids().end());
    for (const WorkerInfo& worker : context_.workers.List()) {
      for (Standby& standby : standbys_) {
        standby.replaced |= standby.pid == worker.pid && ids.count(worker.id) != 0;
      }
    }
  }
  for (Standby& standby : standbys_) {
    if (!standby.replaced) End(standby);
  }
}

void Standbys::TakeOverFromUpgrade(const WorkerRoles& roles) {
  last_upgrade_ = upgrades_.last_id();
  ForgetProgram();
  size_t places = std::exchange(replaced_, 0);
  const v1::Upgrade upgrade = upgrades_.List().front();
  const bool completed = upgrade.phase() == v1::UPGRADE_PHASE_COMPLETED;
  for (Standby& standby : standbys_) {
    const bool was_replaced = std::exchange(standby.replaced, false);
    if (!completed) continue;
    places += was_replaced;  // its process has not quite ended
    End(standby);
  }
  if (!completed) return;
  const std::set<uint64_t> ids(upgrade.new_worker_ids().begin(), upgrade.new_worker_ids().end());
  for (const WorkerInfo& worker : roles.standbys) {
    if (places == 0) return;
    if (ids.count(worker.id) == 0 || FindProcess(roles.owners, worker.pid) != nullptr) continue;
    --places;
    AddReady(worker.pid);
  }
}

size_t Standbys::CountUnready() const {
  return static_cast<size_t>(absl::c_count_if(
      standbys_, [](const auto& standby) { return !standby.ready && !standby.ending; }));
}

// ---------------------------------------------------------------- starting

// Remembers the program of the worker that serves. If it and its heirs die in a row, the next
// standbys run the same program.
void Standbys::RememberProgram(const WorkerRoles& roles) {
  if (FindWorker(roles.owners, program_of_) != nullptr) return;
  const auto owner = absl::c_find_if(roles.owners, [](const auto& worker) { return worker.ready; });
  if (owner == roles.owners.end() || Clock::now() < not_before_) return;
  if (std::exchange(reading_program_, true)) return;
  context_.workers.ReadProgram(
      owner->id, context_.programs,
      [this, id = owner->id, epoch = program_epoch_](absl::StatusOr<internal::Program> program) {
        reading_program_ = false;
        if (epoch == program_epoch_) OnProgram(id, std::move(program));
        LookLater();
      });
}

void Standbys::OnProgram(uint64_t owner, absl::StatusOr<internal::Program> program) {
  // The program of an owner that is about to die cannot be read any more. The next look finds
  // another owner.
  const bool twice = std::exchange(unreadable_owner_, program.ok() ? 0 : owner) == owner;
  if (program.ok()) {
    program_ = *std::move(program);
    program_of_ = owner;
    return;
  }
  NoteFailure(0);
  if (!twice) return;
  ForgetProgram();
  TellWhyNone(program.status());
}

void Standbys::ForgetProgram() {
  ++program_epoch_;
  program_.reset();
  program_of_ = 0;
}

void Standbys::StartMissing(const WorkerRoles& roles) {
  if (roles.standbys.size() >= wanted_ || CountUnready() != 0) return;
  if (!program_ || reading_program_) return;
  if (context_.workers.free_slots() == 0 || Clock::now() < not_before_) return;
  const absl::Status started = Start(*program_, roles.standbys.size());
  if (started.ok()) return;
  NoteFailure(0);
  TellWhyNone(started);
}

// `what`: text of the event of its start.
void Standbys::OnEntered(WatchedProcess& process, const std::string& what,
                         const absl::Status& status) {
  if (status.ok()) {
    told_.clear();
    return context_.events.Add("standby_started", what);
  }
  for (Standby& standby : standbys_) standby.not_entered |= standby.process.get() == &process;
  TellWhyNone(status);
}

// A start is tried again and again, and the same reason is reported once.
void Standbys::TellWhyNone(const absl::Status& why) {
  const std::string text(MessageOf(why));
  if (std::exchange(told_, text) == text) return;
  context_.events.Add(
      "standby_failed",
      absl::StrCat("no standby can be started as the owner was: ", text,
                   ": see to that, or upgrade to a program that is there with `baton upgrade "
                   "--exec`; it is tried again"));
}

absl::Status Standbys::Start(const internal::Program& program, size_t ready) {
  BATON_RETURN_IF_ERROR(context_.programs.Check(program.path()));
  BATON_ASSIGN_OR_RETURN(StartedProgram started, context_.programs.Start(program));
  const std::string what =
      absl::StrCat("process ", started.pid, " of ", program.path(),
                   " was started as a standby: ", ready, " of ", wanted_, " are ready");
  WatchedProcess& process = *AddStarted(std::move(started)).process;
  process.AwaitEntered(
      [this, what, &process](const auto& status) { OnEntered(process, what, status); });
  return absl::OkStatus();
}

void Standbys::OnEnded(const std::shared_ptr<WatchedProcess>& process) {
  process->TellEntered();  // reports the start before the end
  process->Reap();
  const auto found =
      absl::c_find_if(standbys_, [&](const auto& standby) { return standby.process == process; });
  const Standby standby = *found;
  standbys_.erase(found);
  if (standby.replaced) {
    ++replaced_;
  } else if (!standby.ending) {
    NoteFailure(MonotonicNanoseconds() - standby.started_ns);
    // The end of a worker that served is reported elsewhere.
    if (!standby.has_served && !standby.not_entered) {
      context_.events.Add(
          "standby_failed",
          absl::StrCat("process ", standby.pid, ", a standby", standby.was_ready ? "" : " to be",
                       ", ", process->known.how_ended(),
                       ": see its output in the keeper's log; another is started in ",
                       delay_.length().count(),
                       " ms, as long as hot_standbys of the policy says so"));
    }
  }
  LookLater();
}

void Standbys::NoteFailure(uint64_t lived_ns) {
  delay_.NoteEnd(lived_ns, /*served=*/false, context_.policies.policy());
  not_before_ = Clock::now() + delay_.length();
}

// ---------------------------------------------------------------- ending

// Ends the newest first: those that are not ready yet, then the others.
void Standbys::EndSurplus(const WorkerRoles& roles) {
  size_t count = roles.standbys.size() + CountUnready();
  for (const bool ready : {false, true}) {
    for (auto standby = standbys_.rbegin(); standby != standbys_.rend() && count > wanted_;
         ++standby) {
      if (standby->ready != ready || standby->ending || standby->serves) continue;
      End(*standby);
      --count;
    }
  }
}

void Standbys::End(Standby& standby) {
  if (standby.ending || standby.serves) return;
  // Either it has just got a shard, or the broker is stopped and does not answer.
  standby.unwanted = !context_.workers.Retire(standby.pid);
  if (standby.unwanted) return;
  standby.ending = true;
  standby.deadline = Clock::now() + context_.workers.stop_timeout();
  if (!standby.attached && standby.process) standby.process->Signal(SIGTERM);
}

void Standbys::CheckDeadlines() {
  for (Standby& standby : standbys_) {
    const bool goes_on = standby.replaced || standby.serves || (standby.ready && !standby.ending);
    if (goes_on || standby.killed || Clock::now() < standby.deadline) continue;
    if (!standby.ending) {
      GiveUp(standby);
      continue;
    }
    standby.killed = true;
    const std::vector<WorkerInfo> workers = context_.workers.List();
    if (const WorkerInfo* const worker = FindProcess(workers, standby.pid)) {
      (void)context_.workers.KillOverdue(worker->id);
    } else if (standby.process) {
      standby.process->Signal(SIGKILL);
    }
  }
}

void Standbys::GiveUp(Standby& standby) {
  // A standby that has detached is only slow to end.
  if (standby.attached || !standby.was_ready) {
    NoteFailure(MonotonicNanoseconds() - standby.started_ns);
    context_.events.Add(
        "standby_failed",
        absl::StrCat("process ", standby.pid,
                     standby.was_ready
                         ? ", a standby, is ready no more, since it hangs or has given its "
                           "shards back, and is ended: see its output in the keeper's log"
                         : ", a standby to be, is not ready: its time is over, and it is "
                           "ended; see its output in the keeper's log, or raise "
                           "ready_timeout_ms"));
  }
  End(standby);
}

}  // namespace baton::keeper
