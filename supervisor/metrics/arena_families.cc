#include "supervisor/metrics/arena_families.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "supervisor/metrics/service_families.h"

namespace baton::metrics {
namespace {

constexpr std::string_view kKnown[] = {
    "baton_service_connections",  "baton_service_connections_limit",
    "baton_service_shards",       "baton_service_shards_unowned",
    "baton_service_buffer_bytes", "baton_shard_owned",
    "baton_shard_connections",    "baton_shard_completions_unacknowledged",
    "baton_shard_commits_total",  "baton_shard_completions_total",
    "baton_shard_epochs_total",
};

// Describes the service like a keeper. Numbers in an arena may have any value.
internal::Description Describe(const v1::Inspection& inspection) {
  internal::Description described;
  v1::Service* const service = described.mutable_service();
  const v1::InspectedShape& shape = inspection.shape();
  service->set_shard_count(shape.shards());
  service->set_shards_owned(std::min(inspection.totals().shards_owned(), shape.shards()));
  service->set_connection_count(static_cast<uint32_t>(inspection.totals().connections()));
  service->set_max_connections(shape.connections());
  service->set_buffer_bytes(shape.buffer_bytes());
  for (const v1::InspectedShard& seen : inspection.shards()) {
    v1::Shard* const shard = described.add_shards();
    shard->set_index(seen.index());
    shard->set_epoch(seen.epoch());
    shard->set_owner_worker_id(seen.owner_slot() >= 0 ? 1 : 0);  // who it is, is in no metric
    shard->set_connections(seen.connections());
    shard->set_commits(seen.transactions());
    shard->set_completions(seen.completions());
    shard->set_completions_unacknowledged(seen.completions() -
                                          std::min(seen.acknowledged(), seen.completions()));
  }
  return described;
}

}  // namespace

std::vector<prometheus::MetricFamily> ArenaFamilies(const v1::Inspection& inspection) {
  std::vector<prometheus::MetricFamily> families =
      ServiceFamilies({{inspection.service(), Describe(inspection)}});
  std::erase_if(families, [](const prometheus::MetricFamily& family) {
    return std::find(std::begin(kKnown), std::end(kKnown), family.name) == std::end(kKnown);
  });
  return families;
}

}  // namespace baton::metrics
