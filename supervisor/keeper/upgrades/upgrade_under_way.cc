#include "supervisor/keeper/upgrades/upgrade_under_way.h"

#include <signal.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/channel/waits.h"
#include "supervisor/keeper/sessions/shard_owners.h"
#include "supervisor/keeper/upgrades/upgrade_plan.h"

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
// The end of a process is reported at most so long after the end of the thread that attached.
constexpr milliseconds kEndIsReported(2000);

}  // namespace

UpgradeUnderWay::UpgradeUnderWay(const KeeperParts& context, uint64_t id, ProgramChange change,
                                 const v1::UpgradePlan& plan, Callbacks callbacks)
    : context_(context),
      callbacks_(std::move(callbacks)),
      record_(context_.events, context_.config.service(), id, std::move(change), plan),
      workers_(context_,
               [this](const internal::StartedWorker& process) {
                 const auto self = shared_from_this();  // the call may end the upgrade
                 OnProcessEnded(process);
               }),
      transfer_(context_, plan),
      timer_(context_.loop) {}

// ---------------------------------------------------------------- starting

void UpgradeUnderWay::Start(std::function<void(const absl::Status&)> done) {
  const absl::StatusOr<uint32_t> count =
      workers_.TakeOld(record_.plan().workers(), &record_.status());
  if (!count.ok()) {
    return boost::asio::post(context_.loop,
                             [done = std::move(done), count] { done(count.status()); });
  }
  record_.status().set_started_unix_micros(UnixMicroseconds());
  workers_.processes().Start(record_.change().to, *count,
                             [this, count, done = std::move(done)](const absl::Status& status) {
                               const auto self = shared_from_this();  // `done` may drop the upgrade
                               record_.set_begun(status.ok());
                               done(status);
                               if (record_.begun()) OnLaunched(*count);
                             });
  // The next keeper must not go on with an upgrade whose processes could not be started.
  if (workers_.processes().List().size() != *count) return;
  // If this keeper dies before the programs are entered, the next one has to know whose the
  // processes are.
  EnterPhase(v1::UPGRADE_PHASE_STARTING, milliseconds(record_.plan().ready_timeout_ms()));
}

void UpgradeUnderWay::StartWith(const WorkerInfo& worker) {
  workers_.TakeOver(worker, &record_.status());
  record_.status().set_started_unix_micros(UnixMicroseconds());
  record_.set_begun(true);
  last_tick_ = steady_clock::now();
  const std::string& exec = record_.status().exec();
  record_.AddEvent(
      "upgrade_started",
      absl::StrCat(record_.Goal(), " took over by itself; it is process ", worker.pid, " of user ",
                   worker.uid, exec.empty() ? "" : ", which runs ", exec));
  const milliseconds limit(record_.plan().ready_timeout_ms());
  EnterPhase(v1::UPGRADE_PHASE_STARTING, limit);
  TickLater();
}

void UpgradeUnderWay::OnLaunched(uint32_t count) {
  last_tick_ = steady_clock::now();
  record_.AddEvent("upgrade_started", absl::StrCat(record_.change().rollback ? "to return, " : "",
                                                   count, " of ", record_.status().exec(),
                                                   " started beside the workers that are there"));
  EnterPhase(v1::UPGRADE_PHASE_STARTING, milliseconds(record_.plan().ready_timeout_ms()));
  Tick();
  // Some of the processes may have ended meanwhile.
  const std::string never_ready = workers_.WhyNeverReady();
  if (!never_ready.empty()) Return(never_ready);
}

void UpgradeUnderWay::OnProcessEnded(const internal::StartedWorker& process) {
  if (!record_.begun()) return;  // OnLaunched looks again
  // The session of a worker that has attached reports its end, too, and its shards have moved by
  // then.
  if (record_.phase() == v1::UPGRADE_PHASE_STARTING && process.worker_id() == 0) {
    return Return(EndedTooSoon(process, process.how_ended()));
  }
  CheckEnded();
}

Standing UpgradeUnderWay::OnAttached(uint64_t worker_id, pid_t pid) {
  if (workers_.TakeNew(worker_id, pid, &record_.status())) {
    NoteChange();
    return Standing::kLast;
  }
  const bool is_late = record_.phase() == v1::UPGRADE_PHASE_RETIRING &&
                       workers_.HasOldVersion(worker_id, record_.status());
  return is_late ? Standing::kLast : Standing::kFirst;
}

// Once the old workers retire, the upgrade takes no other for an old one. A unit that starts its
// worker whenever that has ended would keep the upgrade from its end.
void UpgradeUnderWay::OnReady(uint64_t worker_id) {
  const bool retiring = record_.phase() == v1::UPGRADE_PHASE_RETIRING;
  if (!retiring && workers_.TakeLateOld(worker_id, record_.status())) NoteChange();
  if (record_.begun() && record_.phase() == v1::UPGRADE_PHASE_STARTING) Advance();
}

