// The sockets that wake workers, and that workers wake the engine with.
#ifndef SUPERVISOR_DRIVER_ENGINE_WORKER_WAKES_H_
#define SUPERVISOR_DRIVER_ENGINE_WORKER_WAKES_H_

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"

namespace baton::driver_process {

// Thread-compatible: the engine's thread.
class WorkerWakes {
 public:
  // `arena` outlives it.
  explicit WorkerWakes(arena::Arena* arena) : arena_(arena), workers_(arena->shape().workers) {}

  // `wake`: the engine's end of the socket of the worker in `slot`.
  void Add(uint32_t slot, FileDescriptor wake);
  void Remove(uint32_t slot);
  // Other processes have the sockets, too, and one of them is the last to close each. So this one
  // never waits in a close, and needs no thread for it.
  void LeaveClosing(bool to_others) { others_close_ = to_others; }

  // Called when the worker has something new. If it sleeps, the next WakeNotified() wakes it.
  void Notify(uint32_t slot) { workers_[slot].notify = any_notified_ = true; }
  void WakeNotified() {
    if (any_notified_) WakeSleepers();
  }
  // Returns the sockets.
  std::vector<int> descriptors() const;
  int descriptor(uint32_t slot) const { return workers_[slot].wake.get(); }  // -1: none
  // These wake also who is said to be awake: somebody may have taken note of the sleep, and woken
  // another one, or nobody.
  void Wake(uint32_t slot) const;
  void WakeAll() const;

  // Fills `entries`, which has room for all workers, with the sockets that wake the engine, for
  // poll(2). Returns their number. Pass the polled entries to TakeSignals() before any other
  // change.
  size_t ListenForSignals(pollfd* entries) const;
  void TakeSignals(const pollfd* entries);

 private:
  struct Worker {
    FileDescriptor wake;
    bool notify = false;  // has something new
    bool deaf = false;    // closed its end of `wake`, or passed descriptors there
  };

  void WakeSleepers();

  arena::Arena* arena_;
  std::vector<Worker> workers_;  // by slot
  bool any_notified_ = false;
  bool others_close_ = false;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_WORKER_WAKES_H_
