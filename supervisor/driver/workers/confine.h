// Confines a forked process before it runs a service's code. native_workers.md lists what the
// process keeps.
#ifndef SUPERVISOR_DRIVER_WORKERS_CONFINE_H_
#define SUPERVISOR_DRIVER_WORKERS_CONFINE_H_

#include <sys/types.h>

#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace baton::driver_process {

// Closes all descriptors except `kept` and standard error. Ignores negative numbers. Standard
// output goes to standard error, too. /dev/null replaces standard input, which has the driver's
// configuration.
absl::Status KeepOnly(std::vector<int> kept);

// Removes the environment variables that were meant for the driver alone.
void ForgetKeepersVariables();

struct Identity {
  std::optional<uid_t> uid;  // that it becomes; none: it keeps its own
  std::optional<gid_t> gid;
  int realtime_priority = 0;  // the highest that its threads may have; 0: none
  bool may_listen = false;    // keeps CAP_NET_BIND_SERVICE (ports below 1024), if it has it
  bool may_hurry = false;     // keeps CAP_SYS_NICE likewise, where the limit cannot be raised
};

// Takes the identity for good, whatever the process executes later. Drops supplementary groups if
// `uid` or `gid` is given. Gives up every capability except those that `may_listen` and `may_hurry`
// keep.
absl::Status Confine(const Identity& identity);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_WORKERS_CONFINE_H_
