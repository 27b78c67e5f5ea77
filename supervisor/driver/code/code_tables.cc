#include "supervisor/driver/code/code_tables.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "lib/native/host.h"

namespace baton::driver_process {
namespace {

// Describes what a broker and a native worker inherit under the same names.
template <typename Inheritance>
absl::Status DescribeQueues(const Inheritance& from, int host_wake, const ServiceOptions& settings,
                            QueuesTable* table, BatonInheritedQueues* described) {
  BATON_RETURN_IF_ERROR(
      table->Describe(*from.arena, *from.device, *from.pool, *from.objects, described));
  described->lifeline = from.lifeline;
  described->news = from.news;
  described->host_wake = host_wake;
  described->outside_effects = settings.outside_effects ? 1 : 0;
  described->realtime_priority = static_cast<uint32_t>(settings.realtime_priority);
  described->poison_deaths = settings.poison_deaths;
  return absl::OkStatus();
}

}  // namespace

absl::Status QueuesTable::Describe(const arena::Arena& arena, const verbs::Device& device,
                                   const native::QueuePairPool& pool,
                                   const driver::DeviceObjects& objects,
                                   BatonInheritedQueues* described) {
  BATON_RETURN_IF_ERROR(device.Describe(&described->device));
  const arena::Arena::Bases bases = arena.bases();
  std::copy(bases.begin(), bases.end(), described->memories);
  shards_.resize(objects.completion_queues.size());
  queue_pairs_.resize(shards_.size());
  for (uint32_t i = 0; i < shards_.size(); ++i) {
    objects.completion_queues[i]->Describe(&shards_[i].queue);
    if (!objects.shared_receive_queues.empty()) {
      objects.shared_receive_queues[i]->Describe(&shards_[i].shared_receives);
    }
    for (uint32_t place = 0; place < pool.places(i); ++place) {
      const verbs::QueuePair* const pooled = pool.at(i, place);
      if (pooled == nullptr) {
        return absl::InternalError(absl::StrCat("place ", place, " of the pool of shard ", i,
                                                " has no queue pair at a driver's fork"));
      }
      pooled->Describe(&queue_pairs_[i].emplace_back());
    }
    shards_[i].queue_pairs = queue_pairs_[i].data();
    shards_[i].queue_pair_count = queue_pairs_[i].size();
  }
  described->version = BATON_DRIVER_CODE_VERSION;
  described->bytes = sizeof(*described);
  described->baton_release = kRelease;
  described->inherited_version = BATON_INHERITED_VERSION;
  described->shards = shards_.data();
  described->shard_count = static_cast<uint32_t>(shards_.size());
  described->buffers_lkey = objects.buffers->lkey();
  described->spares_lkey = objects.spares->lkey();
  return absl::OkStatus();
}

absl::StatusOr<BrokerTable> BrokerTable::Of(const BrokerInheritance& inheritance) {
  BrokerTable table;
  BatonBrokerHost& host = table.host_;
  const EngineOptions& options = inheritance.options;
  BATON_RETURN_IF_ERROR(
      DescribeQueues(inheritance, inheritance.host_wake, options, &table.queues_, &host.queues));
  for (uint32_t slot = 0; slot < inheritance.watched.size(); ++slot) {
    const WatchedWorker& watched = inheritance.watched[slot];
    table.workers_.push_back({watched.id, watched.process, inheritance.wakes->descriptor(slot)});
  }
  host.board = inheritance.board;
  host.board_bytes = sizeof(BrokerBoard);
  host.workers = table.workers_.data();
  host.worker_count = static_cast<uint32_t>(table.workers_.size());
  host.place = inheritance.place;
  host.messages = inheritance.messages;
  host.wake = inheritance.wake;
  host.yield_microseconds = options.yield_microseconds;
  host.break_recovery = options.break_recovery ? 1 : 0;
  return table;
}

absl::StatusOr<OwnerTable> OwnerTable::Of(const NativeInheritance& inheritance) {
  OwnerTable table;
  BatonOwnerHost& host = table.host_;
  const ServiceOptions settings = {inheritance.outside_effects, inheritance.realtime_priority,
                                   inheritance.poison_deaths};
  BATON_RETURN_IF_ERROR(
      DescribeQueues(inheritance, inheritance.driver_wake, settings, &table.queues_, &host.queues));
  table.wakes_.assign(inheritance.wakes.begin(), inheritance.wakes.end());
  host.wakes = table.wakes_.data();
  host.worker_count = static_cast<uint32_t>(table.wakes_.size());
  host.worker_id = inheritance.worker_id;
  host.slot = inheritance.slot;
  host.session = inheritance.session;
  host.presence = inheritance.presence;
  host.native_version = BATON_NATIVE_VERSION;
  return table;
}

}  // namespace baton::driver_process
