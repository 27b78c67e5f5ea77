#include "supervisor/keeper/upgrades/trial.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::keeper {
namespace {

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

Trial::Trial(ServiceDriver& driver, v1::HealthGates gates)
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
