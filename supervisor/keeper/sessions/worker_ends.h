// How workers end: with their process, with a thread or a socket of it, by a kill, or by their own
// wish.
#ifndef SUPERVISOR_KEEPER_SESSIONS_WORKER_ENDS_H_
#define SUPERVISOR_KEEPER_SESSIONS_WORKER_ENDS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "supervisor/keeper/sessions/hang_watch.h"
#include "supervisor/keeper/sessions/worker_places.h"
#include "supervisor/keeper/sessions/worker_session.h"

namespace baton::keeper {

// A worker leaves its place when its process is proven dead, when it has detached or, if its
// process is not known, at once. Thread-compatible: the management loop's thread.
class WorkerEnds {
 public:
  explicit WorkerEnds(const SessionParts& parts)
      : parts_(parts), lock_holders_(parts.loop, parts.config.launcher(), parts.driver.arena()) {}

  // Watches the session's process until its end.
  void Watch(const SessionPtr& session);

  // kFailedPrecondition: the worker was fenced. kUnavailable: it has to ask again.
  absl::Status Detach(const SessionPtr& session);
  // Ends the session of a worker that the driver has refused, after the answer. Frees its place.
  void Refuse(const SessionPtr& session, std::string_view why);
  // Ends the process of a worker that has lost its socket for this reason.
  void OnClosed(const SessionPtr& session, const absl::Status& why);
  // Ends the process of a worker that has lost a thread with a lock held.
  void OnThreadEnded(const SessionPtr& session);
  absl::Status Kill(uint64_t worker_id, std::string_view cause);
  absl::Status Signal(WorkerSession& session, int signal);

 private:
  void NoteKill(WorkerSession& session, std::string_view cause);
  void OnProcessGone(const SessionPtr& session);
  void FindLockHolder(const SessionPtr& session);
  void FollowLockHolder(const SessionPtr& session, LockHolder holder);
  void LeaveDead(const SessionPtr& session);
  // Ends a session whose process is not known, and kills nobody.
  void Drop(const SessionPtr& session, std::string_view why);
  void Leave(const SessionPtr& session, const std::string& kind, const std::string& message);

  const SessionParts parts_;
  LockHolders lock_holders_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_SESSIONS_WORKER_ENDS_H_
