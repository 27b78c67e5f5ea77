#include "supervisor/keeper/standbys.h"

#include <signal.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"

namespace baton::keeper {
namespace {

using std::chrono::milliseconds;

// Between two looks at who is ready and who owns what, which nobody tells.
constexpr milliseconds kTick(100);

bool Has(const std::vector<WorkerInfo>& workers, uint64_t id) {
  return std::any_of(workers.begin(), workers.end(),
                     [id](const WorkerInfo& worker) { return worker.id == id; });
}

}  // namespace

Standbys::Standbys(boost::asio::io_context& loop, const internal::KeeperConfig& config,
                   ServiceEngine& engine, Policies& policies, EventLog& events,
                   WorkerSessions& workers, WorkerPrograms& programs, const Upgrades& upgrades)
    : loop_(loop),
      ready_timeout_(config.service().ready_timeout_ms()),
      stop_timeout_(config.service().stop_timeout_ms()),
      engine_(engine),
      policies_(policies),
      events_(events),
      workers_(workers),
      programs_(programs),
      upgrades_(upgrades),
      timer_(loop) {
  policies_.SetListener([this] { OnPolicy(); });
  OnPolicy();
}

Standbys::~Standbys() { policies_.SetListener(nullptr); }

void Standbys::AddEvent(const char* kind, const std::string& message, uint64_t worker_id) {
  events_.Add(kind, message, UnixMicroseconds(), worker_id, -1, -1);
}

// ---------------------------------------------------------------- looking

void Standbys::OnPolicy() {
  const uint32_t before = std::exchange(wanted_, policies_.policy().hot_standbys());
  lowered_ |= wanted_ < before;
  LookLater();
}

void Standbys::LookLater() {
  if (wanted_ == 0 && standbys_.empty() && replaced_ == 0) {
    lowered_ = false;
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
  const std::vector<WorkerInfo> workers = workers_.List();
  const WorkerRoles roles = RolesOf(workers, engine_);
  Follow(workers, roles);
  CheckDeadlines();
  if (!upgrades_.idle()) {
    LeaveToUpgrade();
  } else {
    if (last_upgrade_ != upgrades_.last_id()) TakeOverFromUpgrade(roles);
    if (std::exchange(lowered_, false)) EndSurplus(roles);
    StartMissing(roles);
  }
  LookLater();
}

// What has become of each of them.
void Standbys::Follow(const std::vector<WorkerInfo>& workers, const WorkerRoles& roles) {
  for (Standby& standby : standbys_) {
    const auto is_its = [&](const WorkerInfo& worker) {
      if (standby.worker_id != 0 || !standby.process) return worker.id == standby.worker_id;
      // Not reaped yet: its number is its own.
      return worker.pid == standby.process->known.pid;
    };
    const auto found = std::find_if(workers.begin(), workers.end(), is_its);
    if (found != workers.end()) {
      standby.worker_id = found->id;
      if (standby.ready && !found->ready && !standby.ending) {  // it is killed
        standby.deadline = Clock::now() + stop_timeout_;
      }
      standby.ready = found->ready;
      standby.owned |= Has(roles.owners, found->id);
    } else if (standby.worker_id != 0) {
      // It has detached. Its process ends, or attaches again.
      standby.worker_id = 0;
      standby.ready = false;
      if (!standby.ending) standby.deadline = Clock::now() + stop_timeout_;
    }
  }
  const size_t gone = std::erase_if(
      standbys_, [](const Standby& standby) { return !standby.process && standby.worker_id == 0; });
  if (last_upgrade_ != upgrades_.last_id()) replaced_ += gone;
}

// It replaces who was ready when it began. Another of the program that it ends is not to stay.
void Standbys::LeaveToUpgrade() {
  if (standbys_.empty()) return;
  const v1::Upgrade upgrade = *upgrades_.UnderWay();
  const std::set<uint64_t> replaced(upgrade.old_worker_ids().begin(),
                                    upgrade.old_worker_ids().end());
  for (Standby& standby : standbys_) {
    if (replaced.count(standby.worker_id) == 0) End(standby);
  }
}

void Standbys::TakeOverFromUpgrade(const WorkerRoles& roles) {
  last_upgrade_ = upgrades_.last_id();
  size_t places = std::exchange(replaced_, 0);
  const v1::Upgrade upgrade = upgrades_.List().front();
  if (upgrade.phase() != v1::UPGRADE_PHASE_COMPLETED) return;
  for (Standby& standby : standbys_) {
    if (standby.ending) continue;
    ++places;  // its process has not quite ended
    End(standby);
  }
  for (const uint64_t id : upgrade.new_worker_ids()) {
    if (places == 0 || !Has(roles.standbys, id)) continue;
    --places;
    Standby& standby = standbys_.emplace_back();
    standby.worker_id = id;
    standby.ready = true;
  }
}

bool Standbys::IsEnding(uint64_t worker_id) const {
  return std::any_of(standbys_.begin(), standbys_.end(), [&](const Standby& standby) {
    return standby.ending && standby.worker_id == worker_id;
  });
}

size_t Standbys::CountUnready() const {
  return static_cast<size_t>(
      std::count_if(standbys_.begin(), standbys_.end(),
                    [](const Standby& standby) { return !standby.ready && !standby.ending; }));
}

// ---------------------------------------------------------------- starting

void Standbys::StartMissing(const WorkerRoles& roles) {
  if (roles.standbys.size() >= wanted_ || CountUnready() != 0) return;
  if (workers_.free_slots() == 0 || Clock::now() < not_before_) return;
  const auto owner = std::find_if(roles.owners.begin(), roles.owners.end(),
                                  [](const WorkerInfo& worker) { return worker.ready; });
  if (owner == roles.owners.end()) return;
  const absl::StatusOr<internal::Program> program = ProgramOf(*owner);
  // One that is about to die has none any more; the next look finds another owner.
  const bool twice = std::exchange(unreadable_owner_, program.ok() ? 0 : owner->id) == owner->id;
  if (!program.ok() && !twice) return;
  const absl::Status started = program.ok() ? Start(*program) : program.status();
  if (started.ok()) {
    told_.clear();
    const Standby& standby = standbys_.back();
    return AddEvent("standby_started",
                    absl::StrCat("process ", standby.process->known.pid, " of ", program->path(),
                                 " was started as a standby: ", roles.standbys.size(), " of ",
                                 wanted_, " are ready"),
                    0);
  }
  NoteFailure(0);
  const std::string why(MessageOf(started));
  if (std::exchange(told_, why) == why) return;  // it is tried again and again
  AddEvent("standby_failed",
           absl::StrCat("no standby can be started as worker ", owner->id, " was: ", why,
                        ": see to that, or upgrade to a program that is there with `baton upgrade "
                        "--exec`; it is tried again"),
           0);
}

// Who ends meanwhile shows the half of it; then there is nothing to be seen the second time.
absl::StatusOr<internal::Program> Standbys::ProgramOf(const WorkerInfo& owner) {
  BATON_ASSIGN_OR_RETURN(internal::Program program, programs_.Of(owner.pid, owner.uid, owner.gid));
  BATON_RETURN_IF_ERROR(programs_.Of(owner.pid, owner.uid, owner.gid).status());
  return program;
}

absl::Status Standbys::Start(const internal::Program& program) {
  BATON_RETURN_IF_ERROR(programs_.Check(program.path()));
  BATON_ASSIGN_OR_RETURN(StartedProgram started, programs_.Start(program));
  Standby standby;
  standby.process = std::make_shared<WatchedProcess>(loop_, std::move(started));
  standby.started_ns = MonotonicNanoseconds();
  standby.deadline = Clock::now() + ready_timeout_;
  Watch(standby.process);
  standbys_.push_back(std::move(standby));
  return absl::OkStatus();
}

void Standbys::Watch(const std::shared_ptr<WatchedProcess>& process) {
  process->pidfd.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                            [this, process](const boost::system::error_code& error) {
                              if (!error) OnEnded(process);
                            });
}

void Standbys::OnEnded(const std::shared_ptr<WatchedProcess>& process) {
  process->Reap();
  const auto found = std::find_if(standbys_.begin(), standbys_.end(), [&](const Standby& standby) {
    return standby.process == process;
  });
  const Standby standby = *found;
  standbys_.erase(found);
  if (last_upgrade_ != upgrades_.last_id()) {
    replaced_ += !standby.ending;
  } else if (!standby.ending) {
    NoteFailure(MonotonicNanoseconds() - standby.started_ns);
    // Of one that served by then others tell.
    if (!standby.owned) {
      AddEvent("standby_failed",
               absl::StrCat("process ", process->known.pid, ", a standby",
                            standby.ready ? "" : " to be", ", ", process->known.how_ended,
                            ": see its output in the keeper's log; another is started in ",
                            delay_.length().count(),
                            " ms, as long as hot_standbys of the policy says so"),
               standby.worker_id);
    }
  }
  LookLater();
}

void Standbys::NoteFailure(uint64_t lived_ns) {
  delay_.NoteEnd(lived_ns, /*served=*/false, policies_.policy());
  not_before_ = Clock::now() + delay_.length();
}

// ---------------------------------------------------------------- ending

// The newest first: those that are not ready yet, then the others.
void Standbys::EndSurplus(const WorkerRoles& roles) {
  const auto ready = static_cast<size_t>(
      std::count_if(roles.standbys.begin(), roles.standbys.end(),
                    [this](const WorkerInfo& worker) { return !IsEnding(worker.id); }));
  size_t count = ready + CountUnready();
  for (auto standby = standbys_.rbegin(); standby != standbys_.rend() && count > wanted_;
       ++standby) {
    const bool owns_nothing = !standby->ready || Has(roles.standbys, standby->worker_id);
    if (standby->ending || !owns_nothing) continue;
    End(*standby);
    --count;
  }
}

void Standbys::End(Standby& standby) {
  if (std::exchange(standby.ending, true)) return;
  standby.deadline = Clock::now() + stop_timeout_;
  if (standby.worker_id == 0) return standby.process->Signal(SIGTERM);
  // Should a shard need an owner meanwhile, another one is chosen if there is one.
  workers_.SetStanding(standby.worker_id, Standing::kLast);
  workers_.AskToStop(standby.worker_id);
}

// Of one that an upgrade has left there is no process here.
std::string Standbys::NameOf(const Standby& standby) {
  return standby.process ? absl::StrCat("process ", standby.process->known.pid)
                         : absl::StrCat("worker ", standby.worker_id);
}

void Standbys::CheckDeadlines() {
  for (Standby& standby : standbys_) {
    if ((standby.ready && !standby.ending) || standby.killed || Clock::now() < standby.deadline) {
      continue;
    }
    if (!standby.ending) {
      NoteFailure(MonotonicNanoseconds() - standby.started_ns);
      AddEvent("standby_failed",
               absl::StrCat(NameOf(standby),
                            ", a standby to be, is not ready: its time is over, and it is ended; "
                            "see its output in the keeper's log, or raise ready_timeout_ms"),
               standby.worker_id);
      End(standby);
      continue;
    }
    standby.killed = true;
    if (standby.worker_id != 0) {
      (void)workers_.Kill(standby.worker_id,
                          absl::StrCat("it was asked to end ", stop_timeout_.count(), " ms ago"));
    } else {
      standby.process->Signal(SIGKILL);
    }
  }
}

}  // namespace baton::keeper
