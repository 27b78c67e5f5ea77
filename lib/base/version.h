#ifndef LIB_BASE_VERSION_H_
#define LIB_BASE_VERSION_H_

#include <cstdint>

namespace baton {

inline constexpr char kRelease[] = "0.1.0";

// The version of the requests and replies on a service's socket
// (proto/baton/internal/keeper.proto).
inline constexpr uint32_t kProtocolVersion = 1;

}  // namespace baton

#endif  // LIB_BASE_VERSION_H_
