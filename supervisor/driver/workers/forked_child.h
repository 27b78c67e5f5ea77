// The first steps of processes that `baton-driver` forks: native workers and brokers.
// native_workers.md has what such a process is given, and what it can reach.
#ifndef SUPERVISOR_DRIVER_WORKERS_FORKED_CHILD_H_
#define SUPERVISOR_DRIVER_WORKERS_FORKED_CHILD_H_

#include <sys/types.h>

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/verbs.h"
#include "supervisor/driver/workers/confine.h"

namespace baton::driver_process {

struct ForkedChild {
  pid_t pid = 0;
  FileDescriptor pidfd;
};
// Forks, and returns twice, as fork(2) does: in the child `pid` is 0. kFailedPrecondition: this
// process has more than one thread, so a lock could stay held for ever in the child.
absl::StatusOr<ForkedChild> Fork();
// Forks. The child runs `run`, which must not return.
absl::StatusOr<ForkedChild> ForkChild(const std::function<void()>& run);

// The child calls both, in this order. BeginChild() gives it a process group, a name, an ordinary
// score for when memory is short, and the signals that a program starts with.
void BeginChild(const char* name);

struct ChildPlan {
  arena::Arena* arena = nullptr;
  verbs::Device* device = nullptr;
  // The child keeps these, the device's, standard error and `lifeline`. It ignores -1.
  std::vector<int> descriptors;
  int lifeline = -1;  // reading end (lifeline.h)
  Identity identity;
};
// Takes everything else from the child, for good, and ties it to the lifeline, whose number it
// returns. If nobody holds that any more, the child ends here.
absl::StatusOr<int> ConfineChild(const ChildPlan& plan);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_WORKERS_FORKED_CHILD_H_
