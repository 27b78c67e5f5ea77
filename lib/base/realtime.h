#ifndef LIB_BASE_REALTIME_H_
#define LIB_BASE_REALTIME_H_

#include "absl/status/status.h"

namespace baton {

// Makes the calling thread, but no thread or process that it starts, run before all ordinary ones
// (SCHED_RR at `priority`, 1 to 99). kPermissionDenied names what is needed.
absl::Status UseRealtimePriority(int priority);

}  // namespace baton

#endif  // LIB_BASE_REALTIME_H_
