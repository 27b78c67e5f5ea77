#include "lib/driver/device_needs.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status.h"

namespace baton::driver {

DeviceNeeds NeedsOf(const arena::Shape& shape, bool in_advance) {
  DeviceNeeds needs;
  needs.makes_pools = arena::IsNative(shape) || in_advance;
  needs.queue_pairs = needs.makes_pools ? uint64_t{shape.shards} * arena::PooledQueuePairs(shape)
                                        : shape.connections;
  needs.completion_queues = shape.shards;
  needs.completion_queue_entries =
      uint64_t{shape.connections} * (shape.send_queue_depth + arena::ReceiveDepth(shape)) +
      arena::SharedReceiveSlots(shape) + arena::kShardMarkers + arena::kSpares;
  needs.send_requests = uint64_t{shape.send_queue_depth} + arena::kMarkers;
  if (arena::HasSharedReceives(shape)) {
    // Each queue has room for every slot, because receives that a dead driver may have posted do
    // not count as posted.
    needs.shared_receive_queues = shape.shards;
    needs.shared_receive_requests = arena::SharedReceiveSlots(shape);
  } else {
    needs.receive_requests = uint64_t{shape.receive_queue_depth} + arena::kMarkers;
  }
  needs.scatter_gather = arena::kMaxSges;
  needs.inline_bytes = shape.max_inline_bytes;
  needs.memory_regions = 2 + uint64_t{arena::kGrants};  // buffers, spares
  needs.registered_bytes = shape.buffer_bytes + arena::RecoveryMemoryMap(shape).spare_buffers_bytes;
  return needs;
}

absl::Status CheckLimits(const DeviceNeeds& needs, const verbs::DeviceLimits& limits,
                         std::string_view device) {
  const struct {
    uint64_t needed;
    uint64_t most;
    const char* what;
    const char* cure;
  } all[] = {
      {needs.queue_pairs, limits.max_queue_pairs,
       needs.makes_pools ? "queue pairs in the pools of its shards"
                         : "queue pairs, one for each connection",
       needs.makes_pools
           ? "lower native.queue_pairs_per_shard or max_connections, or set broker_processes: false"
           : "lower max_connections"},
      {needs.completion_queues, limits.max_completion_queues,
       "completion queues, one for each shard", "lower shards"},
      {needs.completion_queue_entries, limits.max_completion_queue_entries,
       "entries in each completion queue, for all that its connections and a recovery can have "
       "outstanding",
       "lower max_connections or the queue depths"},
      {needs.send_requests, limits.max_send_requests, "sends outstanding on each queue pair",
       "lower send_queue_depth"},
      {needs.receive_requests, limits.max_receive_requests,
       "receives outstanding on each queue pair", "lower receive_queue_depth"},
      {needs.shared_receive_queues, limits.max_shared_receive_queues,
       "shared receive queues, one for each shard",
       "set shared_receive_queue_depth to 0, or lower shards"},
      {needs.shared_receive_requests, limits.max_shared_receive_requests,
       "receives in each shared receive queue, twice its depth",
       "lower shared_receive_queue_depth"},
      {needs.shared_receive_queues == 0 ? 0 : needs.scatter_gather,
       limits.max_shared_receive_scatter_gather, "scatter-gather entries of a shared receive",
       "set shared_receive_queue_depth to 0, or use another device"},
      {needs.scatter_gather, limits.max_scatter_gather, "scatter-gather entries of a work request",
       "use another device"},
      {needs.memory_regions, limits.max_memory_regions,
       "memory regions, for the buffers and for what is granted to peers", "use another device"},
  };
  std::vector<std::string> problems;
  for (const auto& one : all) {
    if (one.needed <= one.most) continue;
    problems.push_back(
        absl::StrCat(one.needed, " ", one.what, ", of which it has ", one.most, ": ", one.cure));
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("device ", std::string(device),
                                                   " is too small, the service needs ",
                                                   absl::StrJoin(problems, "; ")));
}

verbs::QueuePairOptions QueuePairOptionsFor(const DeviceNeeds& needs,
                                            verbs::CompletionQueue* queue) {
  verbs::QueuePairOptions options;
  options.send_queue = options.receive_queue = queue;
  options.max_send_requests = static_cast<uint32_t>(needs.send_requests);
  options.max_empty_writes = arena::kMarkers;
  options.max_receive_requests = static_cast<uint32_t>(needs.receive_requests);
  options.max_scatter_gather = static_cast<uint32_t>(needs.scatter_gather);
  options.max_inline_data = needs.inline_bytes;
  return options;
}

absl::Status CheckInline(const DeviceNeeds& needs, verbs::Device* device,
                         verbs::CompletionQueue* queue) {
  if (needs.inline_bytes == 0) return absl::OkStatus();
  verbs::QueuePairOptions options = QueuePairOptionsFor(needs, queue);
  options.max_receive_requests = 1;  // also if the service shares receives
  absl::Status refused = device->CreateQueuePair(options).status();
  if (refused.ok()) return refused;
  options.max_inline_data = 0;
  BATON_RETURN_IF_ERROR(device->CreateQueuePair(options).status());  // refused for another reason
  return absl::InvalidArgumentError(absl::StrCat(
      "max_inline_bytes: device ", std::string(device->name()), " makes no queue pairs with ",
      needs.inline_bytes, " bytes inline (", refused.message(), "): lower it"));
}

}  // namespace baton::driver
