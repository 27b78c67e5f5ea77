// A family of metrics, as prometheus-cpp serialises it.
#ifndef SUPERVISOR_METRICS_FAMILY_H_
#define SUPERVISOR_METRICS_FAMILY_H_

#include <string>
#include <utility>
#include <vector>

#include "prometheus/metric_family.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton::metrics {

using Labels = std::vector<std::pair<std::string, std::string>>;  // name, value

class Family {
 public:
  static Family Gauge(std::string name, std::string help);
  // `name` ends with _total. It counts from the start of the process that the value is of.
  static Family Counter(std::string name, std::string help);

  static Family Histogram(std::string name, std::string help);

  void Add(const Labels& labels, double value);
  // To a histogram.
  void Add(const Labels& labels, const internal::Histogram& histogram);
  bool empty() const { return family_.metric.empty(); }
  const prometheus::MetricFamily& get() const { return family_; }

 private:
  explicit Family(prometheus::MetricFamily family) : family_(std::move(family)) {}

  prometheus::MetricFamily family_;
};

}  // namespace baton::metrics

#endif  // SUPERVISOR_METRICS_FAMILY_H_
