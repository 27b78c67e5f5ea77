#include "supervisor/cli/counter_rates.h"

namespace baton {

std::optional<double> CounterRates::Update(const std::string& key, uint64_t incarnation,
                                           uint64_t value, double now_seconds) {
  const auto [entry, is_new] = seen_.try_emplace(key, Seen{incarnation, value, now_seconds});
  if (is_new) return std::nullopt;
  const Seen before = entry->second;
  entry->second = {incarnation, value, now_seconds};
  const double elapsed = now_seconds - before.seconds;
  if (before.incarnation != incarnation || value < before.value || elapsed <= 0) {
    return std::nullopt;
  }
  return static_cast<double>(value - before.value) / elapsed;
}

void CounterRates::ForgetOlderThan(double seconds) {
  std::erase_if(seen_, [&](const auto& entry) { return entry.second.seconds < seconds; });
}

}  // namespace baton