void UpgradeUnderWay::Advance() {
  const std::string missing = workers_.WhyNotReady();
  if (!missing.empty()) {
    ready_since_ = {};
    if (steady_clock::now() >= deadline_) Return(absl::StrCat(missing, ": time is over"));
    return;
  }
  const steady_clock::time_point now = steady_clock::now();
  if (ready_since_ == steady_clock::time_point()) ready_since_ = now;
  if (now < ready_since_ + kSettling || record_.status().paused()) return;
  const absl::Status readable = CheckStateVersions(
      context_.driver, workers_.ListOld(), workers_.ListNew(), !record_.status().no_rollback());
  if (!readable.ok()) return Return(std::string(MessageOf(readable)));
  HandOver();
}

// ---------------------------------------------------------------- going on

void UpgradeUnderWay::HandOver() {
  const std::vector<WorkerInfo> new_workers = workers_.ListNew();
  if (new_workers.empty()) return Return("none of its workers is left");
  const std::vector<ShardMove> moves = transfer_.BeginStep(new_workers);
  // The next keeper learns of the phase and of the shards that are on their way, or of neither. The
  // moves have a time-out of their own.
  EnterPhase(v1::UPGRADE_PHASE_HANDING_OVER, milliseconds(0));
  Move(moves, &UpgradeUnderWay::OnHandedOver);
}

void UpgradeUnderWay::Move(const std::vector<ShardMove>& moves,
                           void (UpgradeUnderWay::*next)(const HandoffsResult&)) {
  MoveShards(context_.loop, context_.driver, moves, context_.config.service().handoff_timeout_ms(),
             [us = weak_from_this(), next](const HandoffsResult& result) {
               if (const auto self = us.lock()) ((*self).*next)(result);
             });
}

void UpgradeUnderWay::OnHandedOver(const HandoffsResult& result) {
  v1::Upgrade& status = record_.status();
  status.set_slowest_blackout_us(std::max(status.slowest_blackout_us(), result.slowest_us));
  transfer_.EndStep();
  if (status.phase() != v1::UPGRADE_PHASE_HANDING_OVER) {
    // The upgrade is being undone, and has waited only for this.
    return Return(status.detail());
  }
  // The worker has ended, and OnGone() says soon how.
  if (absl::IsUnavailable(result.status)) return AwaitEnd(std::string(MessageOf(result.status)));
  if (!result.status.ok()) return Return(std::string(MessageOf(result.status)));
  const bool all = transfer_.BeginWindow();
  record_.AddEvent(
      all ? "upgrade_handed_over" : "upgrade_canary",
      absl::StrCat(result.moved, " shards moved to ", record_.Goal(), ", the slowest in ",
                   static_cast<int64_t>(result.slowest_us), " us"));
  const std::string problem = transfer_.trial().ProblemOfBlackout(result.slowest_us);
  if (!problem.empty()) return Return(problem);
  if (!all) {
    return EnterPhase(v1::UPGRADE_PHASE_CANARY, milliseconds(record_.plan().canary_window_ms()));
  }
  EnterPhase(v1::UPGRADE_PHASE_WATCHING,
             milliseconds(status.no_rollback() ? 0 : record_.plan().watch_window_ms()));
  if (status.no_rollback()) LookAtNewWorkers();
}

void UpgradeUnderWay::AwaitEnd(const std::string& otherwise) {
  why_not_moved_ = otherwise;
  deadline_ = steady_clock::now() + kEndIsReported;
}

void UpgradeUnderWay::LookAtNewWorkers() {
  const Trial::Verdict verdict = transfer_.trial().Look(workers_.ListNew());
  if (!verdict.problem.empty()) return Return(verdict.problem);
  if (verdict.open || record_.status().paused()) return;
  if (steady_clock::now() >= deadline_) OnWindowOver();
}

void UpgradeUnderWay::OnWindowOver() {
  const std::string problem = transfer_.trial().ProblemOfWindow();
  if (!problem.empty()) return Return(problem);
  if (record_.phase() == v1::UPGRADE_PHASE_WATCHING) {
    // Checks and promotes in one turn of the engine. If a new worker died in between, the old
    // workers, which have its shards then, would be ended.
    if (context_.driver.Promote(PlacesOf(workers_.ListNew()), PlacesOf(workers_.ListAllButNew()))) {
      Retire();
    }
    return;
  }
  if (record_.PauseAfterCanary()) return NoteChange();
  HandOver();
}

