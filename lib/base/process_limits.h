// These functions raise and check what the kernel allows this process: the memory that it registers
// and the priority of its threads, which they count.
#ifndef LIB_BASE_PROCESS_LIMITS_H_
#define LIB_BASE_PROCESS_LIMITS_H_

#include <cstdint>

#include "absl/status/status.h"

namespace baton {

// RLIMIT_MEMLOCK limits the memory that a process may register with RDMA devices. Raises the soft
// limit, against which registered memory counts, to the hard one (getrlimit(2)).
void RaiseMemlockLimit();

// Returns kResourceExhausted, with the limit, the need and the cure, if `bytes` cannot be
// registered. A process with CAP_IPC_LOCK has no limit.
absl::Status CheckMemlockLimit(uint64_t bytes);

// Makes the calling thread, but no thread or process that it starts, run before all ordinary ones
// (SCHED_RR at `priority`, 1 to 99). kPermissionDenied names what is needed.
absl::Status UseRealtimePriority(int priority);

// Returns the number of this process's threads; 0: it cannot be told.
int CountThreads();

}  // namespace baton

#endif  // LIB_BASE_PROCESS_LIMITS_H_
