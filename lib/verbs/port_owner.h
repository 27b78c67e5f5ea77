// Finds the owner of a port, for the message of a refused Listen().
#ifndef LIB_VERBS_PORT_OWNER_H_
#define LIB_VERBS_PORT_OWNER_H_

#include "absl/status/status.h"

namespace baton::verbs {

// Returns the status of a refused Device::Listen with the owner's name and pid in this network
// namespace, or why they are unknown. Returns any other status unchanged.
//
// Queries the kernel for sockets and searches /proc for their process. This takes milliseconds, so
// do not call it on a thread that drives queues. Thread-safe.
absl::Status NamePortOwner(const absl::Status& refused);

}  // namespace baton::verbs

#endif  // LIB_VERBS_PORT_OWNER_H_
