#include "supervisor/metrics/family.h"

#include <algorithm>

namespace baton::metrics {
namespace {

prometheus::MetricFamily Empty(std::string name, std::string help, prometheus::MetricType type) {
  prometheus::MetricFamily family;
  family.name = std::move(name);
  family.help = std::move(help);
  family.type = type;
  return family;
}

}  // namespace

Family Family::Gauge(std::string name, std::string help) {
  return Family(Empty(std::move(name), std::move(help), prometheus::MetricType::Gauge));
}

Family Family::Counter(std::string name, std::string help) {
  return Family(Empty(std::move(name), std::move(help), prometheus::MetricType::Counter));
}

Family Family::Histogram(std::string name, std::string help) {
  return Family(Empty(std::move(name), std::move(help), prometheus::MetricType::Histogram));
}

void Family::Add(const Labels& labels, const internal::Histogram& histogram) {
  prometheus::ClientMetric& metric = family_.metric.emplace_back();
  for (const auto& [name, text] : labels) metric.label.push_back({name, text});
  const int buckets = std::min(histogram.bounds_seconds_size(), histogram.counts_size());
  for (int i = 0; i < buckets; ++i) {
    metric.histogram.bucket.push_back({histogram.counts(i), histogram.bounds_seconds(i)});
  }
  metric.histogram.sample_count = histogram.count();
  metric.histogram.sample_sum = histogram.sum_seconds();
}

void Family::Add(const Labels& labels, double value) {
  prometheus::ClientMetric& metric = family_.metric.emplace_back();
  for (const auto& [name, text] : labels) metric.label.push_back({name, text});
  if (family_.type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
}

}  // namespace baton::metrics
