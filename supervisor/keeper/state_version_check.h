// Whether two programs of a service can have each other's state.
#ifndef SUPERVISOR_KEEPER_STATE_VERSION_CHECK_H_
#define SUPERVISOR_KEEPER_STATE_VERSION_CHECK_H_

#include <vector>

#include "absl/status/status.h"
#include "supervisor/keeper/service_engine.h"
#include "supervisor/keeper/worker_sessions.h"

namespace baton::keeper {

// What the fresh workers will find they have to be able to read; and what they write the old ones,
// when these are `to_take_back` the shards. kFailedPrecondition says what does not fit, and the way
// out. On the management loop's thread.
absl::Status CheckStateVersions(ServiceEngine& engine, const std::vector<WorkerInfo>& old_workers,
                                const std::vector<WorkerInfo>& fresh_workers, bool to_take_back);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_STATE_VERSION_CHECK_H_
