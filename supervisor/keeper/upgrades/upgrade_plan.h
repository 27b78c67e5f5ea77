// Validates and completes an operator's plan of an upgrade, and judges how the new program does.
#ifndef SUPERVISOR_KEEPER_UPGRADES_UPGRADE_PLAN_H_
#define SUPERVISOR_KEEPER_UPGRADES_UPGRADE_PLAN_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/driver_client.h"
#include "supervisor/keeper/sessions/worker_session.h"
#include "supervisor/keeper/sessions/worker_sessions.h"

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
absl::Status CheckStateVersions(DriverClient& driver, const std::vector<WorkerInfo>& old_workers,
                                const std::vector<WorkerInfo>& fresh_workers, bool to_take_back);

// Judges how a new program does with the shards that it was given.
//
// A window lasts from a move of shards to the new workers until the next move; the last one ends
// with the trial. Problems are texts for operators; an empty text is none. Thread-compatible: the
// management loop's thread.
class Trial {
 public:
  struct Verdict {
    std::string problem;
    bool open = false;  // a shard went back, and the reason is reported in a moment
  };

  // `driver` outlives it.
  Trial(DriverClient& driver, v1::HealthGates gates);

  // Called when the new workers have `shards`, too. Completions count anew.
  void BeginWindow(const std::vector<uint32_t>& shards);
  // Goes on with the window of a former keeper.
  void ContinueWindow(const std::map<uint32_t, uint64_t>& acknowledged) {
    acknowledged_ = acknowledged;
  }
  const std::map<uint32_t, uint64_t>& acknowledged() const { return acknowledged_; }
  bool HasShard(uint32_t shard) const { return acknowledged_.count(shard) != 0; }
  size_t shard_count() const { return acknowledged_.size(); }

  // Judges the new workers that live. The caller leaves dead workers out of `new_workers`, and
  // reports them itself.
  Verdict Look(const std::vector<WorkerInfo>& new_workers);

  // The gates. `slowest_us`: the longest time that a shard was not served.
  std::string ProblemOfBlackout(double slowest_us) const;
  std::string ProblemOfWindow() const;

 private:
  std::string ShardThatWentBack(const std::vector<WorkerInfo>& new_workers) const;
  uint64_t CompletionsDealtWith() const;

  DriverClient& driver_;
  const v1::HealthGates gates_;
  std::map<uint32_t, uint64_t> acknowledged_;  // completions, by shard, when the window began
  std::chrono::steady_clock::time_point went_back_since_;  // none: no shard has
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_UPGRADES_UPGRADE_PLAN_H_
