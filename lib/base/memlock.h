// RLIMIT_MEMLOCK limits the memory that a process may register with RDMA devices.
#ifndef LIB_BASE_MEMLOCK_H_
#define LIB_BASE_MEMLOCK_H_

#include <cstdint>

#include "absl/status/status.h"

namespace baton {

// Raises the soft limit, against which registered memory counts, to the hard one (getrlimit(2)).
void RaiseMemlockLimit();

// Returns kResourceExhausted, with the limit, the need and the cure, if `bytes` cannot be
// registered. A process with CAP_IPC_LOCK has no limit.
absl::Status CheckMemlockLimit(uint64_t bytes);

}  // namespace baton

#endif  // LIB_BASE_MEMLOCK_H_
