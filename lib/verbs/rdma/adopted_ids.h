// Takes over the connections of a dead process whose rdma_cm file another process has kept open.
//
// librdmacm cannot do it: rdma_migrate_id(3) needs the dead process's memory, into which the
// context of its events points. So this class calls the kernel itself (rdma/rdma_user_cm.h),
// through a file of its own, because the kernel rejects writes to a file that another process has
// opened. It finds the ids by trying each number; the kernel always assigns the lowest free one.
//
// Device memory and queue pairs stay with their drivers. Thread-compatible.
#ifndef LIB_VERBS_RDMA_ADOPTED_IDS_H_
#define LIB_VERBS_RDMA_ADOPTED_IDS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

struct AdoptedId {
  uint32_t number = 0;  // the kernel's
  Address local, peer;  // peer.host is empty: the id has no connection
};

enum class AdoptedEvent : uint8_t { kDisconnected, kDeviceRemoved };

class AdoptedIds {
 public:
  virtual ~AdoptedIds() = default;

  // The file that holds the connections after TakeFrom(). A process that keeps it open keeps the
  // connections when this process dies. Readable while there are events.
  virtual int fd() const = 0;

  // Takes over all ids. Closes listeners and unreported requests, because nobody could answer.
  virtual absl::StatusOr<std::vector<AdoptedId>> TakeFrom(int other_file) = 0;

  struct Event {
    uint32_t number = 0;
    AdoptedEvent kind = AdoptedEvent::kDisconnected;
  };
  // Returns the next event that changes something.
  virtual std::optional<Event> NextEvent() = 0;

  // Asks the kernel, which also knows events that only the dead process had read. nullopt: the
  // kernel does not answer.
  virtual std::optional<bool> IsConnected(uint32_t number) const = 0;
  // Disconnects, or answers the peer's disconnect.
  virtual void Disconnect(uint32_t number) = 0;
  // Destroys the id. If its connection is not over, the peer sees a disconnect.
  virtual void Destroy(uint32_t number) = 0;
};

absl::StatusOr<std::unique_ptr<AdoptedIds>> OpenAdoptedIds();

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_ADOPTED_IDS_H_