void UpgradeUnderWay::OnGone(uint64_t worker_id, const std::string& kill_cause) {
  if (workers_.ForgetOld(worker_id)) {
    NoteChange();
    return CheckEnded();
  }
  const std::string what = workers_.ForgetNew(worker_id, kill_cause);
  if (what.empty() || !record_.begun()) return;  // OnLaunched looks again
  switch (record_.phase()) {
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

absl::Status UpgradeUnderWay::Undo() {
  BATON_RETURN_IF_ERROR(record_.CheckUndoable());
  if (record_.phase() != v1::UPGRADE_PHASE_RETURNING) Return("an operator asked for it");
  return absl::OkStatus();
}

absl::Status UpgradeUnderWay::SetPaused(bool paused) {
  BATON_RETURN_IF_ERROR(paused ? record_.Pause() : record_.Resume());
  NoteChange();
  return absl::OkStatus();
}

v1::Upgrade UpgradeUnderWay::Describe() const {
  v1::Upgrade upgrade = record_.status();
  if (upgrade.phase() == v1::UPGRADE_PHASE_STARTING) upgrade.set_detail(workers_.WhyNotReady());
  if (upgrade.phase() == v1::UPGRADE_PHASE_WATCHING ||
      upgrade.phase() == v1::UPGRADE_PHASE_CANARY) {
    upgrade.set_watch_seconds_left(
        std::max(0.0, std::chrono::duration<double>(deadline_ - steady_clock::now()).count()));
  }
  return upgrade;
}

// ---------------------------------------------------------------- ending

void UpgradeUnderWay::Return(const std::string& why) {
  record_.status().set_detail(why);
  record_.status().set_paused(false);
  const bool to_nobody = workers_.old_ids().empty();
  const bool given_up = record_.status().no_rollback() && transfer_.served();
  if ((to_nobody || given_up) && !workers_.new_ids().empty()) {
    for (const uint64_t worker_id : workers_.new_ids()) context_.workers.MakeFirst(worker_id);
    return Finish(
        v1::UPGRADE_PHASE_FAILED,
        absl::StrCat(why, to_nobody ? "; the old workers are gone, so the new ones stay"
                                    : "; the return was given up, so both programs stay"));
  }
  if (record_.phase() != v1::UPGRADE_PHASE_RETURNING) record_.AddEvent("upgrade_returning", why);
  EnterPhase(v1::UPGRADE_PHASE_RETURNING, milliseconds(0));
  // Shards on their way arrive, or come back, first. OnHandedOver then goes on.
  if (transfer_.moving()) return;
  Move(transfer_.PlanReturn(workers_.ListNew(), workers_.ListOld()), &UpgradeUnderWay::OnReturned);
}

void UpgradeUnderWay::OnReturned(const HandoffsResult& result) {
  record_.status().set_slowest_return_us(result.slowest_us);
  // An old worker that has taken its shards back can die before this call.
  if (workers_.old_ids().empty() && !workers_.new_ids().empty()) {
    return Return(record_.status().detail());
  }
  if (result.status.ok()) return End(workers_.new_ids());
  // The deaths of the new workers give the shards to the heirs.
  for (const uint64_t worker_id : workers_.new_ids()) {
    (void)context_.workers.Kill(
        worker_id, absl::StrCat("it does not give its shards back: ", result.status.message()));
  }
  End({});
}

void UpgradeUnderWay::Retire() {
  EnterPhase(v1::UPGRADE_PHASE_RETIRING, milliseconds(0));
  context_.programs.OnServing(record_.change().to);
  End(workers_.old_ids());
}

// Asks the workers to end. KillOverdue() kills those that are still there when their time is over.
void UpgradeUnderWay::End(const std::set<uint64_t>& worker_ids) {
  ending_ = true;
  deadline_ = steady_clock::now() + context_.workers.stop_timeout();
  NoteChange();
  for (const uint64_t worker_id : worker_ids) context_.workers.AskToStop(worker_id);
  if (record_.phase() == v1::UPGRADE_PHASE_RETURNING) {
    workers_.processes().SignalUnattached(SIGTERM);
  }
  CheckEnded();
}

void UpgradeUnderWay::KillOverdue() {
  const bool retiring = record_.phase() == v1::UPGRADE_PHASE_RETIRING;
  if (killed_) {
    // Not even the kill helped; nothing more can be done.
    return Finish(Outcome(), absl::StrCat(record_.status().detail(), retiring ? "" : "; ",
                                          "a process that was killed is still there"));
  }
  killed_ = true;  // not for the next keeper, which does not know whether this one came to it
  deadline_ = steady_clock::now() + context_.workers.stop_timeout();
  NoteChange();
  for (const uint64_t worker_id : retiring ? workers_.old_ids() : workers_.new_ids()) {
    (void)context_.workers.KillOverdue(worker_id);
  }
  if (!retiring) workers_.processes().SignalAll(SIGKILL);
}

void UpgradeUnderWay::CheckEnded() {
  if (!ending_) return;
  if (record_.phase() == v1::UPGRADE_PHASE_RETIRING) {
    if (workers_.old_ids().empty()) Finish(Outcome(), "");
    return;
  }
  if (!workers_.processes().AllEnded() || !workers_.new_ids().empty()) return;
  Finish(Outcome(), record_.status().detail());
}

// Returns the outcome of the upgrade when all workers that had to end have ended.
v1::UpgradePhase UpgradeUnderWay::Outcome() const {
  if (record_.phase() == v1::UPGRADE_PHASE_RETIRING) return v1::UPGRADE_PHASE_COMPLETED;
  return transfer_.served() ? v1::UPGRADE_PHASE_ROLLED_BACK : v1::UPGRADE_PHASE_FAILED;
}

void UpgradeUnderWay::Finish(v1::UpgradePhase phase, const std::string& detail) {
  record_.Finish(phase, detail);
  timer_.cancel();
  over_ = true;
  callbacks_.on_over();
}

// ---------------------------------------------------------------- time

void UpgradeUnderWay::EnterPhase(v1::UpgradePhase phase, milliseconds limit) {
  record_.status().set_phase(phase);
  deadline_ = steady_clock::now() + limit;
  NoteChange();
}

void UpgradeUnderWay::Tick() {
  const steady_clock::time_point now = steady_clock::now();
  const auto since = now - std::exchange(last_tick_, now);
  if (record_.status().paused()) deadline_ += since;
  switch (record_.phase()) {
    case v1::UPGRADE_PHASE_STARTING:
      Advance();
      break;
    case v1::UPGRADE_PHASE_HANDING_OVER:
      if (!why_not_moved_.empty() && now >= deadline_) Return(why_not_moved_);
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
  record_.Hold(&held);
  workers_.Hold(&held);
  transfer_.Hold(&held);
  const auto left =
      std::chrono::duration_cast<std::chrono::nanoseconds>(deadline_ - steady_clock::now());
  held.set_held_ns(MonotonicNanoseconds());
  held.set_deadline_ns(held.held_ns() + static_cast<uint64_t>(left.count()));
  held.set_ending(ending_);
  return held;
}

void UpgradeUnderWay::Continue(const internal::HeldUpgrade& held) {
  record_.Continue(held);
  workers_.Continue(held);
  transfer_.Continue(held);
  const bool stood_still = record_.status().paused() && held.held_ns() != 0;
  const uint64_t from = stood_still ? held.held_ns() : MonotonicNanoseconds();
  deadline_ = steady_clock::now() +
              std::chrono::nanoseconds(static_cast<int64_t>(held.deadline_ns() - from));
  last_tick_ = steady_clock::now();
  ending_ = held.ending();
  record_.AddEvent(
      "upgrade_continued",
      absl::StrCat("the keeper before this one has ended; the upgrade ", record_.PhaseInWords()));
  TickLater();
  ContinuePhase();
}

// Finds the deaths of workers and the moves of shards that were reported to no keeper.
void UpgradeUnderWay::ContinuePhase() {
  const v1::UpgradePhase phase = record_.phase();
  const std::set<uint64_t> old_workers = workers_.old_ids(), new_workers = workers_.new_ids();
  for (const auto* workers : {&old_workers, &new_workers}) {
    for (const uint64_t worker : *workers) {
      if (!context_.workers.IsAttached(worker)) OnGone(worker, "");
      if (over_) return;
    }
  }
  if (record_.phase() != phase) return;  // it goes back for one of these deaths
  switch (phase) {
    case v1::UPGRADE_PHASE_STARTING:
      if (const std::string why = workers_.WhyNeverReady(); !why.empty()) Return(why);
      return;
    case v1::UPGRADE_PHASE_HANDING_OVER:
      if (!transfer_.HasArrived(workers_.new_ids())) {
        return Return("the keeper ended while shards were on their way");
      }
      return OnHandedOver(HandoffsResult{.moved = static_cast<uint32_t>(transfer_.step_size())});
    case v1::UPGRADE_PHASE_RETURNING:
      if (!ending_) return Return(record_.status().detail());
      return End(workers_.new_ids());
    case v1::UPGRADE_PHASE_RETIRING:
      context_.programs.OnServing(record_.change().to);
      return End(workers_.old_ids());
    default:
      return;
  }
}

}  // namespace baton::keeper
