// Drops control's rights before it listens. Control parses bytes from the network, and needs little
// of the system for that.
#ifndef SUPERVISOR_CONTROL_SANDBOX_H_
#define SUPERVISOR_CONTROL_SANDBOX_H_

#include "absl/status/status.h"

namespace baton {

// Gives up, for good, every capability, and every system call but those on a list (sandbox.cc). The
// process can then start no program, signal or look into no other process, and touch no namespace,
// mount, module or key. It can make UNIX, IP and netlink sockets only. Other calls fail like calls
// that the kernel does not have, so a newer C library falls back on older ones. The limits apply to
// every thread that is started later; call it while there is one thread.
//
// A program under a sanitizer keeps all system calls: the sanitizer's runtime makes its own.
absl::Status EnterSandbox();

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_SANDBOX_H_
