// What a service takes of its device, and whether the device has it: found out when the service is
// created, not at its first connection.
#ifndef LIB_DRIVER_DEVICE_NEEDS_H_
#define LIB_DRIVER_DEVICE_NEEDS_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "lib/arena/layout.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

struct DeviceNeeds {
  uint64_t queue_pairs = 0;
  uint64_t completion_queues = 0;
  uint64_t completion_queue_entries = 0;  // of each: all that can be outstanding on a shard
  uint64_t send_requests = 0;             // of each queue pair, with room for a recovery's
  uint64_t receive_requests = 0;          // likewise
  uint64_t shared_receive_queues = 0;     // one for each shard, or none
  uint64_t shared_receive_requests = 0;   // of each
  uint64_t scatter_gather = 0;
  uint32_t inline_bytes = 0;  // of a send; no limit of a device tells, see CheckInline
  uint64_t memory_regions = 0;
  uint64_t registered_bytes = 0;  // before anything is granted to a peer
};

DeviceNeeds NeedsOf(const arena::Shape& shape);

// kResourceExhausted: names every limit that is too low, with what is needed and what to lower.
absl::Status CheckLimits(const DeviceNeeds& needs, const verbs::DeviceLimits& limits,
                         std::string_view device);

// What a connection's is made with: room for what a recovery posts, too.
verbs::QueuePairOptions QueuePairOptionsFor(const DeviceNeeds& needs,
                                            verbs::CompletionQueue* queue);

// Makes a queue pair, completing in `queue`, to see whether the device makes them with the
// service's inline_bytes; it is not kept. kInvalidArgument names max_inline_bytes.
absl::Status CheckInline(const DeviceNeeds& needs, verbs::Device* device,
                         verbs::CompletionQueue* queue);

}  // namespace baton::driver

#endif  // LIB_DRIVER_DEVICE_NEEDS_H_
