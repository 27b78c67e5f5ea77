// Counts the events of each kind that the services had since this process was started. Older ones
// do not count: a jump when a keeper reports its whole log again would look like an incident.
//
// Thread-safe.
#ifndef SUPERVISOR_METRICS_EVENT_COUNTS_H_
#define SUPERVISOR_METRICS_EVENT_COUNTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "lib/base/clock.h"
#include "prometheus/metric_family.h"
#include "proto/baton/v1/types.pb.h"

namespace baton::metrics {

class EventCounts {
 public:
  // Further kinds of a service count as "other".
  static constexpr size_t kMaxKinds = 64;

  // Counts from now on. `unix_micros` may be stepped, `monotonic_ns` may not.
  explicit EventCounts(std::function<int64_t()> unix_micros = UnixMicroseconds,
                       std::function<uint64_t()> monotonic_ns = MonotonicNanoseconds);

  // Leaves out an event from before the start of this object. Events have wall-clock times, so
  // after a step of the clock it counts rather too much than too little: it never drops an event
  // that has just happened.
  void Note(const std::string& service, const v1::Event& event);
  prometheus::MetricFamily Collect() const;

 private:
  const std::function<int64_t()> unix_micros_;
  const std::function<uint64_t()> monotonic_ns_;
  const uint64_t started_ns_;
  mutable std::mutex mutex_;
  // The wall-clock time of the start: as read then, or as computed after a step of the clock, if
  // that is less.
  int64_t since_unix_micros_;
  std::map<std::string, std::map<std::string, uint64_t>> counts_;  // by service, by kind
};

}  // namespace baton::metrics

#endif  // SUPERVISOR_METRICS_EVENT_COUNTS_H_
