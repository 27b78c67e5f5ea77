// Who has a port, for the message of a Listen that was refused.
#ifndef LIB_VERBS_PORT_OWNER_H_
#define LIB_VERBS_PORT_OWNER_H_

#include "absl/status/status.h"

namespace baton::verbs {

// `refused` by Device::Listen, with what this network namespace tells of the owner in its message:
// its name and pid, or why they cannot be told. Any other status as it is.
//
// It asks the kernel for sockets and looks through /proc for their process: some milliseconds, so
// nothing for a thread that drives queues. Thread-safe.
absl::Status NamePortOwner(const absl::Status& refused);

}  // namespace baton::verbs

#endif  // LIB_VERBS_PORT_OWNER_H_
