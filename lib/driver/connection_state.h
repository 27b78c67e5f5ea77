// The state of a connection in its record.
#ifndef LIB_DRIVER_CONNECTION_STATE_H_
#define LIB_DRIVER_CONNECTION_STATE_H_

#include "lib/arena/atomic_access.h"
#include "lib/arena/layout.h"

namespace baton::driver {

inline arena::ConnectionState StateOf(const arena::ConnectionRecord& record) {
  return arena::ConnectionState(record.state);
}

// It has not begun to end.
inline bool IsLive(const arena::ConnectionRecord& record) {
  const arena::ConnectionState state = StateOf(record);
  return state == arena::ConnectionState::kRequested ||
         state == arena::ConnectionState::kConnecting ||
         state == arena::ConnectionState::kEstablished;
}

// Everything that was written to the record before is visible with it.
inline void SetState(arena::ConnectionRecord& record, arena::ConnectionState state) {
  arena::StoreRelease(record.state, static_cast<uint32_t>(state));
}

}  // namespace baton::driver

#endif  // LIB_DRIVER_CONNECTION_STATE_H_
