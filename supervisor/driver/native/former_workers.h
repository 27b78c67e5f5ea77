// Proves that the workers of a native service's former driver are gone. They end with their driver
// (lifeline.h), but not in the same moment. Until then they use the device's addresses, and may
// have effects outside of Baton.
//
// A driver locks a file with flock(2), and its workers inherit the descriptor. The kernel drops the
// lock when the last of them is gone, with all of its threads and memory.
#ifndef SUPERVISOR_DRIVER_NATIVE_FORMER_WORKERS_H_
#define SUPERVISOR_DRIVER_NATIVE_FORMER_WORKERS_H_

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton::driver_process {

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

#endif  // SUPERVISOR_DRIVER_NATIVE_FORMER_WORKERS_H_
