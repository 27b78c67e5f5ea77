// What workers ask of their keeper beside attaching: listeners, connections and grants.
#ifndef SUPERVISOR_KEEPER_WORKER_REQUESTS_H_
#define SUPERVISOR_KEEPER_WORKER_REQUESTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/policies.h"
#include "supervisor/keeper/service_engine.h"

namespace baton::keeper {

// Of workers that are attached. Thread-compatible: the management loop's thread, on which each
// waits for a turn of the engine.
class WorkerRequests {
 public:
  // All references outlive it.
  WorkerRequests(const internal::KeeperConfig& config, const arena::Arena& arena,
                 ServiceEngine& engine, Policies& policies)
      : config_(config), arena_(arena), engine_(engine), policies_(policies) {}

  absl::Status Listen(uint64_t worker_id, const internal::ListenRequest& request,
                      internal::Listening* listening);
  absl::Status Connect(uint64_t worker_id, const internal::ConnectRequest& request,
                       internal::Connecting* connecting);
  absl::Status Grant(uint64_t worker_id, const internal::GrantRequest& request,
                     internal::Granted* granted);
  absl::Status Revoke(uint32_t grant);

 private:
  absl::Status CheckListen(uint64_t worker_id, const verbs::Address& address) const;
  absl::Status NameOwnerNowAndThen(const absl::Status& refused);
  uint32_t ConnectionsOf(uint64_t worker_id) const;

  const internal::KeeperConfig& config_;
  const arena::Arena& arena_;
  ServiceEngine& engine_;
  Policies& policies_;
  uint64_t next_owner_search_ns_ = 0;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_WORKER_REQUESTS_H_
