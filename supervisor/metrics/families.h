// Metrics of services, of their devices, and of the processes. Labels are bounded: the configured
// services, their shards (at most 64 each), and fixed words. No worker, connection or address is a
// label.
#ifndef SUPERVISOR_METRICS_FAMILIES_H_
#define SUPERVISOR_METRICS_FAMILIES_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/clock.h"
#include "prometheus/metric_family.h"
#include "proto/baton/internal/keeper.pb.h"
#include "proto/baton/v1/inspect.pb.h"
#include "proto/baton/v1/types.pb.h"

namespace baton::metrics {

using Labels = std::vector<std::pair<std::string, std::string>>;  // name, value

// A family of metrics, in the form that prometheus-cpp serialises.
class Family {
 public:
  static Family Gauge(std::string name, std::string help) {
    return Family(prometheus::MetricType::Gauge, std::move(name), std::move(help));
  }
  // `name` ends with _total. The counter begins with 0 at the start of the process that it
  // describes.
  static Family Counter(std::string name, std::string help) {
    return Family(prometheus::MetricType::Counter, std::move(name), std::move(help));
  }
  static Family Histogram(std::string name, std::string help) {
    return Family(prometheus::MetricType::Histogram, std::move(name), std::move(help));
  }

  void Add(const Labels& labels, double value);
  // Adds a value to a histogram.
  void Add(const Labels& labels, const internal::Histogram& histogram);
  const prometheus::MetricFamily& get() const { return family_; }

 private:
  Family(prometheus::MetricType type, std::string name, std::string help);
  prometheus::ClientMetric& Append(const Labels& labels);

  prometheus::MetricFamily family_;
};

// Returns the families that have a value.
std::vector<prometheus::MetricFamily> NotEmpty(const std::vector<Family>& families);

// Counts the events of each kind that the services had since this process was started. Older ones
// do not count: a jump when a keeper reports its whole log again would look like an incident.
//
// Thread-safe.
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

// A service's name and description. A service whose keeper does not answer has only
// baton_service_up, which is 0.
using DescribedService = std::pair<std::string, absl::StatusOr<internal::Description>>;

std::vector<prometheus::MetricFamily> ServiceFamilies(const std::vector<DescribedService>& all);

// Reads a service's metrics from its arena, if no process is left to ask.
//
// Names and labels are those of ServiceFamilies. Metrics that are not in an arena are missing.
std::vector<prometheus::MetricFamily> ArenaFamilies(const v1::Inspection& inspection);

// Metrics of the retries and the congestion that devices count in /sys/class/infiniband.
//
// Lists each port that a reachable service uses, once. Leaves out a counter that the device's
// driver does not have. The label `counter` is the driver's own name of a counter, one of a fixed
// list.
std::vector<prometheus::MetricFamily> DeviceFamilies(
    const std::vector<DescribedService>& all, const std::string& devices = "/sys/class/infiniband");

struct ObservedProcess {
  std::string program;  // "batond", "control", "driver", "keeper"
  std::string service;  // the service of a driver or keeper
  pid_t pid = 0;
};

// Metrics of the resources that Baton's processes use, from /proc. Leaves out processes that have
// ended, and the descriptors of processes that may not be looked into.
std::vector<prometheus::MetricFamily> ProcessFamilies(const std::vector<ObservedProcess>& all);

}  // namespace baton::metrics

#endif  // SUPERVISOR_METRICS_FAMILIES_H_
