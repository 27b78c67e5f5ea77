// Finds a service's arena: the memories that its driver or any other process has open. Finds them
// by their names in /proc, and opens them for reading. No process is asked, and none notices.
//
// The caller needs the right to read the process's descriptors: it is root, or the user that the
// process runs as.
#ifndef SUPERVISOR_INSPECT_SOURCE_H_
#define SUPERVISOR_INSPECT_SOURCE_H_

#include <string>

#include "absl/status/statusor.h"
#include "supervisor/inspect/memory.h"

namespace baton::inspect {

// Finds the arena of a service of the batond that uses `state_dir`: in the service's driver, which
// has its lock there. If the driver and batond are dead, finds it in any process that still has it.
// kNotFound: no process has it. kPermissionDenied: the caller may not read the processes.
// kFailedPrecondition: several processes have different arenas.
absl::StatusOr<ArenaFiles> FindArena(const std::string& state_dir, const std::string& service);

// Opens the arena of `service` that process `pid` has. `service` may be empty if the process has
// arenas of one service only.
absl::StatusOr<ArenaFiles> ArenaOfProcess(int pid, const std::string& service);

}  // namespace baton::inspect

#endif  // SUPERVISOR_INSPECT_SOURCE_H_
