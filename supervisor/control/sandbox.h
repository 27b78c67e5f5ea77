// Drops rights of control before it listens. Control parses bytes from the network, and needs
// little of the system for that.
#ifndef SUPERVISOR_CONTROL_SANDBOX_H_
#define SUPERVISOR_CONTROL_SANDBOX_H_

#include "absl/status/status.h"

namespace baton {

// For good, and for every thread that is started afterwards; call it while there is one. Gives up
// every capability, and every system call but those on a list (sandbox.cc): no program is started,
// no other process is signalled or looked into, no namespace, mount, module or key is touched.
// Calls that are not on the list fail as those do that the kernel does not have, so a newer C
// library falls back on older ones. Sockets are of UNIX, IP and netlink.
//
// A program under a sanitizer, whose runtime makes calls of its own, keeps them.
absl::Status EnterSandbox();

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_SANDBOX_H_
