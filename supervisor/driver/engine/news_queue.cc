#include "supervisor/driver/engine/news_queue.h"

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/channel/carried_status.h"
#include "supervisor/driver/engine/describe.h"

namespace baton::driver_process {
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
