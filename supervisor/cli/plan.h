// The answers of --dry-run. They look up and check everything that the request would, as far as it
// can be seen from outside, and fail as the request would.
#ifndef SUPERVISOR_CLI_PLAN_H_
#define SUPERVISOR_CLI_PLAN_H_

#include <string>

#include "absl/status/statusor.h"
#include "supervisor/cli/session.h"

namespace baton {

// In words. The requests get what their keeper would choose.
absl::StatusOr<std::string> PlanStop(Session* session, const v1::StopWorkerRequest& request);
absl::StatusOr<std::string> PlanKill(Session* session, const v1::KillWorkerRequest& request);
absl::StatusOr<std::string> PlanHandoff(Session* session, v1::HandoffRequest* request);
absl::StatusOr<std::string> PlanUpgrade(Session* session, v1::UpgradeRequest* request);
absl::StatusOr<std::string> PlanHold(Session* session, const std::string& service, bool pause);
absl::StatusOr<std::string> PlanRollback(Session* session, const v1::RollbackRequest& request);

}  // namespace baton

#endif  // SUPERVISOR_CLI_PLAN_H_
