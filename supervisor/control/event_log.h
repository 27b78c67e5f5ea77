// The last events of every service, as the keepers told them, and those who follow them.
//
// Thread-safe.
#ifndef SUPERVISOR_CONTROL_EVENT_LOG_H_
#define SUPERVISOR_CONTROL_EVENT_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "proto/baton/v1/types.pb.h"

namespace baton {

using SharedEvent = std::shared_ptr<const v1::Event>;

// The events that a reader wants.
struct EventFilter {
  std::string service;   // empty: all
  bool changes = false;  // only what operators asked for

  bool Takes(const std::string& of_service, bool change) const {
    return (service.empty() || service == of_service) && (change || !changes);
  }
};

// One reader. It starts with what was logged and, while it lives, is given what comes. One that
// does not keep up is cut off, not waited for.
class EventFollower {
 public:
  // The next event, or nothing when there is none yet.
  SharedEvent Pop();
  // More events waited than the bound allows: some are missing from here on.
  bool overflowed() const;

 private:
  friend class EventLog;

  bool Push(const SharedEvent& event);  // whether the follower should be woken

  mutable std::mutex mutex_;
  std::deque<SharedEvent> queue_;
  size_t limit_ = 0;
  bool overflowed_ = false;
  EventFilter filter_;
  std::function<void()> wake_;
};

class EventLog {
 public:
  explicit EventLog(size_t events_per_service = 4096, size_t follower_limit = 8192)
      : events_per_service_(events_per_service), follower_limit_(follower_limit) {}

  // Drops an event that is already here, and says so with false: a keeper tells its whole log after
  // every reconnect.
  bool Append(const std::string& service, const v1::Event& event);

  // `wake` is called, without locks held, from the thread that appends. Drop the pointer to stop.
  std::shared_ptr<EventFollower> Follow(EventFilter filter, std::function<void()> wake);

 private:
  // A keeper that starts anew numbers from 1 again, so the time is part of an event's identity.
  using Identity = std::pair<uint64_t, int64_t>;
  struct Ring {
    std::deque<SharedEvent> events;
    std::set<Identity> known;
  };

  // Those that `filter` takes, in the order of their times. With mutex_ held.
  std::deque<SharedEvent> Logged(const EventFilter& filter) const;

  const size_t events_per_service_;
  const size_t follower_limit_;
  std::mutex mutex_;
  // By service; what operators asked for is apart, for a flood of events not to wash it away.
  std::map<std::pair<std::string, bool>, Ring> rings_;
  std::vector<std::weak_ptr<EventFollower>> followers_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_EVENT_LOG_H_
