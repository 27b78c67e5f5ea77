// Ends native workers with their driver, which has a pipe's writing end. The kernel kills the
// worker whatever the worker does: the worker has asked for SIGKILL instead of SIGIO (fcntl(2),
// F_SETSIG), and the kernel sends that signal when the pipe has no writer left. PR_SET_PDEATHSIG
// would not do: a driver without rights may not signal a worker that runs as another user.
#ifndef SUPERVISOR_DRIVER_NATIVE_LIFELINE_H_
#define SUPERVISOR_DRIVER_NATIVE_LIFELINE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton::driver_process {

// The driver makes the pipe. The writing end is its alone, and nobody writes to it.

// In the worker's process, in this order: an end of its own (the signal's receiver belongs to the
// opened file, not to the descriptor), before it has another identity, under which it could not;
// then, once it has, the tie. kUnavailable: the last holder is gone already.
absl::StatusOr<FileDescriptor> OpenOwnEnd(int worker_end);
absl::Status TieToLifeline(int own_end);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_NATIVE_LIFELINE_H_
