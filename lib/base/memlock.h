// RLIMIT_MEMLOCK: what a process may register with RDMA devices.
#ifndef LIB_BASE_MEMLOCK_H_
#define LIB_BASE_MEMLOCK_H_

#include <cstdint>

#include "absl/status/status.h"

namespace baton {

// To the hard limit: registered memory counts against the soft one (getrlimit(2)).
void RaiseMemlockLimit();

// kResourceExhausted, with the limit, what is needed and what to do, when `bytes` cannot be
// registered. Who may lock whatever he wants (CAP_IPC_LOCK) has no limit.
absl::Status CheckMemlockLimit(uint64_t bytes);

}  // namespace baton

#endif  // LIB_BASE_MEMLOCK_H_
