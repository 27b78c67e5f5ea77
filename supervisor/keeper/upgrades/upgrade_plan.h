// Validates and completes an operator's plan of an upgrade.
#ifndef SUPERVISOR_KEEPER_UPGRADES_UPGRADE_PLAN_H_
#define SUPERVISOR_KEEPER_UPGRADES_UPGRADE_PLAN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton::keeper {

// Validates `plan` for a service with `shards` shards. kInvalidArgument names the field. Opens no
// file.
absl::Status CheckUpgradePlan(const v1::UpgradePlan& plan, uint32_t shards);

// Returns `plan` with the times that it leaves out taken from `service`; milliseconds.
v1::UpgradePlan WithTimesOf(const v1::ServiceConfig& service, v1::UpgradePlan plan);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_UPGRADES_UPGRADE_PLAN_H_
