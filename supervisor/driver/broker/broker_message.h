// Messages from `baton-driver` to each broker, about workers. Each is one packet. A broker that
// waits reads them when it takes over.
#ifndef SUPERVISOR_DRIVER_BROKER_BROKER_MESSAGE_H_
#define SUPERVISOR_DRIVER_BROKER_BROKER_MESSAGE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lib/base/file_descriptor.h"

namespace baton::driver_process {

struct BrokerMessage {
  enum class Kind : uint32_t {
    kAddWorker = 1,     // with its wake socket
    kRemoveWorker = 2,  // it is dead
    kWatch = 3,         // see ServiceEngine::WatchWorker
    kForget = 4,
  };
  Kind kind = Kind::kAddWorker;
  uint32_t slot = 0;
  uint64_t worker_id = 0;
  pid_t process = 0;
  uint32_t reserved = 0;
};

static_assert(sizeof(BrokerMessage) == 24);
static_assert(offsetof(BrokerMessage, slot) == 4 && offsetof(BrokerMessage, worker_id) == 8);
static_assert(offsetof(BrokerMessage, process) == 16);

struct ReceivedMessage {
  BrokerMessage message;
  FileDescriptor descriptor;
};
// Takes the next message that nic::SendMessage has sent. Does not wait. Returns nothing if there is
// none.
std::optional<ReceivedMessage> ReceiveMessage(int socket);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_BROKER_BROKER_MESSAGE_H_
