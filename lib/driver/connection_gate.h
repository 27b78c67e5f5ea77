// Who decides which connections there may be.
#ifndef LIB_DRIVER_CONNECTION_GATE_H_
#define LIB_DRIVER_CONNECTION_GATE_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

// Asked on the thread that speaks to the connection manager. Errors are for operators; of
// kUnavailable a peer is told that there will be connections again.
class ConnectionGate {
 public:
  virtual ~ConnectionGate() = default;
  // May a peer that asks have one, beside `connections` that there are?
  virtual absl::Status CheckRequest(uint32_t connections, const verbs::ConnectionId& id) = 0;
  // May one that we began go this way?
  virtual absl::Status CheckRoute(const verbs::Route& route) const = 0;
};

// Of a gate that may be nullptr, which lets all pass. A request that is refused is rejected.
absl::Status AdmitRequest(ConnectionGate* gate, uint32_t connections, verbs::CmEvent* event);
// For ConnectionParameters; the gate outlives the connection.
std::function<absl::Status(const verbs::Route&)> RouteCheckOf(const ConnectionGate* gate);

}  // namespace baton::driver

#endif  // LIB_DRIVER_CONNECTION_GATE_H_
