#ifndef SUPERVISOR_CONTROL_LAYOUT_VERSION_H_
#define SUPERVISOR_CONTROL_LAYOUT_VERSION_H_

#include <cstdint>

namespace baton {

// Of the arena, as told to callers.
inline constexpr uint32_t kControlLayoutVersion = 1;

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_LAYOUT_VERSION_H_
