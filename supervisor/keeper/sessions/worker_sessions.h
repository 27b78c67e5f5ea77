// The workers that are attached to a service: their sockets, processes and tokens.
#ifndef SUPERVISOR_KEEPER_SESSIONS_WORKER_SESSIONS_H_
#define SUPERVISOR_KEEPER_SESSIONS_WORKER_SESSIONS_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/channel/framed_socket.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/driver_client.h"
#include "supervisor/keeper/event_log.h"
#include "supervisor/keeper/policy/policies.h"
#include "supervisor/keeper/programs/program.h"
#include "supervisor/keeper/sessions/attach_check.h"
#include "supervisor/keeper/sessions/hang_watch.h"
#include "supervisor/keeper/sessions/worker_session.h"

namespace baton::keeper {

// Notified of workers as they come and go, on the management loop's thread.
class WorkerObserver {
 public:
  virtual ~WorkerObserver() = default;
  // Returns the worker's standing as a successor.
  virtual Standing OnAttached(uint64_t worker_id, pid_t pid) = 0;
  virtual void OnReady(uint64_t worker_id) = 0;
  // Called when the worker's process is dead, or the worker has detached. Also called for a child
  // that ends before it attaches. `kill_cause`: why the keeper killed it; empty if it did not.
  virtual void OnGone(uint64_t worker_id, const std::string& kill_cause) = 0;
};

// Thread-compatible: the management loop's thread. A worker's request blocks that thread for a turn
// of the engine, but not while memory is registered or deregistered.
class WorkerSessions {
 public:
  // All references outlive it.
  WorkerSessions(boost::asio::io_context& loop, const internal::KeeperConfig& config,
                 DriverClient& driver, Policies& policies, EventLog& events);

  // Goes on with the workers that had attached to the former keeper. They go on serving, and resume
  // their sessions soon. A worker that had the time to resume and did not is killed. Takes the
  // descriptors of their entries in `held`.
  void Restore(DriverClient::HeldByKey& held);

  // There is at most one observer. It outlives this object.
  void SetObserver(WorkerObserver* observer) { observer_ = observer; }

  // Takes a client of the service's socket.
  void Accept(FileDescriptor socket);

  // Reserves a place for a process that is to be forked, until AcceptChild() or, if none is forked,
  // FreePlace().
  absl::StatusOr<internal::WorkerPlace> Reserve();
  void FreePlace(const internal::WorkerPlace& place);
  // Takes the keeper's end of a socket pair with a process that the driver has forked. The process
  // may attach with any identity, and becomes the worker of `place`. The keeper watches it from now
  // on, and can kill it. The reservation, which a former keeper may have made, ends if the process
  // ends before it attaches.
  void AcceptChild(FileDescriptor socket, const PeerCredentials& peer, FileDescriptor pidfd,
                   const internal::WorkerPlace& place);

  // Returns the worker that `token` was made for. Each token is good once.
  absl::StatusOr<uint64_t> RedeemToken(const std::string& token) { return tokens_.Redeem(token); }

  // Reads the program of an attached worker. `done` is called once, now or from the loop. Fails if
  // the process died while /proc was read, because another process may have had its number by then.
  void ReadProgram(uint64_t worker_id, WorkerPrograms& programs, ProgramDone done) const;

  absl::Status Kill(uint64_t worker_id, std::string_view cause);
  // Like Kill, but blames no completion for the worker's death.
  absl::Status KillForOperator(uint64_t worker_id);
  // Kills a worker that was asked to end stop_timeout() ago.
  absl::Status KillOverdue(uint64_t worker_id);
  std::chrono::milliseconds stop_timeout() const {
    return std::chrono::milliseconds(config_.service().stop_timeout_ms());
  }
  // Records that a worker's stream to control was opened or closed. `announcer` is the connection
  // of control that reported it; ForgetControlStreams ends all of its streams. kNotFound: the
  // stream was opened, and the worker is not attached.
  absl::Status SetControlStream(uint64_t worker_id, bool open, const void* announcer);
  void ForgetControlStreams(const void* announcer);

  // Returns all attached workers.
  std::vector<WorkerInfo> List() const;
  bool IsAttached(uint64_t worker_id) const { return Find(worker_id) != nullptr; }
  // Gives the worker the first standing.
  void MakeFirst(uint64_t worker_id);
  // Asks the worker to end: through the arena or, if its library does not look there, with SIGTERM.
  void AskToStop(uint64_t worker_id);
  // Asks the workers of process `pid` to end and gives them no shard any more. Returns false, and
  // does nothing, if one of them owns a shard or is about to. May be repeated.
  bool Retire(pid_t pid);
  uint32_t free_slots() const;
  // Ends the process of a worker that has lost a thread with a lock held.
  void OnThreadEnded(uint64_t worker_id);
  // Returns the slot of `worker_id`, which must be ready; with 0, that of the newest ready worker
  // that does not own `shard`. kNotFound: it is not attached. kFailedPrecondition: none is ready.
  absl::StatusOr<uint32_t> Successor(uint64_t worker_id, uint32_t shard);
  uint64_t IdOf(uint32_t slot) const;

