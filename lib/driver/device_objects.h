// DeviceObjects are the device's objects of a service, with the grants that let peers access its
// buffers. They outlive the driver that uses them: a successor needs only them and the arena.
#ifndef LIB_DRIVER_DEVICE_OBJECTS_H_
#define LIB_DRIVER_DEVICE_OBJECTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

struct ObjectCounts {
  uint32_t queue_pairs = 0;
  uint32_t completion_queues = 0;
  uint32_t shared_receive_queues = 0;
  uint32_t memory_regions = 0;
};

// A range of the buffers that peers may access, or a region's range of a memfd. `access`:
// verbs::Access.
struct GrantRange {
  uint64_t offset = 0;
  uint64_t length = 0;
  uint32_t access = 0;
  // A region has the number of its held descriptor, and a duplicate of it until it is registered.
  uint64_t descriptor = 0;  // 0: the range is of the buffers
  std::shared_ptr<const FileDescriptor> memfd = nullptr;
};

// Indexed by shard or connection. The order of members matters: queue pairs are destroyed before
// their completion queues.
struct DeviceObjects {
  struct Connection {
    std::unique_ptr<verbs::QueuePair> queue_pair;
    std::unique_ptr<verbs::ConnectionId> id;  // destroyed before its queue pair
  };
  struct Listener {
    std::unique_ptr<verbs::Listener> listener;
    verbs::Address asked;
  };

  // A place for a grant or a region: free, reserved, or with a registration of its own.
  struct Grant {
    std::unique_ptr<verbs::MemoryRegion> region;
    // True from the reservation until the range is registered, and from the revocation until it is
    // deregistered. Meanwhile nobody else may use the place.
    bool is_changing = false;
    GrantRange range;  // set by the reservation

    bool is_free() const { return region == nullptr && !is_changing; }
  };

  // Returns the listener that was requested with this address or has it, or nullptr.
  const verbs::Listener* FindListener(const verbs::Address& address) const;
  std::vector<verbs::Address> ListenAddresses() const;
  // Ends the listener that FindListener returns for `address`, if there is one. Peers that have
  // asked for a connection and were not reported yet are rejected. Established connections go on.
  void StopListening(const verbs::Address& address);
  ObjectCounts Count() const;
  // Returns a free one of the `count` grants from `first` on, which has this range from now on, or
  // nothing. A number that was just given back is the last to be given again: who still believes in
  // it must not meet another's grant. `next`: next_grant or next_region.
  std::optional<uint32_t> Reserve(uint32_t first, uint32_t count, uint32_t* next,
                                  const GrantRange& range);
  // Returns the shard that takes its receives from `queue`, or kNoShard.
  uint32_t ShardOf(const verbs::SharedReceiveQueue* queue) const;
  static constexpr uint32_t kNoShard = ~0u;
  verbs::QueuePairOptions QueuePairOptionsOf(const arena::Shape& shape, uint32_t shard) const;

  // The drivers of shards are processes that were forked from the one that has made these objects,
  // so they can make and destroy none.
  bool has_forked_drivers = false;
  std::unique_ptr<verbs::MemoryRegion> buffers;
  std::unique_ptr<verbs::MemoryRegion> spares;
  std::vector<std::unique_ptr<verbs::CompletionQueue>> completion_queues;
  std::vector<std::unique_ptr<verbs::SharedReceiveQueue>> shared_receive_queues;  // or none
  std::vector<Connection> connections;
  std::vector<Listener> listeners;
  std::vector<Grant> grants;  // regions lie behind the grants, at arena::GrantOfRegion()
  uint32_t next_grant = 0;    // where Reserve begins to look
  uint32_t next_region = 0;   // likewise; counted from 0
};

// Registers the buffers and creates each shard's completion queue and shared receives. Stores the
// device's limits in the arena and initialises its logs. An error names what the device lacks.
// `has_forked_drivers`: see DeviceObjects.
absl::StatusOr<std::shared_ptr<DeviceObjects>> CreateDeviceObjects(arena::Arena* arena,
                                                                   verbs::Device* device,
                                                                   bool has_forked_drivers);

// Listens at `address` and returns the listener's own. Idempotent: a second call with the same
// `address` returns the same result.
absl::StatusOr<verbs::Address> ListenOnce(verbs::Device* device, DeviceObjects* objects,
                                          const verbs::Address& address);

// A grant is remote access to a range of a service's buffers. It is a memory region of the device
// and a GrantRecord in the arena.
//
// Registering and deregistering take time for each page, so both have three steps. The middle step
// may run on another thread (Device::registers_on_any_thread). The grant's place is reserved from
// the first step to the last. The record has the grant's range all that time, so that no heap gives
// its memory to anybody before the device has the region, or after it may have it.
//
// A region (regions.h) has the same steps but the first, and a RegionRecord.
//
// The driver's thread calls everything except RegisterRange.

// First step: returns the place of a new grant of [offset, offset + length) of the buffers.
// `access`: verbs::Access.
absl::StatusOr<uint32_t> ReserveGrant(const arena::Arena& arena, const verbs::Device& device,
                                      DeviceObjects* objects, uint64_t offset, uint64_t length,
                                      uint32_t access);
// Returns the range of a reserved grant, and takes the memfd out of it.
GrantRange TakeRange(DeviceObjects* objects, uint32_t grant);
// Middle step: registers a range that TakeRange() has returned.
absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> RegisterRange(const arena::Arena& arena,
                                                                   verbs::Device* device,
                                                                   const GrantRange& range);
// Last step. If `region` is an error, frees the place and returns the error.
absl::Status FinishGrant(const arena::Arena& arena, DeviceObjects* objects, uint32_t grant,
                         absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> region);
// The middle and the last step.
absl::Status RegisterGrant(const arena::Arena& arena, verbs::Device* device, DeviceObjects* objects,
                           uint32_t grant);

// Returns the registration, which the caller destroys before FinishRevoke. kNotFound: there is no
// such grant. kUnavailable: it is being registered or revoked. kFailedPrecondition: committed work
// requests that name the region have not completed.
absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> BeginRevoke(const arena::Arena& arena,
                                                                 DeviceObjects* objects,
                                                                 uint32_t grant);
void FinishRevoke(const arena::Arena& arena, DeviceObjects* objects, uint32_t grant);
// All three steps.
absl::Status RevokeGrant(const arena::Arena& arena, DeviceObjects* objects, uint32_t grant);

}  // namespace baton::driver

#endif  // LIB_DRIVER_DEVICE_OBJECTS_H_
