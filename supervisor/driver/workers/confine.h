// Confines a forked process before it runs a service's code. native_workers.md lists what the
// process keeps.
#ifndef SUPERVISOR_DRIVER_WORKERS_CONFINE_H_
#define SUPERVISOR_DRIVER_WORKERS_CONFINE_H_

#include <sys/types.h>

#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace baton::driver_process {

// Closes all descriptors but `kept` and standard error, to which standard output goes, too;
// standard input, which has the driver's configuration, is /dev/null then. Kept ones that are
// negative are none.
absl::Status KeepOnly(std::vector<int> kept);

// Variables of the environment that were meant for the driver alone.
void ForgetKeepersVariables();

struct Identity {
  std::optional<uid_t> uid;  // that it becomes; it stays who it is
  std::optional<gid_t> gid;
  int realtime_priority = 0;  // that its threads may have at most; 0: none
  bool may_listen = false;    // also at ports below 1024 (CAP_NET_BIND_SERVICE), if it may now
};

// For good, whatever the process executes: takes the identity, without supplementary groups where
// one is given, and gives up every capability but that one.
absl::Status Confine(const Identity& identity);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_WORKERS_CONFINE_H_
