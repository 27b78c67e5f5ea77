// Whether two programs of a service can have each other's state.
#ifndef SUPERVISOR_KEEPER_SESSIONS_STATE_VERSION_CHECK_H_
#define SUPERVISOR_KEEPER_SESSIONS_STATE_VERSION_CHECK_H_

#include <vector>

#include "absl/status/status.h"
#include "supervisor/keeper/service_driver.h"
#include "supervisor/keeper/sessions/worker_sessions.h"

namespace baton::keeper {

// Checks that the fresh workers read the stored state and what the old workers write. With
// `to_take_back`, checks that the old workers read what the fresh ones write, too.
// kFailedPrecondition names the versions that do not fit, and the cure. On the management loop's
// thread.
absl::Status CheckStateVersions(ServiceDriver& driver, const std::vector<WorkerInfo>& old_workers,
                                const std::vector<WorkerInfo>& fresh_workers, bool to_take_back);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_SESSIONS_STATE_VERSION_CHECK_H_
