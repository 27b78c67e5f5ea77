#ifndef LIB_NIC_SERVE_H_
#define LIB_NIC_SERVE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "lib/nic/nic.h"

namespace baton::nic {

// Turns `nic` until its last client has closed its last socket. While there is nothing to do it
// looks at the doorbells for half a microsecond, yields for `yield_microseconds`, and then sleeps
// until a bell or a socket wakes it. Returns an error if it cannot wait.
absl::Status Serve(Nic* nic, uint32_t yield_microseconds);

}  // namespace baton::nic

#endif  // LIB_NIC_SERVE_H_
