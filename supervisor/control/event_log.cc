#include "supervisor/control/event_log.h"

#include <queue>

namespace baton {

SharedEvent EventFollower::Pop() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (queue_.empty()) return nullptr;
  SharedEvent event = std::move(queue_.front());
  queue_.pop_front();
  return event;
}

bool EventFollower::overflowed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return overflowed_;
}

bool EventFollower::Push(const SharedEvent& event) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (overflowed_) return false;
  if (queue_.size() >= limit_) {
    overflowed_ = true;
    return true;
  }
  queue_.push_back(event);
  return true;
}

bool EventLog::Add(const Key& key, const v1::Event& event) {
  const std::string& service = key.first;
  auto shared = std::make_shared<v1::Event>(event);
  shared->set_service(service);
  std::vector<std::shared_ptr<EventFollower>> to_wake;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Ring& ring = rings_[key];
    if (!ring.known.insert({event.sequence(), event.unix_micros()}).second) return false;
    ring.events.push_back(shared);
    if (ring.events.size() > events_per_service_) {
      const v1::Event& oldest = *ring.events.front();
      ring.known.erase({oldest.sequence(), oldest.unix_micros()});
      ring.events.pop_front();
    }
    auto end = followers_.begin();
    for (std::weak_ptr<EventFollower>& weak : followers_) {
      std::shared_ptr<EventFollower> follower = weak.lock();
      if (!follower) continue;
      if (follower->filter_.Takes(service, event.has_change()) && follower->Push(shared)) {
        to_wake.push_back(follower);
      }
      if (&*end != &weak) *end = std::move(weak);
      ++end;
    }
    followers_.erase(end, followers_.end());
  }
  for (const auto& follower : to_wake) follower->wake_();
  return true;
}

std::shared_ptr<EventFollower> EventLog::Follow(EventFilter filter, std::function<void()> wake) {
  auto follower = std::make_shared<EventFollower>();
  follower->filter_ = std::move(filter);
  follower->wake_ = std::move(wake);
  std::lock_guard<std::mutex> lock(mutex_);
  follower->queue_ = Logged(follower->filter_);
  follower->limit_ = follower->queue_.size() + follower_limit_;
  std::erase_if(followers_, [](const auto& weak) { return weak.expired(); });
  followers_.push_back(follower);
  return follower;
}

// Merges the rings and does not sort, because the order in each ring is right, whatever the clock
// did. Merging one ring after the other would copy the first one's events once for each service.
std::deque<SharedEvent> EventLog::Logged(const EventFilter& filter) const {
  struct Rest {
    std::deque<SharedEvent>::const_iterator next, end;
    size_t ring;
  };
  // At equal times the event of the first ring comes first.
  const auto is_later = [](const Rest& a, const Rest& b) {
    const int64_t time_a = (*a.next)->unix_micros();
    const int64_t time_b = (*b.next)->unix_micros();
    return time_a != time_b ? time_a > time_b : a.ring > b.ring;
  };
  std::priority_queue<Rest, std::vector<Rest>, decltype(is_later)> rests(is_later);
  for (const auto& [key, ring] : rings_) {
    if (ring.events.empty() || !filter.Takes(key.first, key.second == Source::kOperator)) continue;
    rests.push({ring.events.begin(), ring.events.end(), rests.size()});
  }
  std::deque<SharedEvent> merged;
  while (!rests.empty()) {
    Rest earliest = rests.top();
    rests.pop();
    merged.push_back(*earliest.next);
    if (++earliest.next != earliest.end) rests.push(earliest);
  }
  return merged;
}

}  // namespace baton
