#ifndef SUPERVISOR_CONFIG_SHAPE_H_
#define SUPERVISOR_CONFIG_SHAPE_H_

#include <algorithm>
#include <chrono>

#include "lib/arena/layout.h"
#include "proto/baton/v1/config.pb.h"

namespace baton {

// Returns the bytes of the pages that the service's buffers are to be on; 0: ordinary ones.
constexpr uint64_t PageBytesOf(v1::HugePages pages) {
  switch (pages) {
    case v1::HUGE_PAGES_2_MIB:
      return uint64_t{2} << 20;
    case v1::HUGE_PAGES_1_GIB:
      return uint64_t{1} << 30;
    default:
      return 0;
  }
}

// Returns whether brokers drive the queues. An RDMA device decides it where the service does not
// say so. This supposes that it allows them.
inline bool MayHaveBrokers(const v1::ServiceConfig& config) {
  const bool left_to_device = !config.has_broker_processes() && config.device().has_rdma();
  return config.mode() == v1::BROKERED && (left_to_device || config.broker_processes());
}

// Returns the queue pairs of each shard that are made in advance for brokers, which take memory:
// those of all connections if they are few, and else a shard's share and a quarter more. Where
// queue pairs have a time-wait, there are as many as the share besides, because all connections may
// end at once, and come back at once; and not less than for a hundred short ones a second.
inline uint32_t BrokersQueuePairs(const v1::ServiceConfig& config) {
  constexpr uint32_t kFew = 256;
  const uint32_t shards = std::max(1u, config.shards());
  const uint32_t share = (config.max_connections() + shards - 1) / shards;
  const uint32_t used = std::min(config.max_connections(), std::max(kFew, share + share / 4));
  if (!config.device().has_rdma()) return used;
  return std::clamp(used + share, kFew, arena::kMaxConnections);
}

// Returns the shape of a service's arena. `config` must be complete.
inline arena::Shape ShapeOf(const v1::ServiceConfig& config) {
  arena::Shape shape = {};
  shape.shards = config.shards();
  shape.connections = config.max_connections();
  shape.send_queue_depth = config.send_queue_depth();
  shape.receive_queue_depth = config.receive_queue_depth();
  shape.shared_receive_queue_depth = config.shared_receive_queue_depth();
  shape.connection_state_bytes =
      static_cast<uint32_t>(arena::AlignUp(config.connection_state_bytes(), arena::kLineBytes));
  shape.shard_state_bytes =
      static_cast<uint32_t>(arena::AlignUp(config.shard_state_bytes(), arena::kLineBytes));
  shape.workers = config.max_workers();
  shape.heap_pages = static_cast<uint32_t>(
      arena::AlignUp(config.shard_heap_bytes(), arena::kPageBytes) / arena::kPageBytes);
  shape.buffer_bytes = arena::AlignUp(config.buffer_bytes(), arena::kPageBytes) +
                       shape.shards * arena::HeapBytes(shape);
  if (const uint64_t page = PageBytesOf(config.huge_pages()); page != 0) {
    shape.buffer_bytes = arena::AlignUp(shape.buffer_bytes, page);
  }
  shape.max_inline_bytes = config.max_inline_bytes();
  shape.dump_buffers = config.dump_buffers() ? 1 : 0;
  shape.pooled_queue_pairs =
      config.mode() == v1::NATIVE ? config.native().queue_pairs_per_shard() : 0;
  if (MayHaveBrokers(config)) shape.brokered_queue_pairs = BrokersQueuePairs(config);
  const uint64_t completions = arena::RequiredCompletionEntries(shape);
  // 0 stands for more than the field can hold; ValidateShape refuses it.
  shape.completion_log_entries = completions > UINT32_MAX ? 0 : static_cast<uint32_t>(completions);
  return arena::WithPools(shape);
}

// Time for each GiB of an arena, beyond that of any start. A busy machine with two processors takes
// 3 s to fill a GiB, and 1 s to map a full one.
inline constexpr std::chrono::seconds kStartTimeoutPerGiB{4};

// Returns the time in which a process that fills, registers or maps the arena of `service` has to
// be ready: `base`, and kStartTimeoutPerGiB for each whole GiB. `service` must be complete.
inline std::chrono::milliseconds StartTimeout(const v1::ServiceConfig& service,
                                              std::chrono::milliseconds base) {
  const arena::Shape shape = ShapeOf(service);
  const uint64_t bytes = shape.buffer_bytes + arena::WorkerMemoryMap(shape).total +
                         arena::DriverMemoryMap(shape).total +
                         arena::RecoveryMemoryMap(shape).total;
  return base + kStartTimeoutPerGiB * (bytes >> 30);
}

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_SHAPE_H_
