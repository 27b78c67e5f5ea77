#include "supervisor/keeper/upgrades/handoffs.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/channel/waits.h"

namespace baton::keeper {
namespace {

class PendingMoves : public std::enable_shared_from_this<PendingMoves> {
 public:
  PendingMoves(boost::asio::io_context& loop, DriverClient& driver,
               std::function<void(const HandoffsResult&)> done)
      : driver_(driver), done_(std::move(done)), deadline_(loop) {}

  void Start(const std::vector<ShardMove>& moves, uint32_t timeout_ms) {
    for (const ShardMove& move : moves) {
      const uint32_t shard = move.shard;
      moving_[shard] = driver_.HandOver(
          shard, move.slot,
          [self = shared_from_this(), shard](const absl::Status& status, double blackout_us) {
            self->OnShardDone(shard, status, blackout_us);
          });
    }
    After(deadline_, std::chrono::milliseconds(timeout_ms),
          [self = shared_from_this(), timeout_ms] { self->Cancel(timeout_ms); });
  }

 private:
  void Cancel(uint32_t timeout_ms) {
    for (const auto& [shard, move] : moving_) {
      driver_.CancelHandOver(
          move, shard,
          absl::StrCat("shard ", shard, " did not move within ", timeout_ms,
                       " ms: its owner does not release it or its successor does not commit"));
    }
  }

  void OnShardDone(uint32_t shard, const absl::Status& status, double blackout_us) {
    moving_.erase(shard);
    if (status.ok()) {
      ++result_.moved;
    } else if (result_.status.ok()) {
      result_.status = status;
    }
    result_.slowest_us = std::max(result_.slowest_us, blackout_us);
    if (!moving_.empty()) return;
    deadline_.cancel();
    done_(result_);
  }

  DriverClient& driver_;
  std::function<void(const HandoffsResult&)> done_;
  HandoffsResult result_;
  std::map<uint32_t, uint64_t> moving_;  // the driver's numbers of the moves, by shard
  boost::asio::steady_timer deadline_;
};

}  // namespace

void MoveShards(boost::asio::io_context& loop, DriverClient& driver,
                const std::vector<ShardMove>& moves, uint32_t timeout_ms,
                std::function<void(const HandoffsResult&)> done) {
  if (moves.empty()) return boost::asio::post(loop, [done = std::move(done)] { done({}); });
  std::make_shared<PendingMoves>(loop, driver, std::move(done))->Start(moves, timeout_ms);
}

}  // namespace baton::keeper
