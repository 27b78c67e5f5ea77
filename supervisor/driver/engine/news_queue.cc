#include "supervisor/driver/engine/news_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/channel/carried_status.h"
#include "supervisor/driver/engine/describe.h"

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

namespace {

internal::DriverNews NewsOfEvent(std::string_view kind, const std::string& message,
                                 uint64_t worker_id, int shard, int connection) {
  internal::DriverNews news;
  internal::EngineEvent* const event = news.mutable_event();
  event->set_kind(std::string(kind));
  event->set_message(message);
  event->set_unix_micros(UnixMicroseconds());
  event->set_worker_id(worker_id);
  event->set_shard(shard);
  event->set_connection(connection);
  return news;
}

}  // namespace

void NewsQueue::SetWake(std::function<void()> wake) {
  const std::lock_guard<std::mutex> lock(mutex_);
  wake_ = std::move(wake);
  if (!news_.empty()) wake_();
}

void NewsQueue::Push(internal::DriverNews news) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (news.has_event()) {
    if (events_ == kMaxEvents) {
      ++dropped_;
      return;
    }
    ++events_;
  }
  news_.push_back(std::move(news));
  if (news_.size() == 1) wake_();
}

std::vector<internal::DriverNews> NewsQueue::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<internal::DriverNews> taken = std::exchange(news_, {});
  events_ = 0;
  if (const size_t dropped = std::exchange(dropped_, 0); dropped > 0) {
    taken.push_back(NewsOfEvent("events_dropped",
                                absl::StrCat(dropped, " events came too fast to be reported"), 0,
                                -1, -1));
  }
  return taken;
}

std::vector<v1::ShardMove> NewsQueue::ListShardMoves(int shard) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return moves_.List(shard);
}

ShardMoves::Blackouts NewsQueue::blackouts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return moves_.blackouts();
}

void NewsQueue::OnEvent(std::string_view kind, const std::string& message, uint64_t worker_id,
                        int shard, int connection) {
  Push(NewsOfEvent(kind, message, worker_id, shard, connection));
}

void NewsQueue::OnReport(uint32_t shard, const ReconciliationReport& report) {
  v1::ReconciliationReport described = DescribeReport(report, ShardMoves::kWorkRequests);
  const std::lock_guard<std::mutex> lock(mutex_);
  moves_.OnReport(shard, std::move(described));
}

void NewsQueue::OnServed(uint32_t shard, uint64_t ended_epoch, uint64_t worker_id,
                         uint64_t blackout_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  moves_.OnServed(shard, ended_epoch, worker_id, blackout_ns);
}

void NewsQueue::OnFenced(uint64_t worker_id) {
  internal::DriverNews news;
  news.mutable_fenced()->set_id(worker_id);
  Push(std::move(news));
}

void NewsQueue::OnThreadEnded(uint32_t slot, uint64_t worker_id) {
  internal::DriverNews news;
  news.mutable_thread_ended()->set_slot(slot);
  news.mutable_thread_ended()->set_id(worker_id);
  Push(std::move(news));
}

absl::Status NewsQueue::device_lost() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return device_lost_;
}

void NewsQueue::OnDeviceLost(const absl::Status& why) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    device_lost_ = why;
  }
  internal::DriverNews news;
  SetStatus(why, news.mutable_device_lost());
  Push(std::move(news));
}

}  // namespace baton::driver_process
