// Records the last changes of owner of a service's shards.
#ifndef SUPERVISOR_DRIVER_ENGINE_SHARD_MOVES_H_
#define SUPERVISOR_DRIVER_ENGINE_SHARD_MOVES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "lib/base/latency_histogram.h"
#include "proto/baton/v1/types.pb.h"

namespace baton::driver_process {

// Thread-compatible: NewsQueue's lock protects it.
class ShardMoves {
 public:
  static constexpr size_t kHistory = 256;
  static constexpr size_t kWorkRequests = 16;  // of each report

  // Called when an ownership has ended, and again when more is known of what it left.
  void OnReport(uint32_t shard, v1::ReconciliationReport report);
  // Called when the owner after that of `ended_epoch` has committed for the first time. The report
  // of `ended_epoch` may come later.
  void OnServed(uint32_t shard, uint64_t ended_epoch, uint64_t worker_id, uint64_t blackout_ns);

  // Returns the moves of `shard` (-1: of all shards), the newest first. A move without successor
  // and blackout: nobody has served the shard since.
  std::vector<v1::ShardMove> List(int shard) const;

  // How long shards had no owner that committed, by the cause of the former owner's end.
  using Blackouts = std::map<std::string, LatencyHistogram>;
  const Blackouts& blackouts() const { return blackouts_; }

 private:
  bool IsKnown(uint32_t shard, uint64_t ended_epoch) const;
  v1::ShardMove& Find(uint32_t shard, uint64_t ended_epoch);
  void RecordBlackout(const v1::ShardMove& move);

  std::deque<v1::ShardMove> moves_;  // the oldest first
  Blackouts blackouts_ = {{"handoff", {}}, {"crash", {}}, {"hang", {}}};
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_SHARD_MOVES_H_
