#include "supervisor/keeper/upgrades/upgrade_plan.h"

#include <set>

#include "absl/strings/str_cat.h"

namespace baton::keeper {

absl::Status CheckUpgradePlan(const v1::UpgradePlan& plan, uint32_t shards) {
  const std::set<uint32_t> canary(plan.canary_shards().begin(), plan.canary_shards().end());
  if (canary.empty() && (plan.canary_window_ms() != 0 || plan.pause_after_canary())) {
    return absl::InvalidArgumentError(
        absl::StrCat(plan.pause_after_canary() ? "pause_after_canary" : "canary_window_ms",
                     ": there are no canary_shards"));
  }
  if (!canary.empty() && *canary.rbegin() >= shards) {
    return absl::InvalidArgumentError(absl::StrCat("canary_shards: there is no shard ",
                                                   *canary.rbegin(), ", the service has ", shards));
  }
  if (canary.size() == shards) {
    return absl::InvalidArgumentError(absl::StrCat(
        "canary_shards: all ", shards, " shards of the service: leave some to the old program"));
  }
  const v1::HealthGates& gates = plan.gates();
  if (!(gates.max_blackout_us() >= 0)) {
    return absl::InvalidArgumentError("gates.max_blackout_us: give microseconds, or 0 for any");
  }
  const bool gated = gates.max_blackout_us() > 0 || gates.min_completions() > 0;
  if (plan.no_rollback() && (gated || !canary.empty())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no_rollback: the old program ends at once, so that ", gated ? "gates" : "canary_shards",
        " could not lead back to it: leave one of them out"));
  }
  return absl::OkStatus();
}

v1::UpgradePlan WithTimesOf(const v1::ServiceConfig& service, v1::UpgradePlan plan) {
  if (plan.ready_timeout_ms() == 0) plan.set_ready_timeout_ms(service.ready_timeout_ms());
  if (plan.watch_window_ms() == 0) plan.set_watch_window_ms(service.watch_window_ms());
  if (plan.canary_window_ms() == 0) plan.set_canary_window_ms(plan.watch_window_ms());
  return plan;
}

}  // namespace baton::keeper
