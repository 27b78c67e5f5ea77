#include "supervisor/driver/broker/broker_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/base/version.h"

namespace baton::driver_process {

absl::StatusOr<BrokerTable> BrokerTable::Of(const BrokerInheritance& inheritance) {
  BrokerTable table;
  BATON_RETURN_IF_ERROR(table.Describe(inheritance));
  return table;
}

absl::Status BrokerTable::Describe(const BrokerInheritance& inheritance) {
  const driver::DeviceObjects& objects = *inheritance.objects;
  BATON_RETURN_IF_ERROR(inheritance.device->Describe(&host_.device));
  const arena::Arena::Bases bases = inheritance.arena->bases();
  std::copy(bases.begin(), bases.end(), host_.memories);
  queue_pairs_.resize(objects.completion_queues.size());
  shards_.resize(queue_pairs_.size());
  for (uint32_t i = 0; i < shards_.size(); ++i) {
    BatonBrokerShard& shard = shards_[i];
    objects.completion_queues[i]->Describe(&shard.queue);
    if (!objects.shared_receive_queues.empty()) {
      objects.shared_receive_queues[i]->Describe(&shard.shared_receives);
    }
    queue_pairs_[i].resize(inheritance.pool->places(i));
    for (uint32_t place = 0; place < queue_pairs_[i].size(); ++place) {
      const verbs::QueuePair* const pooled = inheritance.pool->at(i, place);
      if (pooled == nullptr) {
        return absl::InternalError(absl::StrCat("place ", place, " of the pool of shard ", i,
                                                " has no queue pair at a broker's fork"));
      }
      pooled->Describe(&queue_pairs_[i][place]);
    }
    shard.queue_pairs = queue_pairs_[i].data();
    shard.queue_pair_count = queue_pairs_[i].size();
  }
  for (uint32_t slot = 0; slot < inheritance.watched.size(); ++slot) {
    const WatchedWorker& watched = inheritance.watched[slot];
    workers_.push_back({watched.id, watched.process, inheritance.wakes->descriptor(slot)});
  }
  host_.version = BATON_BROKER_VERSION;
  host_.bytes = sizeof(host_);
  host_.baton_release = kRelease;
  host_.shards = shards_.data();
  host_.shard_count = static_cast<uint32_t>(shards_.size());
  host_.workers = workers_.data();
  host_.worker_count = static_cast<uint32_t>(workers_.size());
  host_.buffers_lkey = objects.buffers->lkey();
  host_.spares_lkey = objects.spares->lkey();
  host_.board = inheritance.board;
  host_.board_bytes = sizeof(BrokerBoard);
  host_.place = inheritance.place;
  host_.messages = inheritance.messages;
  host_.wake = inheritance.wake;
  host_.host_wake = inheritance.host_wake;
  host_.news = inheritance.news;
  host_.lifeline = inheritance.lifeline;
  const EngineOptions& options = inheritance.options;
  host_.outside_effects = options.outside_effects ? 1 : 0;
  host_.realtime_priority = static_cast<uint32_t>(options.realtime_priority);
  host_.poison_deaths = options.poison_deaths;
  host_.yield_microseconds = options.yield_microseconds;
  host_.break_recovery = options.break_recovery ? 1 : 0;
  return absl::OkStatus();
}

}  // namespace baton::driver_process
