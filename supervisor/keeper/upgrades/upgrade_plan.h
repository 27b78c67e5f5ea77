// Validates and completes an operator's plan of an upgrade, and compares the programs.
#ifndef SUPERVISOR_KEEPER_UPGRADES_UPGRADE_PLAN_H_
#define SUPERVISOR_KEEPER_UPGRADES_UPGRADE_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/service_driver.h"
#include "supervisor/keeper/sessions/worker_session.h"

namespace baton::keeper {

// Validates `plan` for a service with `shards` shards. kInvalidArgument names the field. Opens no
// file.
absl::Status CheckUpgradePlan(const v1::UpgradePlan& plan, uint32_t shards);

// Returns `plan` with the times that it leaves out taken from `service`; milliseconds.
v1::UpgradePlan WithTimesOf(const v1::ServiceConfig& service, v1::UpgradePlan plan);

// Checks that the fresh workers read the stored state and what the old workers write. With
// `to_take_back`, checks that the old workers read what the fresh ones write, too.
// kFailedPrecondition names the versions that do not fit, and the cure. On the management loop's
// thread.
absl::Status CheckStateVersions(ServiceDriver& driver, const std::vector<WorkerInfo>& old_workers,
                                const std::vector<WorkerInfo>& fresh_workers, bool to_take_back);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_UPGRADES_UPGRADE_PLAN_H_
