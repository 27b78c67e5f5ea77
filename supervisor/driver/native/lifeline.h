// Ends native workers with their driver, and proves to the next driver that they are gone.
#ifndef SUPERVISOR_DRIVER_NATIVE_LIFELINE_H_
#define SUPERVISOR_DRIVER_NATIVE_LIFELINE_H_

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton::driver_process {

// Native workers end with their driver, which alone has a pipe's writing end, and writes nothing. A
// worker asks for SIGKILL instead of SIGIO (fcntl(2), F_SETSIG), so the kernel kills it, whatever
// it does, when the pipe has no writer left. PR_SET_PDEATHSIG would not do: a driver without rights
// may not signal a worker that runs as another user.

// The worker's process calls both, in this order. OpenOwnEnd() opens the reading end anew, because
// the signal's receiver belongs to the opened file and not to the descriptor. The worker calls it
// before it takes another identity, which could not open the file. Then it calls TieToLifeline().
// kUnavailable: nobody has the writing end any more.
absl::StatusOr<FileDescriptor> OpenOwnEnd(int worker_end);
absl::Status TieToLifeline(int own_end);

// Workers of a former driver end with it, but not in the same moment. Until then they use the
// device's addresses, and may have effects outside of Baton.
//
// A driver locks a file with flock(2), and its workers inherit the descriptor. The kernel drops the
// lock when the last of them is gone, with all of its threads and memory.

// The start fails, or goes on, when former workers outlive the wait.
enum class Survivors {
  kAreAnError,  // the service has outside effects, which only one generation of workers may have
  kAreLogged,
};

// Waits at most `patience` until the former driver's workers have left the lock file `path`.
// Returns the locked descriptor, which the workers of this process inherit. kDeadlineExceeded: some
// survive. With kAreLogged it locks a new file at `path` instead.
absl::StatusOr<FileDescriptor> FollowFormerWorkers(
    const std::string& path, Survivors survivors,
    std::chrono::milliseconds patience = std::chrono::seconds(10));

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_NATIVE_LIFELINE_H_
