#include "supervisor/keeper/upgrades/upgrade_plan.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

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

using std::chrono::steady_clock;

// The longest expected time between the move of a dying owner's shards and the proof of its death,
// which takes longest for a process with much memory.
constexpr std::chrono::milliseconds kDeathTime(500);

std::string ProblemOf(const std::vector<WorkerInfo>& workers) {
  for (const WorkerInfo& worker : workers) {
    if (!worker.healthy) return absl::StrCat("worker ", worker.id, " says that it is unhealthy");
    // A hang is a problem whatever the policy's on_hang says, because the worker is on trial.
    if (worker.hangs) return absl::StrCat("worker ", worker.id, " shows no sign of life");
  }
  return "";
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

absl::Status CheckStateVersions(DriverClient& driver, const std::vector<WorkerInfo>& old_workers,
                                const std::vector<WorkerInfo>& fresh_workers, bool to_take_back) {
  for (const WorkerInfo& fresh : fresh_workers) {
    BATON_RETURN_IF_ERROR(driver.CheckStoredState(fresh.state_versions));
    for (const WorkerInfo& old : old_workers) {
      BATON_RETURN_IF_ERROR(CheckPair(old, fresh, to_take_back));
    }
  }
  return absl::OkStatus();
}

Trial::Trial(DriverClient& driver, v1::HealthGates gates)
    : driver_(driver), gates_(std::move(gates)) {}

void Trial::BeginWindow(const std::vector<uint32_t>& shards) {
  for (const uint32_t shard : shards) acknowledged_[shard] = 0;
  const internal::ShardsSeen seen = driver_.LookAtShards();
  for (auto& [shard, acknowledged] : acknowledged_) {
    acknowledged = seen.shards(static_cast<int>(shard)).acknowledged();
  }
}

Trial::Verdict Trial::Look(const std::vector<WorkerInfo>& new_workers) {
  std::string problem = ProblemOf(new_workers);
  if (!problem.empty()) return {std::move(problem)};
  const steady_clock::time_point now = steady_clock::now();
  std::string went_back = ShardThatWentBack(new_workers);
  if (went_back.empty()) {
    went_back_since_ = {};
    return {};
  }
  // An heir serves the shard since its owner began to die. The death, which is the reason, is
  // reported later.
  if (went_back_since_ == steady_clock::time_point()) went_back_since_ = now;
  if (now >= went_back_since_ + kDeathTime) return {std::move(went_back)};
  return {.problem = "", .open = true};
}

std::string Trial::ShardThatWentBack(const std::vector<WorkerInfo>& new_workers) const {
  std::string found;
  const internal::ShardsSeen seen = driver_.LookAtShards();
  for (const auto& [shard, acknowledged] : acknowledged_) {
    const uint64_t owner = seen.shards(static_cast<int>(shard)).owner_worker_id();
    if (owner == 0 || FindWorker(new_workers, owner) != nullptr) continue;
    found = absl::StrCat("shard ", shard, " went back to worker ", owner);
  }
  return found;
}

std::string Trial::ProblemOfBlackout(double slowest_us) const {
  const double max_blackout_us = gates_.max_blackout_us();
  if (max_blackout_us <= 0 || slowest_us <= max_blackout_us) return "";
  return absl::StrCat("gate: a shard was not served for ", static_cast<int64_t>(slowest_us),
                      " us, more than ", static_cast<int64_t>(max_blackout_us));
}

std::string Trial::ProblemOfWindow() const {
  const uint64_t least = gates_.min_completions();
  const uint64_t count = least == 0 ? 0 : CompletionsDealtWith();
  if (count >= least) return "";
  return absl::StrCat("gate: the new program has dealt with ", count,
                      " completions in its window, fewer than ", least);
}

uint64_t Trial::CompletionsDealtWith() const {
  uint64_t count = 0;
  const internal::ShardsSeen seen = driver_.LookAtShards();
  for (const auto& [shard, before] : acknowledged_) {
    count += seen.shards(static_cast<int>(shard)).acknowledged() - before;
  }
  return count;
}

}  // namespace baton::keeper
