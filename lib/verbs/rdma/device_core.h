// What the objects of one rdma device share.
#ifndef LIB_VERBS_RDMA_DEVICE_CORE_H_
#define LIB_VERBS_RDMA_DEVICE_CORE_H_

#include <cstdint>
#include <deque>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/rdma/objects.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

class RdmaCompletionQueue;
class RdmaQueuePair;

struct DeviceCore {
  // Watches `fd`, without blocking reads of it, for Device::event_fd.
  absl::Status Watch(int fd);
  void Unwatch(int fd);

  // An event that no channel of the library will give.
  void PushEvent(CmEvent event);
  bool TakePushed(CmEvent* event);
  void ForgetEventsOf(const ConnectionId* id);

  // Ours alone, not librdmacm's: asynchronous events come to their own device.
  VerbsContext context;
  ProtectionDomain domain;
  EventChannel event_channel;
  FileDescriptor epoll;
  FileDescriptor pushed_signal;  // readable while `pushed` is not empty
  std::deque<CmEvent> pushed;
  // For what fails, never for what succeeds.
  absl::flat_hash_map<uint32_t, RdmaQueuePair*> queue_pairs;  // by number
  absl::flat_hash_set<RdmaCompletionQueue*> completion_queues;
  bool look = true;  // somebody may sleep or have slept: look at the channels in the next turn
  uint8_t port = 1;
  uint8_t max_responder_resources = 0;
  uint8_t max_initiator_depth = 0;
  int resolve_timeout_ms = 0;
};

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_DEVICE_CORE_H_
