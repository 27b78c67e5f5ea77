// The resources that a service needs of its device. They are checked when the service is created,
// not at its first connection.
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
  bool makes_pools = false;  // of queue pairs, one for each shard
  uint64_t completion_queues = 0;
  uint64_t completion_queue_entries = 0;  // per queue: all that can be outstanding on a shard
  uint64_t send_requests = 0;             // per queue pair, including a recovery's
  uint64_t receive_requests = 0;          // per queue pair, including a recovery's
  uint64_t shared_receive_queues = 0;     // one per shard, or none
  uint64_t shared_receive_requests = 0;   // per queue
  uint64_t scatter_gather = 0;
  uint32_t inline_bytes = 0;  // per send; DeviceLimits has no maximum, see CheckInline
  uint64_t memory_regions = 0;
  uint64_t registered_bytes = 0;  // without grants to peers
};

// `in_advance`: the queue pairs of a brokered service's pools are made at its start, as a native
// service's are.
DeviceNeeds NeedsOf(const arena::Shape& shape, bool in_advance = false);

// kResourceExhausted: names every limit that is too low, the need, and the option to lower.
absl::Status CheckLimits(const DeviceNeeds& needs, const verbs::DeviceLimits& limits,
                         std::string_view device);

// Returns the options for a connection's queue pair, with room for a recovery's requests.
verbs::QueuePairOptions QueuePairOptionsFor(const DeviceNeeds& needs,
                                            verbs::CompletionQueue* queue);

// Checks that the device creates queue pairs with the service's inline_bytes, by creating one that
// completes in `queue` and destroying it. kInvalidArgument names max_inline_bytes.
absl::Status CheckInline(const DeviceNeeds& needs, verbs::Device* device,
                         verbs::CompletionQueue* queue);

}  // namespace baton::driver

#endif  // LIB_DRIVER_DEVICE_NEEDS_H_
