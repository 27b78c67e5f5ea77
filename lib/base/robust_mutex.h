// A lock in shared memory that the kernel marks when the thread that holds it dies.
#ifndef LIB_BASE_ROBUST_MUTEX_H_
#define LIB_BASE_ROBUST_MUTEX_H_

#include <pthread.h>

namespace baton {

// Makes a robust mutex of processes that share the memory (pthread_mutexattr_setrobust(3)). Returns
// 0, or the errno.
inline int InitRobustMutex(pthread_mutex_t* mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int error = pthread_mutex_init(mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  return error;
}

}  // namespace baton

#endif  // LIB_BASE_ROBUST_MUTEX_H_
