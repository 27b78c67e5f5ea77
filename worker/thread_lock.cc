#include "worker/thread_lock.h"

#include <pthread.h>
#include <unistd.h>

#include <cstddef>

#include "lib/base/robust_mutex.h"
#include "lib/base/status.h"

namespace baton {
namespace {

// The kernel knows the lock's word through the thread's robust list, which glibc keeps.
static_assert(sizeof(pthread_mutex_t) <= sizeof(arena::ThreadLock));
static_assert(offsetof(pthread_mutex_t, __data.__lock) == 0);

pthread_mutex_t* MutexAt(arena::ThreadLock* place) {
  return reinterpret_cast<pthread_mutex_t*>(place);
}

}  // namespace

absl::Status ThreadLock::Acquire() {
  int error = InitRobustMutex(MutexAt(place_));
  if (error == 0) error = pthread_mutex_lock(MutexAt(place_));
  if (error != 0) return ErrnoStatus(error, "taking the thread's robust lock");
  holder_ = gettid();
  return absl::OkStatus();
}

ThreadLock::~ThreadLock() {
  if (holder_ == gettid()) pthread_mutex_unlock(MutexAt(place_));
}

}  // namespace baton
