// Carries a driver's reports from the engine's thread to the one that delivers them to the keeper.
#ifndef SUPERVISOR_DRIVER_ENGINE_NEWS_QUEUE_H_
#define SUPERVISOR_DRIVER_ENGINE_NEWS_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/baton/internal/driver.pb.h"
#include "supervisor/driver/engine/engine_listener.h"
#include "supervisor/driver/engine/shard_moves.h"

namespace baton::driver_process {

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
  // Called, on any thread, when a thread of the worker ended with a lock of the worker held.
  void OnThreadEnded(uint32_t slot, uint64_t worker_id);
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
