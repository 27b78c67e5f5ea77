// Decides whether a descriptor that a worker passed may be held for the worker's successors.
#ifndef LIB_BASE_HOLDABLE_H_
#define LIB_BASE_HOLDABLE_H_

#include <sys/types.h>

#include <istream>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace baton {

struct MountedAt {
  std::string type;    // of the file system: "ext4"
  std::string device;  // "254:0"
};
// Finds a mount by its number in what /proc/PID/mountinfo says (proc(5)). Reads 1 MiB at most.
std::optional<MountedAt> FindMount(std::istream& mountinfo, int mount);

// Accepts memfds, and regular files of file systems that this machine's kernel serves by itself. No
// close of such a file waits for another process or another machine. Each close(2) of a FUSE or NFS
// file may, not only the last one, and also when a process ends; so may fstat(2). So the file
// system is found out first, and the file is not asked.
//
// `sender`: the process that passed the descriptor, whose mounts may not be ours; or this one.
// kInvalidArgument: why it is refused.
absl::Status CheckHoldable(int descriptor, pid_t sender);

}  // namespace baton

#endif  // LIB_BASE_HOLDABLE_H_
