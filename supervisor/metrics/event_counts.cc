#include "supervisor/metrics/event_counts.h"

#include "supervisor/metrics/family.h"

namespace baton::metrics {

void EventCounts::Note(const std::string& service, const v1::Event& event) {
  if (event.unix_micros() < since_unix_micros_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
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
