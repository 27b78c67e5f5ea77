// Carries a driver's reports from the engine's thread to the one that delivers them to the keeper,
// and records the last changes of owner of its shards.
#ifndef SUPERVISOR_DRIVER_ENGINE_NEWS_QUEUE_H_
#define SUPERVISOR_DRIVER_ENGINE_NEWS_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/latency_histogram.h"
#include "proto/baton/internal/driver.pb.h"
#include "proto/baton/v1/types.pb.h"
#include "supervisor/driver/engine/engine_listener.h"

namespace baton::driver_process {

// Records the last changes of owner of a service's shards. Thread-compatible: NewsQueue's lock
// protects it.
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

// Thread-safe.
class NewsQueue final : public EngineListener {
 public:
  // Further events are dropped, and counted: a flood of peers causes them faster than they can be
  // delivered. The number of other news is bounded by the keeper's orders and its workers.
  static constexpr size_t kMaxEvents = 4096;

  // Calls `wake` whenever the queue stops being empty, and at once if it is not empty now. The call
  // comes on any thread, with a lock held.
  void SetWake(std::function<void()> wake);
  void Push(internal::DriverNews news);
  std::vector<internal::DriverNews> Take();
  std::vector<v1::ShardMove> ListShardMoves(int shard) const;
  ShardMoves::Blackouts blackouts() const;
  absl::Status device_lost() const;  // why; OK: it is not

  void OnEvent(std::string_view kind, const std::string& message, uint64_t worker_id, int shard,
               int connection) override;
  void OnReport(uint32_t shard, const ReconciliationReport& report) override;
  void OnServed(uint32_t shard, uint64_t ended_epoch, uint64_t worker_id,
                uint64_t blackout_ns) override;
  void OnFenced(uint64_t worker_id) override;
  void OnThreadEnded(uint32_t slot, uint64_t worker_id) override;
  void OnDeviceLost(const absl::Status& why) override;

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::function<void()> wake_ = [] {};
  std::vector<internal::DriverNews> news_;
  size_t events_ = 0;   // in news_
  size_t dropped_ = 0;  // events, since the last Take
  ShardMoves moves_;
  absl::Status device_lost_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_NEWS_QUEUE_H_
