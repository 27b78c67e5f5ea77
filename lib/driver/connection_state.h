// These functions read and write the state of a connection in its record. A ConnectionGate admits
// or refuses connections.
#ifndef LIB_DRIVER_CONNECTION_STATE_H_
#define LIB_DRIVER_CONNECTION_STATE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "lib/arena/atomic_access.h"
#include "lib/arena/layout.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

inline arena::ConnectionState StateOf(const arena::ConnectionRecord& record) {
  return arena::ConnectionState(record.state);
}

// Returns true if the connection exists and has not begun to end.
inline bool IsLive(const arena::ConnectionRecord& record) {
  const arena::ConnectionState state = StateOf(record);
  return state == arena::ConnectionState::kRequested ||
         state == arena::ConnectionState::kConnecting ||
         state == arena::ConnectionState::kEstablished;
}

// Returns true if the connection's end is in the log; no further entries follow.
inline bool IsOver(const arena::ConnectionRecord& record) {
  const arena::ConnectionState state = StateOf(record);
  return state == arena::ConnectionState::kClosed || state == arena::ConnectionState::kFree;
}

// Returns true if drivers died at the connection, which is therefore given up unseen.
inline bool IsCondemned(const arena::ConnectionRecord& record) {
  return arena::LoadRelaxed(record.abandoned) == arena::kCondemned;
}

// Returns the number of ambiguous requests: those behind `posted` that may have been posted.
inline uint32_t MaybePosted(const arena::ConnectionRecord& record, bool receive) {
  const uint64_t posted = receive ? record.receive.posted : record.send.posted;
  const uint32_t attempted = receive ? record.receive_attempted : record.send_attempted;
  const auto ahead = static_cast<int32_t>(attempted - static_cast<uint32_t>(posted));
  return ahead > 0 ? static_cast<uint32_t>(ahead) : 0;
}

inline arena::MarkerCursors& MarkersOf(arena::ConnectionRecord& record, bool receive) {
  return receive ? record.receive_markers : record.send_markers;
}

// Returns the number of markers that were begun and have not completed.
inline uint8_t Outstanding(const arena::MarkerCursors& markers) {
  return static_cast<uint8_t>(markers.begun - markers.completed);
}

// Publishes the state with everything that was written to the record before.
inline void SetState(arena::ConnectionRecord& record, arena::ConnectionState state) {
  arena::StoreRelease(record.state, static_cast<uint32_t>(state));
}

// FillAddresses and FillPrivateData fill the fields of a connection's record that come from the
// connection manager. The holder of the id calls them: `baton-driver`, for the drivers.
void FillAddresses(const verbs::ConnectionId& id, arena::ConnectionRecord* record);

// Stores the peer's private data, cut to the record's size.
void FillPrivateData(std::string_view data, arena::ConnectionRecord* record);

// Returns kResourceExhausted: none of a service's `slots` is free.
absl::Status NoSlotFree(size_t slots);

// Admits or refuses connections. Its methods are called on the thread that uses the connection
// manager. Errors are for operators. A peer refused with kUnavailable learns that it may try again
// later.
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

#endif  // LIB_DRIVER_CONNECTION_STATE_H_
