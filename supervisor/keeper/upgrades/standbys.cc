#include "supervisor/keeper/upgrades/standbys.h"

#include <signal.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "lib/loop/await_readable.h"

namespace baton::keeper {
namespace {

using std::chrono::milliseconds;

// Between two looks at who is ready and who owns what, which nobody tells.
constexpr milliseconds kTick(100);
constexpr char kHeldKey[] = "lasting/standbys";

bool HasProcess(const std::vector<WorkerInfo>& workers, pid_t pid) {
  return std::any_of(workers.begin(), workers.end(),
                     [pid](const WorkerInfo& worker) { return worker.pid == pid; });
}

}  // namespace

Standbys::Standbys(const WorkerStarts& context, const Upgrades& upgrades)
    : context_(context), upgrades_(upgrades), timer_(context.loop) {
  context_.policies.SetListener([this] { OnPolicy(); });
  OnPolicy();
}

Standbys::~Standbys() { context_.policies.SetListener(nullptr); }

void Standbys::Restore(const ServiceDriver::HeldByKey& held) {
  const std::vector<WorkerInfo> workers = context_.workers.List();
  const auto entry = held.find(kHeldKey);
  if (entry != held.end()) held_ = entry->second.value;
  for (const absl::string_view text : absl::StrSplit(held_, ' ', absl::SkipEmpty())) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(text, &pid)) continue;
    Standby standby;
    standby.pid = pid;
    const auto worker = std::find_if(workers.begin(), workers.end(),
                                     [pid](const WorkerInfo& one) { return one.pid == pid; });
    standby.attached = worker != workers.end();
    standby.ready = standby.was_ready = standby.attached && worker->ready;
    if (!standby.ready && !AwaitReady(standby)) continue;
    standbys_.push_back(std::move(standby));
  }
  // The end of one that is under way is still to be noticed.
  if (upgrades_.idle()) last_upgrade_ = upgrades_.last_id();
  LookLater();
}

// It attaches to this keeper, or is still warming up. Returns false if it has ended.
bool Standbys::AwaitReady(Standby& standby) {
  StartedProgram started;
  started.pid = standby.pid;
  started.pidfd = context_.programs.PidfdOf(standby.pid);
  if (!started.pidfd) return false;
  standby.process =
      std::make_shared<WatchedProcess>(context_.loop, context_.programs, std::move(started));
  standby.started_ns = MonotonicNanoseconds();
  standby.deadline = Clock::now() + ready_timeout();
  Watch(standby.process);
  return true;
}

void Standbys::Hold() {
  std::string pids;
  for (const Standby& standby : standbys_) absl::StrAppend(&pids, standby.pid, " ");
  if (pids == held_) return;
  held_ = pids;
  context_.driver.Hold(kHeldKey, held_);
}

void Standbys::AddEvent(const char* kind, const std::string& message) {
  context_.events.Add(kind, message, UnixMicroseconds(), 0, -1, -1);
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
    timer_.cancel();
    return;
  }
  const Clock::time_point now = Clock::now();
  const bool waits = now < not_before_ && not_before_ < now + kTick;
  timer_.expires_at(waits ? not_before_ : now + kTick);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) Look();
  });
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
    const bool was_attached = std::exchange(standby.attached, HasProcess(workers, standby.pid));
    standby.serves = HasProcess(roles.owners, standby.pid);
    const bool ready = standby.serves || HasProcess(roles.standbys, standby.pid);
    const bool fell = (standby.ready && !ready) || (was_attached && !standby.attached);
    if (fell && !standby.ending) standby.deadline = Clock::now() + stop_timeout();
    standby.ready = ready;
    standby.was_ready |= ready;
    standby.has_served |= standby.serves;
    // It was given a shard before it could be told: it goes on.
    if (standby.serves) standby.ending = standby.killed = false;
    // A standby that has attached since is asked to end now.
    if (standby.ending && standby.attached) (void)context_.workers.Retire(standby.pid);
  }
  std::erase_if(standbys_, [this](const Standby& standby) {
    if (standby.process || standby.attached) return false;
    replaced_ += standby.replaced;
    return true;
  });
}

// It replaces who was ready when it began. Another of the program that it ends is not to stay,
// unless it serves: then its shards are on their way.
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
    if (ids.count(worker.id) == 0 || HasProcess(roles.owners, worker.pid)) continue;
    --places;
    Standby& standby = standbys_.emplace_back();
    standby.pid = worker.pid;
    standby.attached = standby.ready = standby.was_ready = true;
  }
}

size_t Standbys::CountUnready() const {
  return static_cast<size_t>(
      std::count_if(standbys_.begin(), standbys_.end(),
                    [](const Standby& standby) { return !standby.ready && !standby.ending; }));
}

