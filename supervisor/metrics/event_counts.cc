#include "supervisor/metrics/event_counts.h"

#include <algorithm>
#include <utility>

#include "supervisor/metrics/family.h"

namespace baton::metrics {

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
