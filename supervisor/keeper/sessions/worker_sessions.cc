#include "supervisor/keeper/sessions/worker_sessions.h"

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/status.h"
#include "lib/channel/waits.h"
#include "supervisor/driver/engine/death_watcher.h"

namespace baton::keeper {
namespace {

// How long workers have to resume their sessions with the next keeper. They look for it every few
// milliseconds, unless they are stopped.
constexpr std::chrono::seconds kResumptionTimeout(10);
// A worker looks for the next keeper at least once in this many polls, each of which is a beat. A
// worker that has polled less is busy, or stopped. The policy's on_hang says what becomes of it.
constexpr uint64_t kBeatsToResume = 1 << 17;
// The first layout version whose workers look at DriverMemoryHeader::stop_requested.
constexpr uint32_t kStopRequestLayoutVersion = 2;

using Change = internal::ChangeWorker;

}  // namespace

WorkerSessions::WorkerSessions(const CommonParts& parts)
    : arena_(parts.driver.arena()),
      places_(parts.driver),
      parts_{parts, places_},
      ends_(parts_),
      hang_watch_(parts_, [this](uint64_t worker_id,
                                 std::string_view cause) { (void)Kill(worker_id, cause); }),
      requests_(parts_, ends_, hang_watch_),
      resumption_timer_(parts.loop) {}

// ---------------------------------------------------------------- sessions that go on

void WorkerSessions::Restore(DriverClient::HeldByKey& held) {
  places_.Restore(parts_.loop, held, [this](const SessionPtr& session) { GoOn(session); });
  // The driver may have reported these workers to the former keeper.
  for (uint32_t slot = 0; slot < places_.slots().size(); ++slot) {
    const SessionPtr session = places_.slots()[slot];
    if (session && driver_process::DeathWatcher::IsMarked(arena_, slot)) {
      ends_.OnThreadEnded(session);
    }
  }
  const internal::ShardsSeen seen = parts_.driver.LookAtShards();
  for (const uint32_t slot : seen.fenced_slots()) {
    if (IdOf(slot) != 0) (void)Kill(IdOf(slot), "it wrote an invalid transaction");
  }
  After(resumption_timer_, kResumptionTimeout, [this] { CloseUnresumed(); });
}

void WorkerSessions::EndSetAside(DriverClient::HeldByKey& set_aside) {
  places_.PutSetAside(parts_.loop, set_aside, [this](const SessionPtr& session) {
    ends_.Watch(session);
    (void)Kill(session->id, "keepers died of its session (keeper_entry_set_aside)");
  });
}

void WorkerSessions::GoOn(const SessionPtr& session) {
  session->beat_at_restore = arena::LoadRelaxed(arena_.worker(session->slot).heartbeat);
  session->heartbeat.Look(session->beat_at_restore, /*patience=*/1);  // this is no sign of life
  // The former keeper may have called the worker silent. This one counts anew.
  parts_.driver.ChangeWorker(session->slot, session->id, Change::NOT_STALLED);
  // A native worker whose library cannot resume sessions goes on serving without one.
  session->awaits_resumption =
      session->attached_with.resumes_session() || !arena::IsNative(arena_.shape());
  ends_.Watch(session);
}

void WorkerSessions::CloseUnresumed() {
  bool later = false;
  for (const SessionPtr& session : std::vector<SessionPtr>(places_.slots())) {
    if (!session || !session->awaits_resumption) continue;
    const uint64_t beat = arena::LoadRelaxed(arena_.worker(session->slot).heartbeat);
    if (beat - session->beat_at_restore < kBeatsToResume) {
      later = true;
      continue;
    }
    ends_.OnClosed(session,
                   absl::UnavailableError(absl::StrCat(
                       "it has not resumed its session with the keeper that followed within ",
                       kResumptionTimeout.count(), " s")));
  }
  if (later) After(resumption_timer_, kResumptionTimeout, [this] { CloseUnresumed(); });
}

// ---------------------------------------------------------------- what operators ask for

void WorkerSessions::OnThreadEnded(uint64_t worker_id) {
  if (const SessionPtr session = places_.Find(worker_id)) ends_.OnThreadEnded(session);
}

uint64_t WorkerSessions::IdOf(uint32_t slot) const {
  return places_.slots()[slot] ? places_.slots()[slot]->id : 0;
}

void WorkerSessions::ReadProgram(uint64_t worker_id, WorkerPrograms& programs,
                                 ProgramDone done) const {
  const absl::StatusOr<SessionPtr> found = places_.FindAttached(worker_id);
  if (!found.ok()) return done(found.status());
  const PeerCredentials& peer = (*found)->peer;
  programs.Read(
      peer.pid, peer.uid, peer.gid,
      [session = *found, done = std::move(done)](absl::StatusOr<internal::Program> program) {
        if (program.ok() && session->IsProcessDead()) {
          program = absl::FailedPreconditionError(
              absl::StrCat("process ", session->peer.pid, " of worker ", session->id,
                           " ended while its program was read, which may be another's: try again"));
        }
        done(std::move(program));
      });
}

absl::Status WorkerSessions::KillForOperator(uint64_t worker_id) {
  if (const SessionPtr session = places_.Find(worker_id)) {
    parts_.driver.ChangeWorker(session->slot, worker_id, Change::PARDON_DEATH);
  }
  return Kill(worker_id, "asked for by an operator");
}

absl::Status WorkerSessions::KillOverdue(uint64_t worker_id) {
  return Kill(worker_id, absl::StrCat("it was asked to end ", stop_timeout().count(), " ms ago"));
}

absl::Status WorkerSessions::SetControlStream(uint64_t worker_id, bool open,
                                              const void* announcer) {
  const absl::StatusOr<SessionPtr> session = places_.FindAttached(worker_id);
  // The ends of a worker and of its stream may be reported in either order.
  if (!session.ok()) return open ? session.status() : absl::OkStatus();
  if (open) {
    (*session)->control_stream = announcer;
  } else if ((*session)->control_stream == announcer) {
    (*session)->control_stream = nullptr;
  }
  return absl::OkStatus();
}

void WorkerSessions::ForgetControlStreams(const void* announcer) {
  for (const SessionPtr& session : places_.slots()) {
    if (session && session->control_stream == announcer) session->control_stream = nullptr;
  }
}

absl::StatusOr<uint32_t> WorkerSessions::Successor(uint64_t worker_id, uint32_t shard) {
  if (worker_id != 0) {
    BATON_ASSIGN_OR_RETURN(const SessionPtr session, places_.FindAttached(worker_id));
    if (session->state != v1::WORKER_STATE_READY) {
      return absl::FailedPreconditionError(absl::StrCat("worker ", worker_id, " is not ready"));
    }
    return session->slot;
  }
  SessionPtr newest;
  const internal::ShardsSeen seen = parts_.driver.LookAtShards();
  const uint64_t owner = seen.shards(static_cast<int>(shard)).owner_worker_id();
  for (const uint32_t slot : seen.ready_slots()) {
    const SessionPtr& session = places_.slots()[slot];
    if (!session || session->id == owner) continue;
    if (!newest || session->id > newest->id) newest = session;
  }
  if (!newest) {
    return absl::FailedPreconditionError(
        "no other worker is ready to take over: start one and wait until it is ready");
  }
  return newest->slot;
}

std::vector<WorkerInfo> WorkerSessions::List() const {
  std::vector<WorkerInfo> workers;
  for (const SessionPtr& session : places_.slots()) {
    if (session) workers.push_back(session->Info(arena_));
  }
  return workers;
}

void WorkerSessions::MakeFirst(uint64_t worker_id) {
  if (const SessionPtr session = places_.Find(worker_id)) {
    parts_.driver.ChangeWorker(session->slot, worker_id, Change::STANDS_FIRST);
  }
}

void WorkerSessions::AskToStop(uint64_t worker_id) {
  const SessionPtr session = places_.Find(worker_id);
  if (!session) return;
  parts_.events.Add("worker_asked_to_stop", absl::StrCat("worker ", worker_id, " is asked to end"),
                    worker_id);
  if (session->attached_with.layout_version() < kStopRequestLayoutVersion) {
    (void)ends_.Signal(*session, SIGTERM);
    return;
  }
  parts_.driver.ChangeWorker(session->slot, worker_id, Change::ASK_TO_STOP);
}

bool WorkerSessions::Retire(pid_t pid) {
  std::vector<SessionPtr> sessions;
  for (const SessionPtr& session : places_.slots()) {
    if (session && session->peer.pid == pid) sessions.push_back(session);
  }
  DriverClient::Workers places;
  for (const SessionPtr& session : sessions) places.push_back(session->Place());
  if (!parts_.driver.Retire(places)) return false;
  for (const SessionPtr& session : sessions) {
    if (std::exchange(session->retired, true)) continue;
    places_.Hold(*session);
    AskToStop(session->id);
  }
  return true;
}

std::vector<v1::Worker> WorkerSessions::Describe() const {
  std::vector<v1::Worker> workers;
  for (const SessionPtr& session : places_.slots()) {
    if (session) workers.push_back(session->Describe(arena_));
  }
  return workers;
}

}  // namespace baton::keeper
