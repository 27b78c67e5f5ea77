// The workers that are attached to a service: their sockets, processes and tokens.
#ifndef SUPERVISOR_KEEPER_WORKER_SESSIONS_H_
#define SUPERVISOR_KEEPER_WORKER_SESSIONS_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/loop/framed_session.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/death_watcher.h"
#include "supervisor/keeper/event_log.h"
#include "supervisor/keeper/lock_holder.h"
#include "supervisor/keeper/policies.h"
#include "supervisor/keeper/program.h"
#include "supervisor/keeper/service_engine.h"
#include "supervisor/keeper/worker_requests.h"
#include "supervisor/keeper/worker_session.h"
#include "supervisor/keeper/worker_tokens.h"

namespace baton::keeper {

// The place of a worker whose process does not exist yet.
struct Reservation {
  uint32_t slot = 0;
  uint64_t worker_id = 0;
};

// Told of workers as they come and go; on the management loop's thread.
class WorkerObserver {
 public:
  virtual ~WorkerObserver() = default;
  // Returns its standing as a successor.
  virtual Standing OnAttached(uint64_t worker_id, pid_t pid) = 0;
  virtual void OnReady(uint64_t worker_id) = 0;
  // Its process is dead, or it has detached; of a child also before it attached. `kill_cause`: why
  // we killed it; empty: we did not.
  virtual void OnGone(uint64_t worker_id, const std::string& kill_cause) = 0;
};

// Thread-compatible: the management loop's thread.
class WorkerSessions {
 public:
  // All references outlive it.
  WorkerSessions(boost::asio::io_context& loop, const internal::KeeperConfig& config,
                 const arena::Arena& arena, ServiceEngine& engine, Policies& policies,
                 EventLog& events);

  // At most one, which outlives it.
  void SetObserver(WorkerObserver* observer) { observer_ = observer; }

  // A client of the service's socket.
  void Accept(FileDescriptor socket);

  // For a process that is to be forked. Kept until AcceptChild, or Release when there is none.
  absl::StatusOr<Reservation> Reserve();
  void Release(const Reservation& reservation);
  // Our end of a socket pair with a child of this process, which may attach whoever it is, and is
  // the reserved worker then. It is watched and killed as a worker is from now on; if it ends
  // before it attaches, so does the reservation. Who forked it reaps it.
  void AcceptChild(FileDescriptor socket, const PeerCredentials& peer, FileDescriptor pidfd,
                   const Reservation& reservation);

  // The worker that `token` was made for; each token is good once.
  absl::StatusOr<uint64_t> RedeemToken(const std::string& token) { return tokens_.Redeem(token); }

  // The program of an attached worker; `done` is called once, now or from the loop. The number of
  // its process leads to it in /proc, so it is an error when the process is dead once it was read:
  // the number may have been another's by then.
  void ReadProgram(uint64_t worker_id, WorkerPrograms& programs, ProgramDone done) const;

  absl::Status Kill(uint64_t worker_id, std::string_view cause);
  // The same, and what it was dealing with is not to blame for it.
  absl::Status KillForOperator(uint64_t worker_id);
  // What `announcer`, a connection of control's, tells of a worker's stream; kNotFound when one was
  // opened by a worker that is not attached. All streams that an announcer told of end with it.
  absl::Status SetControlStream(uint64_t worker_id, bool open, const void* announcer);
  void ForgetControlStreams(const void* announcer);

  // All that are attached.
  std::vector<WorkerInfo> List() const;
  bool IsAttached(uint64_t worker_id) const { return Find(worker_id) != nullptr; }
  void SetStanding(uint64_t worker_id, Standing standing);
  // Asks it to end: in the arena or, when it does not look there, with SIGTERM.
  void AskToStop(uint64_t worker_id);
  // Asks the workers of this process to end, and they are given no shard any more. False: one of
  // them owns a shard, or is about to, and nothing was done. May be repeated.
  bool Retire(pid_t pid);
  uint32_t free_slots() const;
  // Ends the processes of workers whose locks are marked. For a keeper of native services, which
  // has no thread that is woken for it.
  void LookAtLocks();

  // Slot of a ready worker: that one, or with 0 the newest that does not own `shard`.
  absl::StatusOr<uint32_t> Successor(uint64_t worker_id, uint32_t shard);
  uint64_t IdOf(uint32_t slot) const;

  // Without `shards`, which the engine knows.
  std::vector<v1::Worker> Describe() const;

 private:
  using SessionPtr = std::shared_ptr<WorkerSession>;

  std::shared_ptr<FramedSession> Start(const SessionPtr& session, FileDescriptor socket);
  void WatchProcess(const SessionPtr& session);
  // Its slot is its own: it is attached, or that is reserved for it.
  bool HasPlace(const WorkerSession& session) const;
  void LeavePlace(const SessionPtr& session);
  absl::StatusOr<bool> OnFrame(const SessionPtr& session);
  void OnClosed(const SessionPtr& session, const absl::Status& why);
  // Answered when the memory is registered, or is not any more; so long no other request of the
  // session is handled.
  void Grant(const SessionPtr& session, const std::shared_ptr<FramedSession>& socket,
             const internal::GrantRequest& request);
  void Revoke(const SessionPtr& session, const std::shared_ptr<FramedSession>& socket,
              uint32_t grant);
  void Answer(const SessionPtr& session, const std::shared_ptr<FramedSession>& socket,
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
  absl::Status Attach(const SessionPtr& session, const internal::AttachArena& attach,
                      internal::Attached* attached, std::vector<int>* descriptors,
                      FileDescriptor* keep);
  absl::Status SetReady(const SessionPtr& session);
  absl::Status Detach(const SessionPtr& session);
  bool IsFree(uint32_t slot) const { return !slots_[slot] && reserved_[slot] == 0; }
  absl::StatusOr<uint32_t> FreeSlot() const;
  SessionPtr Find(uint64_t worker_id) const;
  void WatchHeartbeats();
  void LookAtHeartbeat(const SessionPtr& session);
  void OnHang(WorkerSession& session);
  void AddEvent(const std::string& kind, const std::string& message, uint64_t worker_id);

  boost::asio::io_context& loop_;
  const internal::KeeperConfig& config_;
  const arena::Arena& arena_;
  ServiceEngine& engine_;
  Policies& policies_;
  EventLog& events_;
  WorkerRequests requests_;
  const uint32_t heartbeat_ms_;
  const uint32_t hang_looks_;              // looks in vain after which a worker counts as hung
  std::unique_ptr<DeathWatcher> watcher_;  // null: a keeper that forks is to have one thread
  LockHolders lock_holders_;
  boost::asio::steady_timer heartbeat_timer_;
  std::vector<SessionPtr> slots_;                       // that are attached
  std::vector<uint64_t> reserved_;                      // worker id by slot; 0: it is not reserved
  std::deque<std::weak_ptr<WorkerSession>> strangers_;  // not attached yet, oldest first
  WorkerTokens tokens_;
  uint64_t last_id_ = 0;
  WorkerObserver* observer_ = nullptr;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_WORKER_SESSIONS_H_
