// The last events of every service, as the keepers reported them, and their followers.
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
  bool changes = false;  // only changes that operators asked for

  bool Takes(const std::string& of_service, bool change) const {
    return (service.empty() || service == of_service) && (change || !changes);
  }
};

// One reader. It gets the logged events and, while it lives, new ones. A reader that does not keep
// up is cut off.
class EventFollower {
 public:
  // Returns the next event, or null if there is none yet.
  SharedEvent Pop();
  // Returns true if more events waited than the limit allows. Some are missing from here on.
  bool overflowed() const;

 private:
  friend class EventLog;

  bool Push(const SharedEvent& event);  // returns whether to wake the follower

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

  // Adds an event that the service's keeper has reported, or a change. Returns false if it is
  // already here, because a keeper reports its whole log after every reconnect.
  bool Append(const std::string& service, const v1::Event& event) {
    return Add({service, event.has_change() ? Source::kOperator : Source::kKeeper}, event);
  }
  // The same for an event that batond has reported. It names its service, if it is about one.
  bool AppendOfBatond(const v1::Event& event) {
    return Add({event.service(), Source::kBatond}, event);
  }

  // `wake` is called, without locks held, from the thread that appends. Drop the pointer to stop.
  std::shared_ptr<EventFollower> Follow(EventFilter filter, std::function<void()> wake);

 private:
  // A keeper that starts anew numbers from 1 again, so the time is part of an event's identity.
  using Identity = std::pair<uint64_t, int64_t>;
  enum class Source { kKeeper, kOperator, kBatond };
  using Key = std::pair<std::string, Source>;
  struct Ring {
    std::deque<SharedEvent> events;
    std::set<Identity> known;
  };

  bool Add(const Key& key, const v1::Event& event);
  // Returns the events that `filter` takes, in the order of their times. REQUIRES: mutex_ is held.
  std::deque<SharedEvent> Logged(const EventFilter& filter) const;

  const size_t events_per_service_;
  const size_t follower_limit_;
  std::mutex mutex_;
  // By service and source. So a flood of events does not push out operators' changes, and each ring
  // is in the order of its source.
  std::map<Key, Ring> rings_;
  std::vector<std::weak_ptr<EventFollower>> followers_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_EVENT_LOG_H_
