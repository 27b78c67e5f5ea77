// The state of a connection in its record.
#ifndef LIB_DRIVER_CONNECTION_STATE_H_
#define LIB_DRIVER_CONNECTION_STATE_H_

#include <cstdint>

#include "lib/arena/atomic_access.h"
#include "lib/arena/layout.h"

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

// Returns the number of ambiguous requests: those behind `posted` that may have been posted.
inline uint32_t MaybePosted(const arena::ConnectionRecord& record, bool receive) {
  const uint64_t posted = receive ? record.receive.posted : record.send.posted;
  const uint32_t attempted = receive ? record.receive_attempted : record.send_attempted;
  const auto ahead = static_cast<int32_t>(attempted - static_cast<uint32_t>(posted));
  return ahead > 0 ? static_cast<uint32_t>(ahead) : 0;
}

// Publishes the state with everything that was written to the record before.
inline void SetState(arena::ConnectionRecord& record, arena::ConnectionState state) {
  arena::StoreRelease(record.state, static_cast<uint32_t>(state));
}

}  // namespace baton::driver

#endif  // LIB_DRIVER_CONNECTION_STATE_H_
