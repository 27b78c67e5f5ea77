// The robust lock by which the service's driver learns at once that a worker's thread has died.
#ifndef WORKER_THREAD_LOCK_H_
#define WORKER_THREAD_LOCK_H_

#include <sys/types.h>

#include "absl/status/status.h"
#include "lib/arena/layout.h"

namespace baton {

// Held from Acquire to destruction. Only the thread that called Acquire can unlock it: if another
// thread destroys the object, the lock stays held until the first thread ends.
class ThreadLock {
 public:
  explicit ThreadLock(arena::ThreadLock* place) : place_(place) {}
  ThreadLock(const ThreadLock&) = delete;
  ThreadLock& operator=(const ThreadLock&) = delete;
  ~ThreadLock();

  absl::Status Acquire();
  // Keeps the lock held until its thread ends, also when this object is destroyed.
  void Keep() { holder_ = 0; }

 private:
  arena::ThreadLock* place_;
  pid_t holder_ = 0;  // thread; 0: not held
};

}  // namespace baton

#endif  // WORKER_THREAD_LOCK_H_
