// Decides whether a descriptor that a worker passed may be held for the worker's successors.
#ifndef SUPERVISOR_KEEPER_SESSIONS_HOLDABLE_H_
#define SUPERVISOR_KEEPER_SESSIONS_HOLDABLE_H_

#include <sys/types.h>

#include <istream>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace baton::keeper {

struct MountedAt {
  std::string type;    // of the file system: "ext4"
  std::string device;  // "254:0"
};
// Finds a mount by its number in what /proc/PID/mountinfo says (proc(5)). Reads 1 MiB at most.
std::optional<MountedAt> FindMount(std::istream& mountinfo, int mount);

// Accepts memfds, and regular files of file systems that this machine's kernel serves by itself. No
// close of such a file waits for another process or another machine, in this process, in the driver
// or at their end: a close of a FUSE or NFS file does, and so does fstat(2). So the file system is
// found out first, and the file is not asked.
//
// `sender`: the process that passed the descriptor, whose mounts may not be ours.
// kInvalidArgument: why it is refused.
absl::Status CheckHoldable(int descriptor, pid_t sender);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_SESSIONS_HOLDABLE_H_
