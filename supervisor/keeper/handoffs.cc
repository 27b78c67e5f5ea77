#include "supervisor/keeper/handoffs.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::keeper {
namespace {

class PendingMoves : public std::enable_shared_from_this<PendingMoves> {
 public:
  PendingMoves(boost::asio::io_context& loop, ServiceEngine& engine, size_t count,
               std::function<void(const HandoffsResult&)> done)
      : loop_(loop), engine_(engine), left_(count), done_(std::move(done)), deadline_(loop) {}

  void Start(const std::vector<ShardMove>& moves, uint32_t timeout_ms) {
    engine_.Post([self = shared_from_this(), moves] { self->StartOnEngine(moves); });
    deadline_.expires_after(std::chrono::milliseconds(timeout_ms));
    deadline_.async_wait(
        [self = shared_from_this(), timeout_ms](const boost::system::error_code& error) {
          if (error) return;
          self->engine_.Post([self, timeout_ms] { self->CancelOnEngine(timeout_ms); });
        });
  }

 private:
  void StartOnEngine(const std::vector<ShardMove>& moves) {
    for (const ShardMove& move : moves) moving_.insert(move.shard);
    for (const ShardMove& move : moves) {
      engine_.Handoff(move.shard, move.slot,
                      [self = shared_from_this(), shard = move.shard](const absl::Status& status,
                                                                      double blackout_us) {
                        self->moving_.erase(shard);
                        boost::asio::post(self->loop_, [self, status, blackout_us] {
                          self->OnShardDone(status, blackout_us);
                        });
                      });
    }
  }

  // Not what has moved or was refused: it may be in another handoff by now.
  void CancelOnEngine(uint32_t timeout_ms) {
    for (const uint32_t shard : std::set<uint32_t>(moving_)) {
      engine_.CancelHandoff(
          shard, absl::DeadlineExceededError(absl::StrCat(
                     "shard ", shard, " did not move within ", timeout_ms,
                     " ms: its owner does not release it or its successor does not commit")));
    }
  }

  void OnShardDone(const absl::Status& status, double blackout_us) {
    if (status.ok()) {
      ++result_.moved;
    } else if (result_.status.ok()) {
      result_.status = status;
    }
    result_.slowest_us = std::max(result_.slowest_us, blackout_us);
    if (--left_ > 0) return;
    deadline_.cancel();
    done_(result_);
  }

  boost::asio::io_context& loop_;
  ServiceEngine& engine_;
  size_t left_;
  std::function<void(const HandoffsResult&)> done_;
  HandoffsResult result_;
  std::set<uint32_t> moving_;  // the engine's thread
  boost::asio::steady_timer deadline_;
};

}  // namespace

void MoveShards(boost::asio::io_context& loop, ServiceEngine& engine,
                const std::vector<ShardMove>& moves, uint32_t timeout_ms,
                std::function<void(const HandoffsResult&)> done) {
  if (moves.empty()) return boost::asio::post(loop, [done = std::move(done)] { done({}); });
  std::make_shared<PendingMoves>(loop, engine, moves.size(), std::move(done))
      ->Start(moves, timeout_ms);
}

}  // namespace baton::keeper
