// The workers that are attached to a service: their sockets, processes and tokens.
#ifndef SUPERVISOR_KEEPER_SESSIONS_WORKER_SESSIONS_H_
#define SUPERVISOR_KEEPER_SESSIONS_WORKER_SESSIONS_H_

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/driver_client.h"
#include "supervisor/keeper/keeper_parts.h"
#include "supervisor/keeper/programs/program.h"
#include "supervisor/keeper/sessions/hang_watch.h"
#include "supervisor/keeper/sessions/worker_ends.h"
#include "supervisor/keeper/sessions/worker_places.h"
#include "supervisor/keeper/sessions/worker_requests.h"
#include "supervisor/keeper/sessions/worker_session.h"

namespace baton::keeper {

// Thread-compatible: the management loop's thread. A worker's request blocks that thread for a turn
// of the engine, but not while memory is registered or deregistered.
class WorkerSessions {
 public:
  explicit WorkerSessions(const CommonParts& parts);

  // Goes on with the workers that had attached to the former keeper. They go on serving, and resume
  // their sessions soon. A worker that had the time to resume and did not is killed. Takes the
  // descriptors of their entries in `held`.
  void Restore(DriverClient::HeldByKey& held);
  // Kills the workers whose held entries keepers died of. Takes the descriptors of their entries.
  // Call it after Restore, before workers can attach.
  void EndSetAside(DriverClient::HeldByKey& set_aside);

  // There is at most one observer. It outlives this object.
  void SetObserver(WorkerObserver* observer) { places_.SetObserver(observer); }

  // See WorkerRequests.
  void SetOnTakeOver(WorkerRequests::OnTakeOver on_take_over) {
    requests_.SetOnTakeOver(std::move(on_take_over));
  }

  // Takes a client of the service's socket.
  void Accept(FileDescriptor socket) { requests_.Accept(std::move(socket)); }

  // Reserves a place for a process that is to be forked, until AcceptChild() or, if none is forked,
  // FreePlace().
  absl::StatusOr<internal::WorkerPlace> Reserve() { return places_.Reserve(); }
  void FreePlace(const internal::WorkerPlace& place) { places_.Free(place); }
  // Takes the keeper's end of a socket pair with a process that the driver has forked. The process
  // may attach with any identity, and becomes the worker of `place`. The keeper watches it from now
  // on, and can kill it. The reservation, which a former keeper may have made, ends if the process
  // ends before it attaches.
  void AcceptChild(FileDescriptor socket, const PeerCredentials& peer, FileDescriptor pidfd,
                   const internal::WorkerPlace& place) {
    requests_.AcceptChild(std::move(socket), peer, std::move(pidfd), place);
  }

  // Returns the worker that `token` was made for. Each token is good once.
  absl::StatusOr<uint64_t> RedeemToken(const std::string& token) {
    return places_.tokens().Redeem(token);
  }

  // Reads the program of an attached worker. `done` is called once, now or from the loop. Fails if
  // the process died while /proc was read, because another process may have had its number by then.
  void ReadProgram(uint64_t worker_id, WorkerPrograms& programs, ProgramDone done) const;

  absl::Status Kill(uint64_t worker_id, std::string_view cause) {
    return ends_.Kill(worker_id, cause);
  }
  // Like Kill, but blames no completion for the worker's death.
  absl::Status KillForOperator(uint64_t worker_id);
  // Kills a worker that was asked to end stop_timeout() ago.
  absl::Status KillOverdue(uint64_t worker_id);
  std::chrono::milliseconds stop_timeout() const {
    return std::chrono::milliseconds(parts_.config.service().stop_timeout_ms());
  }
  // Records that a worker's stream to control was opened or closed. `announcer` is the connection
  // of control that reported it; ForgetControlStreams ends all of its streams. kNotFound: the
  // stream was opened, and the worker is not attached.
  absl::Status SetControlStream(uint64_t worker_id, bool open, const void* announcer);
  void ForgetControlStreams(const void* announcer);

  std::vector<WorkerInfo> List() const;
  bool IsAttached(uint64_t worker_id) const { return places_.Find(worker_id) != nullptr; }
  void MakeFirst(uint64_t worker_id);
  // Asks the worker to end: through the arena or, if its library does not look there, with SIGTERM.
  void AskToStop(uint64_t worker_id);
  // Asks the workers of process `pid` to end and gives them no shard any more. Returns false, and
  // does nothing, if one of them owns a shard or is about to. May be repeated.
  bool Retire(pid_t pid);
  uint32_t free_slots() const { return places_.CountFree(); }
  // Ends the process of a worker that has lost a thread with a lock held.
  void OnThreadEnded(uint64_t worker_id);
  // Returns the slot of `worker_id`, which must be ready; with 0, that of the newest ready worker
  // that does not own `shard`. kNotFound: it is not attached. kFailedPrecondition: none is ready.
  absl::StatusOr<uint32_t> Successor(uint64_t worker_id, uint32_t shard);
  uint64_t IdOf(uint32_t slot) const;

  // Describes all workers without their `shards`, which the engine knows.
  std::vector<v1::Worker> Describe() const;

 private:
  void GoOn(const SessionPtr& session);
  void CloseUnresumed();

  const arena::Arena& arena_;
  WorkerPlaces places_;
  const SessionParts parts_;
  WorkerEnds ends_;
  HangWatch hang_watch_;
  WorkerRequests requests_;
  boost::asio::steady_timer resumption_timer_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_SESSIONS_WORKER_SESSIONS_H_
