// What has happened to batond and its children, for control, which shows it to operators.
#ifndef SUPERVISOR_BATOND_EVENT_HISTORY_H_
#define SUPERVISOR_BATOND_EVENT_HISTORY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/utf8.h"
#include "proto/baton/internal/batond.pb.h"
#include "proto/baton/v1/types.pb.h"

namespace baton {

// Thread-compatible. Ends with batond; the log has the same events.
class EventHistory {
 public:
  static constexpr size_t kMostEvents = 64;
  static constexpr size_t kMostBytes = 1024;  // of a message

  // `service`: empty if the event is about none.
  void Add(const std::string& service, std::string kind, const std::string& message) {
    v1::Event& event = events_.emplace_back();
    event.set_sequence(++last_sequence_);
    event.set_unix_micros(UnixMicroseconds());
    event.set_service(service);
    event.set_kind(std::move(kind));
    event.set_message(ValidUtf8(message, kMostBytes));
    event.set_shard(-1);
    event.set_connection(-1);
    if (events_.size() > kMostEvents) events_.pop_front();
    untold_ = std::min(untold_ + 1, events_.size());
  }

  // Another control knows nothing yet.
  void ForgetWhatWasTold() { untold_ = events_.size(); }
  bool has_untold() const { return untold_ > 0; }
  void TakeUntold(internal::BatondReply* news) {
    for (; untold_ > 0; --untold_) *news->add_events() = events_[events_.size() - untold_];
  }

 private:
  std::deque<v1::Event> events_;
  uint64_t last_sequence_ = 0;
  size_t untold_ = 0;  // of the latest events
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_EVENT_HISTORY_H_
