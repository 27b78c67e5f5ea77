// Decides whether listeners, connections, grants and held descriptors may be added to a service.
// The decision depends on the policy, on what the service and its workers have, and on whether the
// service is drained.
//
// Thread-compatible: the engine's thread.
#ifndef SUPERVISOR_DRIVER_ENGINE_ADMISSION_H_
#define SUPERVISOR_DRIVER_ENGINE_ADMISSION_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/driver/connection_state.h"
#include "lib/verbs/verbs.h"
#include "proto/baton/v1/types.pb.h"
#include "supervisor/config/node.h"

namespace baton::driver_process {

// The listeners and grants that one worker, or the whole service, has asked for.
struct Holdings {
  uint32_t listeners = 0;
  uint32_t grants = 0;
  uint64_t granted_bytes = 0;
};

// Checks return kResourceExhausted if a quota would be exceeded, and kPermissionDenied if the
// policy does not allow the thing at all. Both name the field of the policy. While admission is
// closed, checks of connections return kUnavailable.
class Admission final : public driver::ConnectionGate {
 public:
  // Begins with a policy that allows everything. `registered_bytes`: registered before anything is
  // granted.
  explicit Admission(uint64_t registered_bytes = 0);

  const v1::Policy& policy() const { return policy_; }
  // REQUIRES: `policy` is complete. Existing objects stay.
  void SetPolicy(v1::Policy policy);

  // Refuses each new connection from now on, for this reason, which is not empty.
  void Close(std::string why);
  void Open() { closed_.clear(); }
  uint64_t refused_while_closed() const { return refused_while_closed_; }  // since the last Close

  // `listeners`: the number that the service has. `fixed_address`: the device listens at its one
  // address, whatever the request names.
  absl::Status CheckListen(uint64_t worker_id, const verbs::Address& address, size_t listeners,
                           bool fixed_address) const;
  // `address`: where the service listens since the worker asked for it.
  void NoteListener(uint64_t worker_id, verbs::Address address) {
    listeners_.push_back({worker_id, std::move(address)});
  }
  // Called when the service has stopped listening somewhere. `remaining`: where it still listens.
  void KeepListeners(const std::vector<verbs::Address>& remaining);

  // `of_service`: connections of the service. `of_worker`: connections of the shards that the
  // worker owns. Each connection counts as a queue pair, which it gets at the latest when it is
  // accepted.
  absl::Status CheckConnect(uint32_t port, uint32_t of_service, uint32_t of_worker);

  // A region counts as a grant.
  absl::Status CheckGrant(uint64_t worker_id, uint64_t bytes) const;
  void NoteGrant(uint32_t grant, uint64_t worker_id, uint64_t bytes);
  void NoteRevoked(uint32_t grant);

  // `of_service`, `of_worker`: descriptors that are held.
  absl::Status CheckDescriptor(uint32_t of_service, uint32_t of_worker) const;

  // Called when the worker is gone. Its listeners and grants stay, and count for the service alone.
  void Forget(uint64_t worker_id);

  Holdings OfWorker(uint64_t worker_id) const;
  Holdings OfService() const;  // without `listeners`, which the engine counts

  absl::Status CheckRequest(uint32_t connections, const verbs::ConnectionId& id) override;
  absl::Status CheckRoute(const verbs::Route& route) const override;

 private:
  struct Listener {
    uint64_t worker_id = 0;  // that has asked for it, and is attached
    verbs::Address address;
  };
  struct Grant {
    uint64_t worker_id = 0;  // 0: it is gone
    uint64_t bytes = 0;      // 0: there is none
  };

  absl::Status CheckOpen();
  bool RestrictsRoutes() const;
  absl::Status CheckConnections(uint32_t of_service) const;

  const uint64_t registered_bytes_;
  std::string closed_;  // why; empty: it is not
  uint64_t refused_while_closed_ = 0;
  v1::Policy policy_;
  std::vector<IpAddress> gids_;
  std::vector<Listener> listeners_;
  std::map<uint64_t, Holdings> holdings_;  // by worker, of those that are attached; no `listeners`
  std::vector<Grant> grants_;              // by their slots
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_ADMISSION_H_
