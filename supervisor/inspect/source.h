// Where a service's arena is: the memories that its driver, batond or any other process has open,
// found by their names in /proc and opened for reading. Nobody is asked and nobody notices.
//
// It takes the right to read the process's descriptors: root, or the user that it runs as.
#ifndef SUPERVISOR_INSPECT_SOURCE_H_
#define SUPERVISOR_INSPECT_SOURCE_H_

#include <string>

#include "absl/status/statusor.h"
#include "supervisor/inspect/memory.h"

namespace baton::inspect {

// Whose arena: a driver's.
enum class Keeper : uint8_t {
  kLast,    // of today; when there is none, the last that there was
  kFormer,  // the one before, as far as batond has kept what it left
};

// Finds the arena of a service of the batond that uses `state_dir`: in the service's driver, or
// among the descriptors that batond holds for the next driver. If batond is dead, finds it in any
// process that still has it. kNotFound: no process has it. kPermissionDenied: the caller may not
// read the processes. kFailedPrecondition: several processes have different arenas.
absl::StatusOr<ArenaFiles> FindArena(const std::string& state_dir, const std::string& service,
                                     Keeper keeper = Keeper::kLast);

// Opens the arena of `service` that process `pid` has. `service` may be empty if the process has
// arenas of one service only.
absl::StatusOr<ArenaFiles> ArenaOfProcess(int pid, const std::string& service);

}  // namespace baton::inspect

#endif  // SUPERVISOR_INSPECT_SOURCE_H_
