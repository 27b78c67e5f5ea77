// What an operator asks of an upgrade, made sense of.
#ifndef SUPERVISOR_KEEPER_UPGRADE_PLAN_H_
#define SUPERVISOR_KEEPER_UPGRADE_PLAN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton::keeper {

// Of a service with so many shards. kInvalidArgument names the field. No file is looked at.
absl::Status CheckUpgradePlan(const v1::UpgradePlan& plan, uint32_t shards);

// With the service's times, in milliseconds, where the plan leaves them out.
v1::UpgradePlan WithTimesOf(const v1::ServiceConfig& service, v1::UpgradePlan plan);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_UPGRADE_PLAN_H_
