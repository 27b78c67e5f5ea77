#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "supervisor/metrics/families.h"

namespace baton::metrics {
namespace {

constexpr double kMicrosecond = 1e-6;

template <typename Subject>
struct Metric {
  const char* name;
  const char* help;
  double (*value)(const Subject& subject);
};
constexpr Metric<v1::Service> kServiceGauges[] = {
    {"baton_service_uptime_seconds", "Since the service's keeper was started.",
     [](const v1::Service& s) { return s.uptime_seconds(); }},
    {"baton_service_connections", "Connections that have not ended.",
     [](const v1::Service& s) { return double{1} * s.connection_count(); }},
    {"baton_service_connections_limit", "Connections that the service has room for.",
     [](const v1::Service& s) { return double{1} * s.max_connections(); }},
    {"baton_service_shards", "Shards of the service.",
     [](const v1::Service& s) { return double{1} * s.shard_count(); }},
    {"baton_service_shards_unowned", "Shards that wait for a worker: nobody serves them.",
     [](const v1::Service& s) { return double{1} * s.shard_count() - s.shards_owned(); }},
    {"baton_service_listeners", "Addresses on which the service listens.",
     [](const v1::Service& s) { return double{1} * s.listeners_size(); }},
    {"baton_service_buffer_bytes",
     "Registered memory that the application divides up: without the shards' heaps.",
     [](const v1::Service& s) { return static_cast<double>(s.buffer_bytes()); }},
    {"baton_service_registered_bytes", "Memory registered with the device, grants among it.",
     [](const v1::Service& s) { return static_cast<double>(s.accounts().registered_bytes()); }},
    {"baton_service_grants",
     "Ranges of the buffers that peers may reach, and regions of workers' memory.",
     [](const v1::Service& s) { return double{1} * s.accounts().grants(); }},
    {"baton_service_granted_bytes", "Of those ranges, together.",
     [](const v1::Service& s) { return static_cast<double>(s.accounts().granted_bytes()); }},
    {"baton_service_held_descriptors", "Descriptors that the driver holds for workers.",
     [](const v1::Service& s) { return double{1} * s.accounts().descriptors(); }},
    {"baton_service_warnings", "Limits of the policy and of the control group that are near.",
     [](const v1::Service& s) { return double{1} * s.accounts().warnings_size(); }},
    {"baton_upgrade_running", "1 while an upgrade or a rollback is under way.",
     [](const v1::Service& s) { return s.has_upgrade() ? 1.0 : 0.0; }},
};

constexpr Metric<v1::Shard> kShardGauges[] = {
    {"baton_shard_owned", "1 while a worker owns the shard.",
     [](const v1::Shard& s) { return s.owner_worker_id() != 0 ? 1.0 : 0.0; }},
    {"baton_shard_has_heir", "1 while a worker stands by to take the shard over.",
     [](const v1::Shard& s) { return s.heir_worker_id() != 0 ? 1.0 : 0.0; }},
    {"baton_shard_connections", "Connections of the shard.",
     [](const v1::Shard& s) { return double{1} * s.connections(); }},
    {"baton_shard_sends_in_flight", "Sends that were posted and have not completed.",
     [](const v1::Shard& s) { return double{1} * s.send_requests_in_flight(); }},
    {"baton_shard_completions_unacknowledged",
     "Completions that the owner has not acknowledged: those a successor would be given.",
     [](const v1::Shard& s) { return static_cast<double>(s.completions_unacknowledged()); }},
};
constexpr Metric<v1::Shard> kShardCounters[] = {
    {"baton_shard_commits_total", "Transactions of owners that were applied.",
     [](const v1::Shard& s) { return static_cast<double>(s.commits()); }},
    {"baton_shard_sends_posted_total", "Send requests posted to the device.",
     [](const v1::Shard& s) { return static_cast<double>(s.sends_posted()); }},
    {"baton_shard_receives_posted_total", "Receive requests posted to the device.",
     [](const v1::Shard& s) { return static_cast<double>(s.receives_posted()); }},
    {"baton_shard_completions_total", "Completions and events delivered to owners.",
     [](const v1::Shard& s) { return static_cast<double>(s.completions()); }},
    {"baton_shard_epochs_total", "Owners that the shard has had, one after the other.",
     [](const v1::Shard& s) { return static_cast<double>(s.epoch()); }},
    {"baton_shard_poisoned_connections_total",
     "Connections that were failed because owners died on a completion of them.",
     [](const v1::Shard& s) { return static_cast<double>(s.poisoned_connections()); }},
};

using Visit = std::function<void(const std::string& name, const internal::Description&)>;
void ForEachReachable(const std::vector<DescribedService>& all, const Visit& visit) {
  for (const auto& [name, described] : all) {
    if (described.ok()) visit(name, *described);
  }
}

Family Up(const std::vector<DescribedService>& all) {
  Family family = Family::Gauge("baton_service_up", "1 while the service's keeper answers.");
  for (const auto& [name, described] : all) {
    family.Add({{"service", name}}, described.ok() ? 1 : 0);
  }
  return family;
}

// A value for each word of a label.
using Values = std::vector<std::pair<const char*, double>>;
Family ByWord(const std::vector<DescribedService>& all, Family family, const char* label,
              const std::function<Values(const internal::Description&)>& values) {
  ForEachReachable(all, [&](const std::string& name, const internal::Description& described) {
    for (const auto& [word, value] : values(described)) {
      family.Add({{"service", name}, {label, word}}, value);
    }
  });
  return family;
}

// Every state has a value, also 0, so that alerting rules can rely on it.
Values Workers(const internal::Description& described) {
  Values counts = {{"attached", 0}, {"ready", 0}, {"dying", 0}};
  for (const v1::Worker& worker : described.workers()) {
    const bool attached = worker.state() == v1::WORKER_STATE_ATTACHED;
    ++counts[attached ? 0 : worker.state() == v1::WORKER_STATE_READY ? 1 : 2].second;
  }
  return counts;
}

Family Unhealthy(const std::vector<DescribedService>& all) {
  Family family =
      Family::Gauge("baton_service_workers_unhealthy", "Workers that call themselves unhealthy.");
  ForEachReachable(all, [&](const std::string& name, const internal::Description& described) {
    const auto count = std::count_if(described.workers().begin(), described.workers().end(),
                                     [](const v1::Worker& worker) { return !worker.healthy(); });
    family.Add({{"service", name}}, static_cast<double>(count));
  });
  return family;
}

Values DeviceObjects(const internal::Description& described) {
  const v1::Accounts& accounts = described.service().accounts();
  return {{"queue_pair", double{1} * accounts.queue_pairs()},
          {"completion_queue", double{1} * accounts.completion_queues()},
          {"shared_receive_queue", double{1} * accounts.shared_receive_queues()},
          {"memory_region", double{1} * accounts.memory_regions()}};
}

Values QuotaLimits(const internal::Description& described) {
  const v1::Quota& quota = described.service().policy().service();
  return {{"connections", double{1} * quota.connections()},
          {"listeners", double{1} * quota.listeners()},
          {"grants", double{1} * quota.grants()},
          {"granted_bytes", static_cast<double>(quota.granted_bytes())},
          {"posts_per_second", double{1} * quota.posts_per_second()},
          {"queue_pairs", double{1} * quota.queue_pairs()},
          {"completion_queues", double{1} * quota.completion_queues()},
          {"registered_bytes", static_cast<double>(quota.registered_bytes())},
          {"descriptors", double{1} * quota.descriptors()}};
}

Family PortUp(const std::vector<DescribedService>& all) {
  Family family = Family::Gauge("baton_device_port_up",
                                "1 while the port of the service's device is active; absent for a "
                                "device without ports.");
  ForEachReachable(all, [&](const std::string& name, const internal::Description& described) {
    const v1::DeviceState& device = described.service().device_state();
    if (device.port() == 0) return;
    family.Add({{"service", name}, {"device", device.name()}},
               device.port_state() == "active" ? 1 : 0);
  });
  return family;
}

std::vector<Family> Blackouts(const std::vector<DescribedService>& all) {
  Family seconds = Family::Histogram("baton_blackout_seconds",
                                     "Changes of owner: from the release, or from the noticed "
                                     "death, to the successor's first commit. no_keeper: from the "
                                     "end of a keeper to the next; connections do not wait.");
  Family longest = Family::Gauge("baton_longest_blackout_seconds",
                                 "The longest of those since the driver was started.");
  ForEachReachable(all, [&](const std::string& name, const internal::Description& described) {
    for (int i = 0; i < described.blackouts_size(); ++i) {
      const v1::CausedBlackout& blackout = described.service().blackouts(i);
      const Labels labels = {{"service", name}, {"cause", blackout.cause()}};
      seconds.Add(labels, described.blackouts(i));
      longest.Add(labels, blackout.blackout().max_us() * kMicrosecond);
    }
  });
  return {std::move(seconds), std::move(longest)};
}

// Covers brokered services only: native ones have no engine.
std::vector<Family> EngineLoads(const std::vector<DescribedService>& all) {
  Family busy = Family::Counter("baton_engine_busy_seconds_total",
                                "Time in which the thread that drives the queues had something to "
                                "do: its rate is the thread's busy share.");
  Family turns =
      Family::Counter("baton_engine_turns_total", "Turns in which it found something to do.");
  Family turn =
      Family::Histogram("baton_engine_turn_seconds",
                        "How long those took that ended an idle time or did what the "
                        "keeper asked for, and one in 64 of the others: every shard waits "
                        "for the longest.");
  ForEachReachable(all, [&](const std::string& name, const internal::Description& described) {
    if (!described.has_engine()) return;
    const Labels labels = {{"service", name}};
    busy.Add(labels, described.engine().busy_seconds());
    turns.Add(labels, static_cast<double>(described.engine().turns()));
    turn.Add(labels, described.engine().turn());
  });
  return {std::move(busy), std::move(turns), std::move(turn)};
}

std::vector<Family> ShardLoads(const std::vector<DescribedService>& all) {
  Family sent = Family::Counter("baton_shard_sent_bytes_total",
                                "Bytes of the buffers of sends that owners committed, those that "
                                "READs ask for among them.");
  Family received =
      Family::Counter("baton_shard_received_bytes_total", "Bytes of messages received.");
  Family window = Family::Gauge(
      "baton_shard_receive_window",
      "Receives left: those of the connection that has the fewest, or the shard's shared ones. A "
      "peer that finds none is told to try again.");
  ForEachReachable(all, [&](const std::string& name, const internal::Description& described) {
    for (int i = 0; i < described.shard_loads_size(); ++i) {
      const internal::ShardLoad& load = described.shard_loads(i);
      const Labels labels = {{"service", name}, {"shard", absl::StrCat(i)}};
      if (load.has_bytes_sent()) sent.Add(labels, static_cast<double>(load.bytes_sent()));
      if (load.has_bytes_received()) {
        received.Add(labels, static_cast<double>(load.bytes_received()));
      }
      if (load.has_receive_window()) window.Add(labels, double{1} * load.receive_window());
    }
  });
  return {std::move(sent), std::move(received), std::move(window)};
}

using HeapUse = internal::ShardHeap::Use;

// An owner may say that the longest range has more than all of them.
double FragmentationOf(const HeapUse& use) {
  if (use.free() <= use.largest_free()) return 0;
  return 1 - static_cast<double>(use.largest_free()) / static_cast<double>(use.free());
}

// An owner says these of its shard's heap.
constexpr Metric<HeapUse> kHeapGauges[] = {
    {"baton_shard_heap_kept_bytes",
     "Of the heap, in allocations of the committed state, as its owner says.",
     [](const HeapUse& use) { return static_cast<double>(use.kept()); }},
    {"baton_shard_heap_scratch_bytes",
     "Of the heap, in allocations that end with their owner, as it says.",
     [](const HeapUse& use) { return static_cast<double>(use.scratch()); }},
    {"baton_shard_heap_held_bytes",
     "Of the heap, freed and maybe still in use by work requests, as its owner says.",
     [](const HeapUse& use) { return static_cast<double>(use.held()); }},
    {"baton_shard_heap_largest_free_bytes",
     "Of the heap, in the longest free range, as its owner says.",
     [](const HeapUse& use) { return static_cast<double>(use.largest_free()); }},
};
// Owners of former releases do not say these.
constexpr Metric<HeapUse> kFreeHeapGauges[] = {
    {"baton_shard_heap_free_bytes", "Of the heap, what could be allocated, as its owner says.",
     [](const HeapUse& use) { return static_cast<double>(use.free()); }},
    {"baton_shard_heap_rest_bytes",
     "Of the heap, lost behind the last objects of blocks, as its owner says.",
     [](const HeapUse& use) { return static_cast<double>(use.rest()); }},
    {"baton_shard_heap_fragmentation_ratio",
     "The part of the heap's free bytes that lies outside the longest free range, 0 to 1, as its "
     "owner says.",
     &FragmentationOf},
};

// Covers services whose shards have a heap. What an owner has not said is left out.
std::vector<Family> Heaps(const std::vector<DescribedService>& all) {
  std::vector<Family> families;
  const auto for_each_heap = [&](const auto& add) {
    ForEachReachable(all, [&](const std::string& name, const internal::Description& described) {
      for (int i = 0; i < described.shard_loads_size(); ++i) {
        const internal::ShardHeap& heap = described.shard_loads(i).heap();
        if (heap.bytes() != 0) add({{"service", name}, {"shard", absl::StrCat(i)}}, heap);
      }
    });
  };
  Family& bytes = families.emplace_back(Family::Gauge(
      "baton_shard_heap_bytes", "Registered memory that the shard's owner allocates from."));
  for_each_heap([&](const Labels& labels, const internal::ShardHeap& heap) {
    bytes.Add(labels, static_cast<double>(heap.bytes()));
  });
  const auto add = [&](const Metric<HeapUse>& metric, const auto& is_said) {
    Family& family = families.emplace_back(Family::Gauge(metric.name, metric.help));
    for_each_heap([&](const Labels& labels, const internal::ShardHeap& heap) {
      if (is_said(heap)) family.Add(labels, metric.value(heap.use()));
    });
  };
  for (const Metric<HeapUse>& metric : kHeapGauges) {
    add(metric, [](const internal::ShardHeap& heap) { return heap.has_use(); });
  }
  for (const Metric<HeapUse>& metric : kFreeHeapGauges) {
    add(metric, [](const internal::ShardHeap& heap) { return heap.use().has_free(); });
  }
  return families;
}

constexpr std::string_view kKnown[] = {
    "baton_service_connections",
    "baton_service_connections_limit",
    "baton_service_shards",
    "baton_service_shards_unowned",
    "baton_service_buffer_bytes",
    "baton_shard_owned",
    "baton_shard_connections",
    "baton_shard_completions_unacknowledged",
    "baton_shard_commits_total",
    "baton_shard_completions_total",
    "baton_shard_epochs_total",
    "baton_shard_heap_bytes",
    "baton_shard_heap_kept_bytes",
    "baton_shard_heap_scratch_bytes",
    "baton_shard_heap_held_bytes",
    "baton_shard_heap_largest_free_bytes",
    "baton_shard_heap_free_bytes",
    "baton_shard_heap_rest_bytes",
    "baton_shard_heap_fragmentation_ratio",
};

void DescribeHeap(const v1::InspectedShard& seen, internal::Description* described) {
  if (!seen.has_heap()) return;
  while (static_cast<uint32_t>(described->shard_loads_size()) <= seen.index()) {
    described->add_shard_loads();
  }
  internal::ShardHeap* const heap =
      described->mutable_shard_loads(static_cast<int>(seen.index()))->mutable_heap();
  heap->set_bytes(seen.heap().bytes());
  if (!seen.heap().has_owner()) return;
  const v1::InspectedHeapUse& owner = seen.heap().owner();
  heap->mutable_use()->set_kept(owner.kept());
  heap->mutable_use()->set_scratch(owner.scratch());
  heap->mutable_use()->set_held(owner.held());
  heap->mutable_use()->set_largest_free(owner.largest_free());
  if (!owner.has_free()) return;
  heap->mutable_use()->set_free(owner.free());
  heap->mutable_use()->set_rest(owner.rest());
}

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
    shard->set_owner_worker_id(seen.owner_slot() >= 0 ? 1 : 0);  // no metric names the worker
    shard->set_connections(seen.connections());
    shard->set_commits(seen.transactions());
    shard->set_completions(seen.completions());
    shard->set_completions_unacknowledged(seen.completions() -
                                          std::min(seen.acknowledged(), seen.completions()));
    DescribeHeap(seen, &described);
  }
  return described;
}

}  // namespace

