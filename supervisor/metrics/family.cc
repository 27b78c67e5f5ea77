#include "supervisor/metrics/family.h"

#include <algorithm>

namespace baton::metrics {

Family::Family(prometheus::MetricType type, std::string name, std::string help) {
  family_.name = std::move(name);
  family_.help = std::move(help);
  family_.type = type;
}

prometheus::ClientMetric& Family::Append(const Labels& labels) {
  prometheus::ClientMetric& metric = family_.metric.emplace_back();
  for (const auto& [name, text] : labels) metric.label.push_back({name, text});
  return metric;
}

void Family::Add(const Labels& labels, const internal::Histogram& histogram) {
  prometheus::ClientMetric& metric = Append(labels);
  const int buckets = std::min(histogram.bounds_seconds_size(), histogram.counts_size());
  for (int i = 0; i < buckets; ++i) {
    metric.histogram.bucket.push_back({histogram.counts(i), histogram.bounds_seconds(i)});
  }
  metric.histogram.sample_count = histogram.count();
  metric.histogram.sample_sum = histogram.sum_seconds();
}

void Family::Add(const Labels& labels, double value) {
  prometheus::ClientMetric& metric = Append(labels);
  (family_.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) =
      value;
}

std::vector<prometheus::MetricFamily> NotEmpty(const std::vector<Family>& families) {
  std::vector<prometheus::MetricFamily> result;
  for (const Family& family : families) {
    if (!family.get().metric.empty()) result.push_back(family.get());
  }
  return result;
}

}  // namespace baton::metrics
