// How many events of each kind the services had since this process was started: a counter that
// jumps when a keeper tells its whole log again would look like an incident.
//
// Thread-safe.
#ifndef SUPERVISOR_METRICS_EVENT_COUNTS_H_
#define SUPERVISOR_METRICS_EVENT_COUNTS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "prometheus/metric_family.h"
#include "proto/baton/v1/types.pb.h"

namespace baton::metrics {

class EventCounts {
 public:
  // Kinds of a service beyond that are counted as "other".
  static constexpr size_t kMaxKinds = 64;

  explicit EventCounts(int64_t since_unix_micros) : since_unix_micros_(since_unix_micros) {}

  void Note(const std::string& service, const v1::Event& event);
  prometheus::MetricFamily Collect() const;

 private:
  const int64_t since_unix_micros_;
  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::string, uint64_t>> counts_;  // by service, by kind
};

}  // namespace baton::metrics

#endif  // SUPERVISOR_METRICS_EVENT_COUNTS_H_
