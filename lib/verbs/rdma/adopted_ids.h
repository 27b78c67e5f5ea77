// Connections of a process that is dead, whose rdma_cm file somebody else has kept open.
//
// rdma_migrate_id(3) takes an id of this process: librdmacm would need what the dead one had in its
// memory, and takes the context that its events carry for a pointer into it. So this speaks to the
// kernel itself (rdma/rdma_user_cm.h), through a file of its own: the kernel refuses who writes to
// a file that another process has opened. What ids there are it finds by asking for each number:
// the kernel gives the lowest that is free.
//
// Not for device memory or queue pairs: those are their drivers'. Thread-compatible.
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
  Address local, peer;  // peer.host is empty: it is none of a connection
};

enum class AdoptedEvent : uint8_t { kDisconnected, kDeviceRemoved };

class AdoptedIds {
 public:
  virtual ~AdoptedIds() = default;

  // The file, which holds the connections from TakeFrom on: kept open elsewhere, too, it keeps them
  // when this process dies. Readable while there are events.
  virtual int fd() const = 0;

  // Takes all ids over. Listeners are closed: nobody could answer. So are the requests that nobody
  // had been told of.
  virtual absl::StatusOr<std::vector<AdoptedId>> TakeFrom(int other_file) = 0;

  struct Event {
    uint32_t number = 0;
    AdoptedEvent kind = AdoptedEvent::kDisconnected;
  };
  // Those that change nothing are left out.
  virtual std::optional<Event> NextEvent() = 0;

  // By the kernel's word, which also knows of events that died with who was told of them. Nothing:
  // it gives no answer.
  virtual std::optional<bool> IsConnected(uint32_t number) const = 0;
  // Also the answer to who disconnected first.
  virtual void Disconnect(uint32_t number) = 0;
  // Of a connection that is not over, its peer is told.
  virtual void Destroy(uint32_t number) = 0;
};

absl::StatusOr<std::unique_ptr<AdoptedIds>> OpenAdoptedIds();

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_ADOPTED_IDS_H_
