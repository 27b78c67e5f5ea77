// Judges how a new program does with the shards that it was given.
#ifndef SUPERVISOR_KEEPER_UPGRADES_TRIAL_H_
#define SUPERVISOR_KEEPER_UPGRADES_TRIAL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/service_driver.h"
#include "supervisor/keeper/sessions/worker_sessions.h"

namespace baton::keeper {

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
  Trial(ServiceDriver& driver, v1::HealthGates gates);

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

  ServiceDriver& driver_;
  const v1::HealthGates gates_;
  std::map<uint32_t, uint64_t> acknowledged_;  // completions, by shard, when the window began
  std::chrono::steady_clock::time_point went_back_since_;  // none: no shard has
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_UPGRADES_TRIAL_H_
