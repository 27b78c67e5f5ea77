// Whether a program can read the state that a service's arena has.
#ifndef SUPERVISOR_DRIVER_STORED_STATE_H_
#define SUPERVISOR_DRIVER_STORED_STATE_H_

#include "absl/status/status.h"
#include "supervisor/driver/engine/candidate.h"
#include "supervisor/driver/engine/service_engine.h"

namespace baton::driver_process {

// State of connections that were quiet for long can be older than what the present owner writes.
// kFailedPrecondition names the state that `reader` does not read, and the cure. Blocks for turns
// of the engine.
absl::Status CheckStoredState(ServiceEngine& engine, const StateVersions& reader);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_STORED_STATE_H_
