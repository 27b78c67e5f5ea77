// The answers of --dry-run. They check everything that the request would, as far as that is visible
// from outside the keeper, and fail as the request would.
#ifndef SUPERVISOR_CLI_PLAN_H_
#define SUPERVISOR_CLI_PLAN_H_

#include <string>

#include "absl/status/statusor.h"
#include "supervisor/cli/invocation.h"

namespace baton {

// Each returns what would happen, in words, and fills in what the keeper would choose.
absl::StatusOr<std::string> PlanStop(Invocation* invocation, const v1::StopWorkerRequest& request);
absl::StatusOr<std::string> PlanKill(Invocation* invocation, const v1::KillWorkerRequest& request);
absl::StatusOr<std::string> PlanHandoff(Invocation* invocation, v1::HandoffRequest* request);
absl::StatusOr<std::string> PlanUpgrade(Invocation* invocation, v1::UpgradeRequest* request);
absl::StatusOr<std::string> PlanPause(Invocation* invocation, const std::string& service,
                                      bool pause);
absl::StatusOr<std::string> PlanRollback(Invocation* invocation,
                                         const v1::RollbackRequest& request);

}  // namespace baton

#endif  // SUPERVISOR_CLI_PLAN_H_
