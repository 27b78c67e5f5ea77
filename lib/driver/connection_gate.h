// The interface that admits or refuses connections.
#ifndef LIB_DRIVER_CONNECTION_GATE_H_
#define LIB_DRIVER_CONNECTION_GATE_H_

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

// Called on the thread that uses the connection manager. Errors are for operators. A peer refused
// with kUnavailable learns that it may try again later.
class ConnectionGate {
 public:
  virtual ~ConnectionGate() = default;
  // Returns OK to accept a peer's request beside the `connections` existing ones.
  virtual absl::Status CheckRequest(uint32_t connections, const verbs::ConnectionId& id) = 0;
  // Returns OK to let a connection that this service starts use the route.
  virtual absl::Status CheckRoute(const verbs::Route& route) const = 0;
};

// Asks `gate` about a request, and rejects the request if it is refused. nullptr accepts all.
absl::Status AdmitRequest(ConnectionGate* gate, uint32_t connections, verbs::CmEvent* event);
// Rejects the request of `event`. `words` are what the peer is told.
void Refuse(verbs::CmEvent* event, std::string_view words);
// Returns a ConnectionParameters::check_route. The caller keeps the gate alive longer than the
// connection.
std::function<absl::Status(const verbs::Route&)> RouteCheckOf(const ConnectionGate* gate);

}  // namespace baton::driver

#endif  // LIB_DRIVER_CONNECTION_GATE_H_