  // Describes all workers without their `shards`, which the engine knows.
  std::vector<v1::Worker> Describe() const;

 private:
  using SessionPtr = std::shared_ptr<WorkerSession>;

  std::shared_ptr<FramedSocket> Start(const SessionPtr& session, FileDescriptor socket);
  void WatchProcess(const SessionPtr& session);
  // Returns true if the worker is attached, or a slot is reserved for it.
  bool HasPlace(const WorkerSession& session) const;
  void LeavePlace(const SessionPtr& session);
  absl::StatusOr<bool> OnFrame(const SessionPtr& session);
  void OnClosed(const SessionPtr& session, const absl::Status& why);
  absl::Status Listen(const DriverClient::Asker& asker, const internal::ListenRequest& request,
                      internal::Listening* listening);
  absl::Status Connect(const DriverClient::Asker& asker, const internal::ConnectRequest& request,
                       internal::Connecting* connecting);
  // Both answer when the memory is registered or deregistered. The session's other requests wait
  // until then.
  void Grant(const SessionPtr& session, const std::shared_ptr<FramedSocket>& socket,
             const internal::WorkerRequest& request);
  void Revoke(const SessionPtr& session, const std::shared_ptr<FramedSocket>& socket,
              const internal::WorkerRequest& request);
  void Answer(const SessionPtr& session, const std::shared_ptr<FramedSocket>& socket,
              const absl::Status& status, internal::WorkerReply reply);
  void NoteKill(WorkerSession& session, std::string_view cause);
  absl::Status Signal(WorkerSession& session, int signal);
  void OnThreadEnded(const SessionPtr& session);
  void FindLockHolder(const SessionPtr& session);
  void FollowLockHolder(const SessionPtr& session, LockHolder holder);
  void LeaveDead(const SessionPtr& session);
  void OnProcessGone(const SessionPtr& session);
  // Ends a session whose process is not known, and kills nobody.
  void Drop(const SessionPtr& session, std::string_view why);
  void Leave(const SessionPtr& session, const std::string& kind, const std::string& message);
  internal::WorkerReply Handle(const SessionPtr& session, const internal::WorkerRequest& request,
                               std::vector<int>* descriptors, FileDescriptor* keep);
  SessionPtr FindUnanswered(const WorkerSession& session,
                            const internal::AttachArena& attach) const;
  absl::Status Attach(const SessionPtr& session, const internal::AttachArena& attach,
                      internal::Attached* attached, std::vector<int>* descriptors,
                      FileDescriptor* keep);
  // Continues a former keeper's session with the worker that `session` is connected to.
  absl::Status ResumeSession(const SessionPtr& session, const internal::ResumeSession& request);
  void RestoreOne(const internal::HeldWorker& worker, FileDescriptor pidfd);
  void CloseUnresumed();
  void CloseUnresumedLater();
  // Holds what the next keeper needs to go on with the session.
  void Hold(WorkerSession& session);
  absl::Status SetReady(const SessionPtr& session);
  absl::Status Detach(const SessionPtr& session);
  uint64_t NewId();
  bool IsFree(uint32_t slot) const { return !slots_[slot] && reserved_[slot] == 0; }
  absl::StatusOr<uint32_t> FreeSlot() const;
  SessionPtr Find(uint64_t worker_id) const;
  // kNotFound: it is not attached.
  absl::StatusOr<SessionPtr> FindAttached(uint64_t worker_id) const;

  boost::asio::io_context& loop_;
  const internal::KeeperConfig& config_;
  const arena::Arena& arena_;
  DriverClient& driver_;
  EventLog& events_;
  LockHolders lock_holders_;
  boost::asio::steady_timer resumption_timer_;
  std::vector<SessionPtr> slots_;                       // by slot; null: none is attached
  std::vector<uint64_t> reserved_;                      // worker id by slot; 0: it is not reserved
  std::deque<std::weak_ptr<WorkerSession>> strangers_;  // not attached yet, oldest first
  WorkerTokens tokens_;
  uint64_t last_id_ = 0;
  WorkerObserver* observer_ = nullptr;
  HangWatch hang_watch_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_SESSIONS_WORKER_SESSIONS_H_
