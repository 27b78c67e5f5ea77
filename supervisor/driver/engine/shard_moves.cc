#include "supervisor/driver/engine/shard_moves.h"

#include <algorithm>
#include <utility>

namespace baton::driver_process {

bool ShardMoves::IsKnown(uint32_t shard, uint64_t ended_epoch) const {
  return std::any_of(moves_.begin(), moves_.end(), [&](const v1::ShardMove& move) {
    return move.shard() == shard && move.report().epoch() == ended_epoch;
  });
}

v1::ShardMove& ShardMoves::Find(uint32_t shard, uint64_t ended_epoch) {
  const auto found = std::find_if(moves_.rbegin(), moves_.rend(), [&](const v1::ShardMove& move) {
    return move.shard() == shard && move.report().epoch() == ended_epoch;
  });
  if (found != moves_.rend()) return *found;
  if (moves_.size() == kHistory) moves_.pop_front();
  v1::ShardMove& move = moves_.emplace_back();
  move.set_shard(shard);
  move.mutable_report()->set_epoch(ended_epoch);
  return move;
}

void ShardMoves::OnReport(uint32_t shard, v1::ReconciliationReport report) {
  // Ignores news of a move that is forgotten.
  const auto last =
      std::find_if(moves_.rbegin(), moves_.rend(),
                   [shard](const v1::ShardMove& move) { return move.shard() == shard; });
  const bool forgotten = last != moves_.rend() && report.epoch() < last->report().epoch() &&
                         !IsKnown(shard, report.epoch());
  if (forgotten) return;
  v1::ShardMove& move = Find(shard, report.epoch());
  const uint64_t successor = move.report().successor_worker_id();
  const bool is_first = move.report().cause().empty();
  move.set_planned(report.cause() == "handoff");
  *move.mutable_report() = std::move(report);
  if (successor == 0) return;
  move.mutable_report()->set_successor_worker_id(successor);
  if (is_first) RecordBlackout(move);
}

void ShardMoves::OnServed(uint32_t shard, uint64_t ended_epoch, uint64_t worker_id,
                          uint64_t blackout_ns) {
  v1::ShardMove& move = Find(shard, ended_epoch);
  move.set_blackout_us(static_cast<double>(blackout_ns) / 1000);
  move.mutable_report()->set_successor_worker_id(worker_id);
  if (!move.report().cause().empty()) RecordBlackout(move);
}

void ShardMoves::RecordBlackout(const v1::ShardMove& move) {
  blackouts_[move.report().cause()].Record(static_cast<uint64_t>(move.blackout_us() * 1000));
}

std::vector<v1::ShardMove> ShardMoves::List(int shard) const {
  std::vector<v1::ShardMove> moves;
  std::copy_if(moves_.rbegin(), moves_.rend(), std::back_inserter(moves),
               [shard](const v1::ShardMove& move) {
                 return shard < 0 || move.shard() == static_cast<uint32_t>(shard);
               });
  return moves;
}

}  // namespace baton::driver_process