std::vector<prometheus::MetricFamily> ServiceFamilies(const std::vector<DescribedService>& all) {
  std::vector<Family> families = {
      Up(all),
      ByWord(all, Family::Gauge("baton_service_workers", "Workers, by their state."), "state",
             Workers),
      Unhealthy(all),
      PortUp(all),
      ByWord(all,
             Family::Gauge("baton_service_device_objects",
                           "Objects of the device that the driver has made, by their kind."),
             "kind", DeviceObjects),
      ByWord(all,
             Family::Gauge("baton_service_quota",
                           "What the policy allows the service, by what it is of; 0: as much as "
                           "there is room for."),
             "of", QuotaLimits)};
  for (const Metric<v1::Service>& metric : kServiceGauges) {
    Family& family = families.emplace_back(Family::Gauge(metric.name, metric.help));
    ForEachReachable(all, [&](const std::string& name, const internal::Description& described) {
      family.Add({{"service", name}}, metric.value(described.service()));
    });
  }
  const auto add_of_shards = [&](Family family, const Metric<v1::Shard>& metric) {
    ForEachReachable(all, [&](const std::string& name, const internal::Description& described) {
      for (const v1::Shard& shard : described.shards()) {
        family.Add({{"service", name}, {"shard", absl::StrCat(shard.index())}},
                   metric.value(shard));
      }
    });
    families.push_back(std::move(family));
  };
  for (const Metric<v1::Shard>& metric : kShardGauges) {
    add_of_shards(Family::Gauge(metric.name, metric.help), metric);
  }
  for (const Metric<v1::Shard>& metric : kShardCounters) {
    add_of_shards(Family::Counter(metric.name, metric.help), metric);
  }
  for (std::vector<Family> more : {Blackouts(all), EngineLoads(all), ShardLoads(all), Heaps(all)}) {
    std::move(more.begin(), more.end(), std::back_inserter(families));
  }
  return NotEmpty(families);
}

std::vector<prometheus::MetricFamily> ArenaFamilies(const v1::Inspection& inspection) {
  std::vector<prometheus::MetricFamily> families =
      ServiceFamilies({{inspection.service(), Describe(inspection)}});
  std::erase_if(families, [](const prometheus::MetricFamily& family) {
    return std::find(std::begin(kKnown), std::end(kKnown), family.name) == std::end(kKnown);
  });
  return families;
}

}  // namespace baton::metrics
