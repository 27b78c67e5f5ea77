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

// It has not begun to end.
inline bool IsLive(const arena::ConnectionRecord& record) {
  const arena::ConnectionState state = StateOf(record);
  return state == arena::ConnectionState::kRequested ||
         state == arena::ConnectionState::kConnecting ||
         state == arena::ConnectionState::kEstablished;
}

// Its end is in the log: nobody is told of it any more.
inline bool IsOver(const arena::ConnectionRecord& record) {
  const arena::ConnectionState state = StateOf(record);
  return state == arena::ConnectionState::kClosed || state == arena::ConnectionState::kFree;
}

// Requests behind `posted` that may have been posted all the same.
inline uint32_t MaybePosted(const arena::ConnectionRecord& record, bool receive) {
  const uint64_t posted = receive ? record.receive.posted : record.send.posted;
  const uint32_t attempted = receive ? record.receive_attempted : record.send_attempted;
  const auto ahead = static_cast<int32_t>(attempted - static_cast<uint32_t>(posted));
  return ahead > 0 ? static_cast<uint32_t>(ahead) : 0;
}

// Everything that was written to the record before is visible with it.
inline void SetState(arena::ConnectionRecord& record, arena::ConnectionState state) {
  arena::StoreRelease(record.state, static_cast<uint32_t>(state));
}

}  // namespace baton::driver

#endif  // LIB_DRIVER_CONNECTION_STATE_H_
