#include "supervisor/metrics/families.h"

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

EventCounts::EventCounts(std::function<int64_t()> unix_micros,
                         std::function<uint64_t()> monotonic_ns)
    : unix_micros_(std::move(unix_micros)),
      monotonic_ns_(std::move(monotonic_ns)),
      started_ns_(monotonic_ns_()),
      since_unix_micros_(unix_micros_()) {}

void EventCounts::Note(const std::string& service, const v1::Event& event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto up_micros = static_cast<int64_t>((monotonic_ns_() - started_ns_) / 1000);
  since_unix_micros_ = std::min(since_unix_micros_, unix_micros_() - up_micros);
  if (event.unix_micros() < since_unix_micros_) return;
  std::map<std::string, uint64_t>& kinds = counts_[service];
  const bool known = kinds.size() < kMaxKinds || kinds.count(event.kind()) != 0;
  ++kinds[known ? event.kind() : "other"];
}

prometheus::MetricFamily EventCounts::Collect() const {
  Family family = Family::Counter("baton_events_total", "Events, as `baton events` shows them.");
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [service, kinds] : counts_) {
    for (const auto& [kind, count] : kinds) {
      family.Add({{"service", service}, {"kind", kind}}, static_cast<double>(count));
    }
  }
  return family.get();
}

}  // namespace baton::metrics
