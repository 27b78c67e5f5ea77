// Holds the last events of a service for operators, and writes them to its keeper's log.
#ifndef SUPERVISOR_KEEPER_EVENT_LOG_H_
#define SUPERVISOR_KEEPER_EVENT_LOG_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "lib/base/clock.h"
#include "lib/log/log.h"
#include "lib/text/text.h"
#include "proto/baton/v1/types.pb.h"

namespace baton::keeper {

// Writes a service's events to its keeper's log, a line for each. Peers and workers can cause a
// flood of events. The log then has a part of them, and says how many lines it lacks.
// Thread-compatible: the loop's thread.
class EventLines {
 public:
  explicit EventLines(boost::asio::io_context& loop) : timer_(loop) {}

  void Write(const v1::Event& event, std::string_view trace_parent);

 private:
  log::LineLimit limit_;
  boost::asio::steady_timer timer_;
  bool waits_ = false;  // to tell what was left out
};

// The last events of a service, for operators. Bounded: the oldest are dropped, which a reader sees
// by the gap in the sequence numbers. Thread-compatible: the management loop's thread.
class EventLog {
 public:
  using Observer = std::function<void(const v1::Event&)>;
  static constexpr size_t kCapacity = 1024;
  static constexpr size_t kMaxKindBytes = 64;
  static constexpr size_t kMaxMessageBytes = 2048;

  // `last`: the sequence number before that of the first event.
  EventLog(std::string service, Observer observer, uint64_t last = 0)
      : service_(std::move(service)), observer_(std::move(observer)), last_(last) {}

  void Add(std::string_view kind, std::string_view message, int64_t unix_micros, uint64_t worker_id,
           int shard, int connection) {
    v1::Event event;
    event.set_sequence(++last_);
    event.set_service(service_);
    event.set_unix_micros(unix_micros);
    // Some events contain text of workers and peers.
    event.set_kind(OneLine(kind, kMaxKindBytes));
    event.set_message(OneLine(message, kMaxMessageBytes));
    event.set_worker_id(worker_id);
    event.set_shard(shard);
    event.set_connection(connection);
    if (events_.size() == kCapacity) events_.pop_front();
    events_.push_back(std::move(event));
    observer_(events_.back());
  }

  // Adds an event of the service, or of one of its workers, that happens now.
  void Add(std::string_view kind, std::string_view message, uint64_t worker_id = 0) {
    Add(kind, message, UnixMicroseconds(), worker_id, /*shard=*/-1, /*connection=*/-1);
  }

  const std::deque<v1::Event>& events() const { return events_; }

  // The trace (W3C's trace context) that events carry now; empty: none.
  const std::string& trace_parent() const { return trace_parent_; }

  // While it exists, events carry `trace_parent`, the trace of the request that causes them.
  // Afterwards they carry what they did before.
  class TraceScope {
   public:
    // `log` outlives it.
    TraceScope(EventLog& log, std::string trace_parent)
        : log_(log), before_(std::exchange(log.trace_parent_, std::move(trace_parent))) {}
    ~TraceScope() { log_.trace_parent_ = std::move(before_); }
    TraceScope(const TraceScope&) = delete;
    TraceScope& operator=(const TraceScope&) = delete;

   private:
    EventLog& log_;
    std::string before_;
  };

 private:
  std::string service_;
  Observer observer_;
  std::deque<v1::Event> events_;
  std::string trace_parent_;
  uint64_t last_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_EVENT_LOG_H_