// ---------------------------------------------------------------- starting

// Remembers the program of the worker that serves. If it and its heirs die in a row, the next
// standbys run the same program.
void Standbys::RememberProgram(const WorkerRoles& roles) {
  const auto is_known = [this](const WorkerInfo& worker) { return worker.id == program_of_; };
  if (std::any_of(roles.owners.begin(), roles.owners.end(), is_known)) return;
  const auto owner = std::find_if(roles.owners.begin(), roles.owners.end(),
                                  [](const WorkerInfo& worker) { return worker.ready; });
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
  // One that is about to die has none any more; the next look finds another owner.
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

// `what`: the event of its start.
void Standbys::OnEntered(WatchedProcess& process, const std::string& what,
                         const absl::Status& status) {
  if (status.ok()) {
    told_.clear();
    return AddEvent("standby_started", what);
  }
  for (Standby& standby : standbys_) standby.not_entered |= standby.process.get() == &process;
  TellWhyNone(status);
}

// It is tried again and again, and told once.
void Standbys::TellWhyNone(const absl::Status& why) {
  const std::string text(MessageOf(why));
  if (std::exchange(told_, text) == text) return;
  AddEvent("standby_failed",
           absl::StrCat("no standby can be started as the owner was: ", text,
                        ": see to that, or upgrade to a program that is there with `baton upgrade "
                        "--exec`; it is tried again"));
}

absl::Status Standbys::Start(const internal::Program& program, size_t ready) {
  BATON_RETURN_IF_ERROR(context_.programs.Check(program.path()));
  BATON_ASSIGN_OR_RETURN(StartedProgram started, context_.programs.Start(program));
  Standby standby;
  standby.pid = started.pid;
  standby.process =
      std::make_shared<WatchedProcess>(context_.loop, context_.programs, std::move(started));
  standby.started_ns = MonotonicNanoseconds();
  standby.deadline = Clock::now() + ready_timeout();
  const std::string what =
      absl::StrCat("process ", standby.pid, " of ", program.path(),
                   " was started as a standby: ", ready, " of ", wanted_, " are ready");
  standby.process->AwaitEntered([this, what, process = standby.process.get()](const auto& status) {
    OnEntered(*process, what, status);
  });
  Watch(standby.process);
  standbys_.push_back(std::move(standby));
  return absl::OkStatus();
}

void Standbys::Watch(const std::shared_ptr<WatchedProcess>& process) {
  AwaitReadable(process->pidfd, [this, process] { OnEnded(process); });
}

void Standbys::OnEnded(const std::shared_ptr<WatchedProcess>& process) {
  process->TellEntered();  // before that
  process->Reap();
  const auto found = std::find_if(standbys_.begin(), standbys_.end(), [&](const Standby& standby) {
    return standby.process == process;
  });
  const Standby standby = *found;
  standbys_.erase(found);
  if (standby.replaced) {
    ++replaced_;
  } else if (!standby.ending) {
    NoteFailure(MonotonicNanoseconds() - standby.started_ns);
    // The end of a worker that served is reported elsewhere.
    if (!standby.has_served && !standby.not_entered) {
      AddEvent("standby_failed",
               absl::StrCat("process ", standby.pid, ", a standby",
                            standby.was_ready ? "" : " to be", ", ", process->known.how_ended,
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

// The newest first: those that are not ready yet, then the others.
void Standbys::EndSurplus(const WorkerRoles& roles) {
  size_t count = roles.standbys.size() + CountUnready();
  for (const bool ready : {false, true}) {
    for (auto standby = standbys_.rbegin(); standby != standbys_.rend() && count > wanted_;
         ++standby) {
      if (standby->ready != ready || standby->ending || standby->serves) continue;
      End(*standby);
      count -= standby->ending;
    }
  }
}

// Nothing, if it serves by now.
void Standbys::End(Standby& standby) {
  if (standby.ending || standby.serves || !context_.workers.Retire(standby.pid)) return;
  standby.ending = true;
  standby.deadline = Clock::now() + stop_timeout();
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
    const auto worker = std::find_if(workers.begin(), workers.end(), [&](const WorkerInfo& info) {
      return info.pid == standby.pid;
    });
    if (worker != workers.end()) {
      (void)context_.workers.Kill(
          worker->id, absl::StrCat("it was asked to end ", stop_timeout().count(), " ms ago"));
    } else if (standby.process) {
      standby.process->Signal(SIGKILL);
    }
  }
}

void Standbys::GiveUp(Standby& standby) {
  // One that has detached is only slow to end.
  if (standby.attached || !standby.was_ready) {
    NoteFailure(MonotonicNanoseconds() - standby.started_ns);
    AddEvent("standby_failed",
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
