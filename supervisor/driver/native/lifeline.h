// Ends native workers with their driver, which has a pipe's writing end. A worker asks for SIGKILL
// instead of SIGIO (fcntl(2), F_SETSIG), so the kernel kills it, whatever it does, when the pipe
// has no writer left. PR_SET_PDEATHSIG would not do: a driver without rights may not signal a
// worker that runs as another user.
#ifndef SUPERVISOR_DRIVER_NATIVE_LIFELINE_H_
#define SUPERVISOR_DRIVER_NATIVE_LIFELINE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton::driver_process {

// The driver makes the pipe. Only the driver has the writing end, and it writes nothing.

// The worker's process calls both, in this order. OpenOwnEnd() opens the reading end anew, because
// the signal's receiver belongs to the opened file and not to the descriptor. The worker calls it
// before it takes another identity, which could not open the file. Then it calls TieToLifeline().
// kUnavailable: nobody has the writing end any more.
absl::StatusOr<FileDescriptor> OpenOwnEnd(int worker_end);
absl::Status TieToLifeline(int own_end);

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_NATIVE_LIFELINE_H_
