#include "supervisor/keeper/sessions/worker_ends.h"

#include <signal.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/base/status.h"
#include "lib/channel/waits.h"

namespace baton::keeper {

using Change = internal::ChangeWorker;

void WorkerEnds::Watch(const SessionPtr& session) {
  AwaitReadable(session->process, [this, session] { OnProcessGone(session); });
}

// The worker has released its shards and writes no more: it is as good as dead.
absl::Status WorkerEnds::Detach(const SessionPtr& session) {
  const absl::Status let_go = parts_.driver.Detach(session->slot, session->id);
  if (absl::IsUnavailable(let_go)) return let_go;  // the worker asks again
  if (!let_go.ok()) {
    (void)Signal(*session, SIGKILL);  // it is not believed
    return let_go;
  }
  session->detached = true;
  parts_.places.Leave(session);
  parts_.events.Add("worker_detached", absl::StrCat("worker ", session->id, " detached"),
                    session->id);
  if (parts_.places.observer()) parts_.places.observer()->OnGone(session->id, session->kill_cause);
  return absl::OkStatus();
}

// No keeper ends the process of a child that has no place, so a child is killed.
void WorkerEnds::Refuse(const SessionPtr& session, std::string_view why) {
  session->detached = true;
  if (arena::IsNative(parts_.driver.arena().shape())) (void)Signal(*session, SIGKILL);
  Leave(session, "worker_dropped",
        absl::StrCat("worker ", session->id, " cannot attach: ", View(why)));
}

// A worker that loses its socket without detaching is ending or broken. It still maps the arena, so
// the keeper kills it.
void WorkerEnds::OnClosed(const SessionPtr& session, const absl::Status& why) {
  if (!parts_.places.Has(*session)) return;
  if (!session->process_certain) return Drop(session, MessageOf(why));
  NoteKill(*session, MessageOf(why));
  // How a process has ended that was ending says more than this.
  if (!session->IsProcessEnding()) session->NoteKillCause(MessageOf(why));
  (void)Signal(*session, SIGKILL);
}

absl::Status WorkerEnds::Kill(uint64_t worker_id, std::string_view cause) {
  BATON_ASSIGN_OR_RETURN(const SessionPtr session, parts_.places.FindAttached(worker_id));
  session->NoteKillCause(cause);
  if (!session->process_certain) {
    Drop(session, cause);
    return absl::OkStatus();
  }
  NoteKill(*session, cause);
  // The signal ends the process with all its workers. Each has a session and gets an event of its
  // own.
  for (const SessionPtr& other : parts_.places.slots()) {
    if (!other || other == session || other->peer.pid != session->peer.pid) continue;
    const std::string same = absl::StrCat("so is worker ", worker_id, ", of the same process");
    NoteKill(*other, same);
    other->NoteKillCause(same);
  }
  return Signal(*session, SIGKILL);
}

void WorkerEnds::NoteKill(WorkerSession& session, std::string_view cause) {
  if (session.state == v1::WORKER_STATE_DYING) return;
  session.state = v1::WORKER_STATE_DYING;
  parts_.events.Add(
      "worker_killed",
      absl::StrCat("worker ", session.id, " (pid ", session.peer.pid, ") is killed: ", View(cause)),
      session.id);
}

absl::Status WorkerEnds::Signal(WorkerSession& session, int signal) {
  absl::Status status = session.Signal(signal);
  if (status.ok()) return status;
  parts_.events.Add("worker_not_killed",
                    absl::StrCat("worker ", session.id, " (pid ", session.peer.pid,
                                 ") could not be signalled: ", status.message()),
                    session.id);
  return status;
}

// The whole process usually ends with the thread, and the signal changes nothing. Otherwise its
// other threads would go on writing to what a successor owns.
void WorkerEnds::OnThreadEnded(const SessionPtr& session) {
  if (std::exchange(session->thread_ended, true)) return;
  if (session->IsProcessDead()) return;
  constexpr std::string_view kCause = "the thread that attached has ended";
  if (!session->process_certain) return Drop(session, kCause);
  if (!session->IsProcessEnding()) session->NoteKillCause(kCause);
  if (!Signal(*session, SIGKILL).ok()) return;
  parts_.events.Add(
      "worker_thread_ended",
      absl::StrCat("worker ", session->id, " (pid ", session->peer.pid,
                   "): the thread that attached has ended, and if its process has not, it is "
                   "killed"),
      session->id);
}

void WorkerEnds::OnProcessGone(const SessionPtr& session) {
  // The worker may have detached in the same turn of the loop, and another may have its slot.
  if (!parts_.places.Has(*session)) return;
  const bool native = arena::IsNative(parts_.driver.arena().shape());
  return native && session->attached ? FindLockHolder(session) : LeaveDead(session);
}

// The worker counts as alive as long as a process that it forked holds its lock.
void WorkerEnds::FindLockHolder(const SessionPtr& session) {
  std::vector<pid_t> workers;
  for (const SessionPtr& other : parts_.places.slots()) {
    if (other) workers.push_back(other->peer.pid);
  }
  lock_holders_.Find(session->slot, session->peer.uid, workers,
                     [this, session](std::optional<LockHolder> holder) {
                       if (!parts_.places.Has(*session)) return;
                       if (!holder) return LeaveDead(session);
                       FollowLockHolder(session, *std::move(holder));
                     });
}

// Kills the holder, whose end counts as the worker's.
void WorkerEnds::FollowLockHolder(const SessionPtr& session, LockHolder holder) {
  session->process.close();
  session->process.assign(holder.pidfd.Release());
  parts_.events.Add("worker_forked",
                    absl::StrCat("worker ", session->id, " (pid ", session->peer.pid,
                                 ") is dead, and process ", holder.pid,
                                 ", which it must have forked, holds its lock: it is killed "
                                 "before anybody follows"),
                    session->id);
  (void)Signal(*session, SIGKILL);
  Watch(session);
}

void WorkerEnds::LeaveDead(const SessionPtr& session) {
  Leave(session, "worker_dead",
        absl::StrCat("worker ", session->id, " (pid ", session->peer.pid, ") is dead",
                     session->attached ? "" : ": it had not attached"));
}

// The worker has never had a shard. Its process may live, but its number may be another's by now.
void WorkerEnds::Drop(const SessionPtr& session, std::string_view why) {
  Leave(session, "worker_dropped",
        absl::StrCat("worker ", session->id, " is given up: ", View(why), "; process ",
                     session->peer.pid,
                     " is not known to be the one that connected, and is not killed"));
}

void WorkerEnds::Leave(const SessionPtr& session, const std::string& kind,
                       const std::string& message) {
  if (session->attached) parts_.driver.ChangeWorker(session->slot, session->id, Change::DEAD);
  parts_.places.Leave(session);
  const auto socket = session->socket.lock();
  if (socket && !session->detached) socket->Close();
  parts_.events.Add(kind, message, session->id);
  if (parts_.places.observer()) parts_.places.observer()->OnGone(session->id, session->kill_cause);
}

}  // namespace baton::keeper
