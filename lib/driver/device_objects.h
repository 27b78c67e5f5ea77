// The device's objects of a service, by the index of their shard or connection. They outlive the
// driver that uses them: with the arena they are all that its successor needs.
#ifndef LIB_DRIVER_DEVICE_OBJECTS_H_
#define LIB_DRIVER_DEVICE_OBJECTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

struct ObjectCounts {
  uint32_t queue_pairs = 0;
  uint32_t completion_queues = 0;
  uint32_t shared_receive_queues = 0;
  uint32_t memory_regions = 0;
};

// Destroyed from the last member to the first: completion queues after what uses them.
struct DeviceObjects {
  struct Connection {
    std::unique_ptr<verbs::QueuePair> queue_pair;
    std::unique_ptr<verbs::ConnectionId> id;  // destroyed before its queue pair
  };
  struct Listener {
    std::unique_ptr<verbs::Listener> listener;
    verbs::Address asked;
  };

  // A place for a grant: free, reserved, or with a region of its own.
  struct Grant {
    std::unique_ptr<verbs::MemoryRegion> region;
    // From its reservation until it is registered, and from its revocation until the device has it
    // no more. It is nobody else's then.
    bool is_changing = false;
    // The reservation sets these.
    uint64_t offset = 0;
    uint64_t length = 0;
    uint32_t access = 0;

    bool is_free() const { return region == nullptr && !is_changing; }
  };

  // That was asked for with this address, or has it; nullptr: there is none.
  const verbs::Listener* FindListener(const verbs::Address& address) const;
  std::vector<verbs::Address> ListenAddresses() const;
  ObjectCounts Count() const;

  std::unique_ptr<verbs::MemoryRegion> buffers;
  std::unique_ptr<verbs::MemoryRegion> spares;
  std::vector<std::unique_ptr<verbs::CompletionQueue>> completion_queues;
  std::vector<std::unique_ptr<verbs::SharedReceiveQueue>> shared_receive_queues;  // or none
  std::vector<Connection> connections;
  std::vector<Listener> listeners;
  std::vector<Grant> grants;
  // The connection manager gives an event once. It is kept here until it has had its effect.
  bool has_event = false;
  verbs::CmEvent event;
  // So does the device.
  bool has_device_event = false;
  verbs::DeviceEvent device_event;
};

// Registers the buffers, and creates a completion queue for each shard and its shared receives;
// says in the arena what the device does, and empties the logs of a new one. An error names what
// the device has not got.
absl::StatusOr<std::shared_ptr<DeviceObjects>> CreateDeviceObjects(arena::Arena* arena,
                                                                   verbs::Device* device);

// Idempotent: returns the address of the listener that was asked for with the same one before.
absl::StatusOr<verbs::Address> ListenOnce(verbs::Device* device, DeviceObjects* objects,
                                          const verbs::Address& address);

}  // namespace baton::driver

#endif  // LIB_DRIVER_DEVICE_OBJECTS_H_
