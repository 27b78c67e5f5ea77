// The DeviceCore is the state that the objects of one rdma device share.
#ifndef LIB_VERBS_RDMA_DEVICE_CORE_H_
#define LIB_VERBS_RDMA_DEVICE_CORE_H_

#include <sys/timerfd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/verbs/rdma/cm_id.h"
#include "lib/verbs/rdma/objects.h"
#include "lib/verbs/rdma/provider.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

// Objects that wait for something, each for the same time at most, with one descriptor for all.
template <typename Object>
class TimeoutQueue {
 public:
  // Makes a new timer and removes all objects.
  absl::Status Open(uint32_t timeout_ms) {
    waiting_.clear();
    timeout_ms_ = timeout_ms;
    timer_.Reset(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    return timer_ ? absl::OkStatus() : ErrnoStatus(errno, "timerfd_create (see RLIMIT_NOFILE)");
  }

  void Add(Object* object) {  // begins to wait now
    waiting_.push_back({MonotonicNanoseconds() + timeout_ms_ * uint64_t{1'000'000}, object});
    if (waiting_.size() == 1) Arm();
  }
  void Remove(const Object* object) {  // if it waits
    const auto is_it = [object](const Waiting& one) { return one.object == object; };
    if (std::erase_if(waiting_, is_it) > 0) Arm();
  }
  // Removes and returns an object that has waited long enough. nullptr: there is none.
  Object* TakeExpired() {
    if (waiting_.empty() || MonotonicNanoseconds() < waiting_.front().deadline_ns) return nullptr;
    Object* const expired = waiting_.front().object;
    waiting_.pop_front();
    Arm();
    return expired;
  }

  int fd() const { return timer_.get(); }  // readable when an object may have expired
  uint32_t timeout_ms() const { return timeout_ms_; }

 private:
  struct Waiting {
    uint64_t deadline_ns;
    Object* object;
  };

  // Sets the timer for the first object, or stops it if there is none.
  void Arm() {
    itimerspec when = {};
    if (!waiting_.empty()) {
      const uint64_t deadline = waiting_.front().deadline_ns;
      when.it_value = {static_cast<time_t>(deadline / 1'000'000'000),
                       static_cast<long>(deadline % 1'000'000'000)};
    }
    (void)timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
  }

  FileDescriptor timer_;
  uint32_t timeout_ms_ = 0;
  std::deque<Waiting> waiting_;  // by deadline
};

class RdmaCompletionQueue;
class RdmaConnectionId;
class RdmaQueuePair;

// Shared by the opener and all processes that were forked from it.
struct ProcessesRecord {
  std::atomic<uint32_t> forked = 0;  // not 0: a process was forked
};

struct DeviceCore {
  // The most events that are taken from the kernel before the user takes them. The rest waits in
  // the kernel.
  static constexpr size_t kMaxDeviceEvents = 64;

  // Makes `fd` nonblocking and watches it for Device::event_fd.
  absl::Status Watch(int fd);
  void Unwatch(int fd);

  // Queues an event that no channel of the library reports.
  void PushEvent(CmEvent event);
  bool TakePushed(CmEvent* event);
  void ForgetEventsOf(const ConnectionId* id);

  void PushDeviceEvent(DeviceEvent event);
  // Every connection gets this event, so it is queued only once until the user has taken it.
  void PushAddressChange(const char* what);
  bool TakeDeviceEvent(DeviceEvent* event);
  bool HasRoomForDeviceEvents() const { return device_events.size() < kMaxDeviceEvents; }
  // Drops the events of a queue that is being destroyed.
  void ForgetEventsOf(const SharedReceiveQueue* queue);

  // The last receive is that of a queue pair in the error state that may still hold a shared
  // receive. The wait for it ends when the provider reports it, or when its time is over.
  void ForgetLastReceive(const RdmaQueuePair* queue_pair);
  void EndWaitsForLastReceives();

  // Marks the device as lost. Reports kDeviceLost once, however often it is called.
  void Lose(const std::string& why);

  // Returns kFailedPrecondition in a forked process, because only the opener may make this call.
  absl::Status CheckOpener(const char* call) const;
  // Opens the descriptors that belong to this process alone: epoll, timer and eventfd.
  absl::Status OpenSignals();
  // Queues whose notifications another process may have taken cannot be destroyed: ibv_destroy_cq
  // waits until this process has acknowledged all that the kernel gave to any process.
  bool MayDestroyQueues() const { return !leaves_objects() && processes->forked.load() == 0; }
  // Likewise queue pairs and shared receive queues, whose asynchronous events a former opener may
  // have taken and acknowledged.
  bool leaves_objects() const { return forked || followed; }

  bool IsPortDown() const;
  // Destroys the id of a connection once the port is up. Destroying it sends a message to the peer.
  // After a message that it cannot send, Soft-RoCE's connection manager receives nothing any more
  // for any process (Linux 6.1: its queue pair stays in the error state).
  void Dispose(CmId id);
  void OnPortUp() {
    kept_ids.clear();
    cm.LetFormerClose();
  }

  VerbsContext context;
  ProtectionDomain domain;
  CmIds cm;
  FileDescriptor epoll;
  // Requested connections that wait for the peer's answer. The kernel's connection manager would go
  // on requesting for more than a minute (CMA_MAX_CM_RETRIES), and takes no other number.
  TimeoutQueue<RdmaConnectionId> unanswered;
  TimeoutQueue<RdmaQueuePair> awaiting_last_receive;
  FileDescriptor pushed_signal;  // readable while `pushed` or `device_events` is not empty
  std::vector<CmId> kept_ids;    // of connections that ended while the port was down
  std::deque<CmEvent> pushed;
  std::deque<DeviceEvent> device_events;
  bool lost = false;
  // Not used while posting and polling succeed.
  absl::flat_hash_map<uint32_t, RdmaQueuePair*> queue_pairs;  // by number
  absl::flat_hash_set<RdmaCompletionQueue*> completion_queues;
  bool forked = false;    // this process is not the opener
  bool followed = false;  // it was none at first
  const Provider* provider = nullptr;
  SharedPage<ProcessesRecord> processes;
  bool look = true;  // look at the channels in the next turn, as around a sleep
  uint8_t port = 1;
  std::string source;  // the only address that connections use; empty: all of the device's
  unsigned int peer_rights = 0;  // IBV_ACCESS_*, that a queue pair can give its peer
  uint8_t max_responder_resources = 0;
  uint8_t max_initiator_depth = 0;
  uint32_t resolve_timeout_ms = 0;

 private:
  template <typename Event>
  bool Take(std::deque<Event>* events, Event* event);
  template <typename Event, typename Predicate>
  void Forget(std::deque<Event>* events, Predicate predicate);
  void ClearSignal();
};

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_DEVICE_CORE_H_
