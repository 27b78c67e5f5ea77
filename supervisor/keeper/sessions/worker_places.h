// The places of a service's workers: whose each slot is, and what the next keeper has to know of
// it.
#ifndef SUPERVISOR_KEEPER_SESSIONS_WORKER_PLACES_H_
#define SUPERVISOR_KEEPER_SESSIONS_WORKER_PLACES_H_

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/driver_client.h"
#include "supervisor/keeper/keeper_parts.h"
#include "supervisor/keeper/sessions/attach_check.h"
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
  // that ends before it attaches. `kill_cause`: why the keeper killed it; empty if it did not, or
  // if the process was ending then.
  virtual void OnGone(uint64_t worker_id, const std::string& kill_cause) = 0;
};

using SessionPtr = std::shared_ptr<WorkerSession>;

// A worker has a place while it is attached. A process that is to become a worker may have a
// reserved one. Thread-compatible: the management loop's thread.
class WorkerPlaces {
 public:
  // `driver` outlives it.
  explicit WorkerPlaces(DriverClient& driver)
      : driver_(driver),
        slots_(driver.arena().shape().workers),
        reserved_(driver.arena().shape().workers, 0) {}

  // There is at most one observer. It outlives this object.
  void SetObserver(WorkerObserver* observer) { observer_ = observer; }
  WorkerObserver* observer() const { return observer_; }  // null: there is none

  // By slot; null: none is attached.
  const std::vector<SessionPtr>& slots() const { return slots_; }
  SessionPtr Find(uint64_t worker_id) const;  // null: it is not attached
  // kNotFound: it is not attached.
  absl::StatusOr<SessionPtr> FindAttached(uint64_t worker_id) const;

  absl::StatusOr<uint32_t> FreeSlot() const;  // kResourceExhausted: there is none
  uint32_t CountFree() const;
  uint64_t NewId();
  absl::StatusOr<internal::WorkerPlace> Reserve();
  // Reserves the place that this keeper, or a former one, has reserved.
  void Reserve(const internal::WorkerPlace& place);
  void Free(const internal::WorkerPlace& place);

  // Returns true if the worker is attached, or a slot is reserved for it.
  bool Has(const WorkerSession& session) const;
  // Gives the session the place that it names, whose session or reservation it follows.
  void Put(const SessionPtr& session);
  // The session's process is watched no more, and its tokens are not good any more.
  void Leave(const SessionPtr& session);

  // Holds what the next keeper needs to go on with the session.
  void Hold(WorkerSession& session);
  using Each = std::function<void(const SessionPtr&)>;
  // Puts the sessions of the former keeper in their places, and calls `go_on` with each. Takes the
  // descriptors of their entries in `held`.
  void Restore(boost::asio::io_context& loop, DriverClient::HeldByKey& held, const Each& go_on);
  // Puts sessions whose entries keepers died of in their places, with nothing but what their end
  // needs, and calls `end` with each. If keepers die of that as well, the slot is never used again.
  void PutSetAside(boost::asio::io_context& loop, DriverClient::HeldByKey& set_aside,
                   const Each& end);

  WorkerTokens& tokens() { return tokens_; }

 private:
  bool IsFree(uint32_t slot) const { return !slots_[slot] && reserved_[slot] == 0; }

  DriverClient& driver_;
  std::vector<SessionPtr> slots_;
  std::vector<uint64_t> reserved_;  // worker id by slot; 0: it is not reserved
  WorkerTokens tokens_;
  uint64_t last_id_ = 0;
  WorkerObserver* observer_ = nullptr;
};

// The parts of WorkerSessions share these. Everything here outlives each holder of this.
struct SessionParts : CommonParts {
  WorkerPlaces& places;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_SESSIONS_WORKER_PLACES_H_
