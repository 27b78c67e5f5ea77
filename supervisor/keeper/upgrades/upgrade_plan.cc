#include "supervisor/keeper/upgrades/upgrade_plan.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"

namespace baton::keeper {
namespace {

absl::Status CheckPair(const WorkerInfo& old, const WorkerInfo& fresh, bool to_take_back) {
  if (old.state_versions.declared() && !fresh.state_versions.Reads(old.state_versions.writes)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the new program reads state versions ", fresh.state_versions.reads_min,
                     " to ", fresh.state_versions.reads_max, ", the old one writes version ",
                     old.state_versions.writes, ": upgrade to one in between first"));
  }
  if (!to_take_back || !fresh.state_versions.declared() ||
      old.state_versions.Reads(fresh.state_versions.writes)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the new program writes state version ", fresh.state_versions.writes, ", the old one reads ",
      old.state_versions.reads_min, " to ", old.state_versions.reads_max,
      ", so it could not take the shards back: choose a program that writes what the old one "
      "reads, or give up the automatic return with --no-rollback"));
}

}  // namespace

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

absl::Status CheckStateVersions(ServiceDriver& driver, const std::vector<WorkerInfo>& old_workers,
                                const std::vector<WorkerInfo>& fresh_workers, bool to_take_back) {
  for (const WorkerInfo& fresh : fresh_workers) {
    BATON_RETURN_IF_ERROR(driver.CheckStoredState(fresh.state_versions));
    for (const WorkerInfo& old : old_workers) {
      BATON_RETURN_IF_ERROR(CheckPair(old, fresh, to_take_back));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::keeper
