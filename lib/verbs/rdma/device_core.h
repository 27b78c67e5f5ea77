// The state that the objects of one rdma device share.
#ifndef LIB_VERBS_RDMA_DEVICE_CORE_H_
#define LIB_VERBS_RDMA_DEVICE_CORE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/rdma/objects.h"
#include "lib/verbs/rdma/provider.h"
#include "lib/verbs/rdma/shared_page.h"
#include "lib/verbs/rdma/timeout_queue.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

class RdmaCompletionQueue;
class RdmaConnectionId;
class RdmaQueuePair;

// Shared by the opener and all processes that were forked from it.
struct ProcessesRecord {
  std::atomic<uint32_t> forked = 0;  // not 0: a process was forked
};

struct DeviceCore {
  // Taken from the kernel ahead of the user; the rest waits there.
  static constexpr size_t kMaxDeviceEvents = 64;

  // Watches `fd`, without blocking reads of it, for Device::event_fd.
  absl::Status Watch(int fd);
  void Unwatch(int fd);

  // An event that no channel of the library will give.
  void PushEvent(CmEvent event);
  bool TakePushed(CmEvent* event);
  void ForgetEventsOf(const ConnectionId* id);

  void PushDeviceEvent(DeviceEvent event);
  // Every connection gets this event. It is queued only once until the user has taken it.
  void PushAddressChange(const char* what);
  bool TakeDeviceEvent(DeviceEvent* event);
  bool HasRoomForDeviceEvents() const { return device_events.size() < kMaxDeviceEvents; }
  // Drops the events of a queue that is being destroyed.
  void ForgetEventsOf(const SharedReceiveQueue* queue);

  // Queue pairs in the error state that may still hold one of their shared receives: told drained
  // by the provider, or when their time is over.
  void ForgetDrain(const RdmaQueuePair* queue_pair);
  void EndDrains();

  // Marks the device as lost. Reports kDeviceLost once, however often it is called.
  void Lose(const std::string& why);

  // Only the process that has opened the device does this.
  absl::Status CheckOpener(const char* call) const;
  // Descriptors and events of this process alone.
  absl::Status OpenSignals();
  // Queues whose notifications another process may have taken cannot be destroyed: ibv_destroy_cq
  // waits until this one has acknowledged all that the kernel gave to anybody.
  bool MayDestroyQueues() const { return !forked && processes->forked.load() == 0; }

  bool IsPortDown() const;
  // Destroys the id of a connection once the port is up. Destroying it sends a message to the peer.
  // After a message that it cannot send, Soft-RoCE's connection manager receives nothing any more
  // for any process (Linux 6.1: its queue pair stays in the error state).
  void Dispose(CmId id);
  void OnPortUp() { kept_ids.clear(); }

  // Ours alone, not librdmacm's: asynchronous events come to their own device.
  VerbsContext context;
  ProtectionDomain domain;
  EventChannel event_channel;
  FileDescriptor epoll;
  // Connections that were asked for and wait for an answer: the kernel's connection manager would
  // ask for more than a minute (CMA_MAX_CM_RETRIES), and takes no other number.
  TimeoutQueue<RdmaConnectionId> unanswered;
  TimeoutQueue<RdmaQueuePair> drains;
  FileDescriptor pushed_signal;  // readable while `pushed` or `device_events` is not empty
  std::vector<CmId> kept_ids;    // of connections that ended while the port was down
  std::deque<CmEvent> pushed;
  std::deque<DeviceEvent> device_events;
  bool lost = false;
  // Used only in error cases.
  absl::flat_hash_map<uint32_t, RdmaQueuePair*> queue_pairs;  // by number
  absl::flat_hash_set<RdmaCompletionQueue*> completion_queues;
  bool forked = false;  // this process is not the opener
  const Provider* provider = nullptr;
  SharedPage<ProcessesRecord> processes;
  bool look = true;  // somebody may sleep or have slept: look at the channels in the next turn
  uint8_t port = 1;
  std::string source;            // the one address of this device; empty: all that it has
  unsigned int peer_rights = 0;  // IBV_ACCESS_*, that a queue pair can give its peer
  uint8_t max_responder_resources = 0;
  uint8_t max_initiator_depth = 0;
  int resolve_timeout_ms = 0;

 private:
  template <typename Event>
  bool Take(std::deque<Event>* events, Event* event);
  template <typename Event, typename Predicate>
  void Forget(std::deque<Event>* events, Predicate predicate);
  void ClearSignal();
};

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_DEVICE_CORE_H_
