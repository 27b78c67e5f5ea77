// Where a service's arena is: the memories that its keeper, batond or any other process has open,
// found by their names in /proc and opened for reading. Nobody is asked and nobody notices.
//
// Whoever may read a process's descriptors may do this: root, or the user that it runs as.
#ifndef SUPERVISOR_INSPECT_SOURCE_H_
#define SUPERVISOR_INSPECT_SOURCE_H_

#include <string>

#include "absl/status/statusor.h"
#include "supervisor/inspect/memory.h"

namespace baton::inspect {

enum class Keeper : uint8_t {
  kLast,    // of today; when there is none, the last that there was
  kFormer,  // the one before, as far as batond has kept what it left
};

// Of the batond whose state directory this is: from its service's keeper, or from what batond keeps
// for the next one. Where batond is dead, from whoever still has it. kNotFound: nobody has it;
// kPermissionDenied; kFailedPrecondition: several processes have different ones.
absl::StatusOr<ArenaFiles> FindArena(const std::string& state_dir, const std::string& service,
                                     Keeper keeper = Keeper::kLast);

// `service` empty: of the only service that this process has an arena of.
absl::StatusOr<ArenaFiles> ArenaOfProcess(int pid, const std::string& service);

}  // namespace baton::inspect

#endif  // SUPERVISOR_INSPECT_SOURCE_H_
