// Gives batond the logs of a brokered service's arena, for supervisor/inspect to read after the
// driver has died. The next driver does not use them, because the connections have ended.
#ifndef SUPERVISOR_DRIVER_HELD_LOGS_H_
#define SUPERVISOR_DRIVER_HELD_LOGS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "lib/arena/arena.h"
#include "supervisor/driver/held_descriptors.h"

namespace baton::driver_process {

// Larger logs of a dead driver are given back when the next one begins.
inline constexpr uint64_t kMaxFormerLogBytes = 64u << 20;

// Before this driver makes its arena: what a former one has left stays until this one has died,
// too, or is given back.
absl::Status KeepFormerLogs(HeldDescriptors* held);

// All but the buffers, which are large and are not the truth.
absl::Status HoldLogs(HeldDescriptors* held, const arena::Arena& arena);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_HELD_LOGS_H_
