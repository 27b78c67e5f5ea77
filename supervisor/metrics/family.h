// A family of metrics, in the form that prometheus-cpp serialises.
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

}  // namespace baton::metrics

#endif  // SUPERVISOR_METRICS_FAMILY_H_
