#include "supervisor/metrics/family.h"

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
