// Processes by their pidfd, which never becomes another process's (pidfd_open(2)).
#ifndef LIB_BASE_PIDFD_H_
#define LIB_BASE_PIDFD_H_

#include <sys/types.h>

#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton {

// The id may be another process's by the time of the call, unless it is that of a child of this
// process that is not reaped yet.
absl::StatusOr<FileDescriptor> OpenPidfd(pid_t process);

// Returns false, with errno, if the process is gone or may not be signalled. The caller may pass
// any descriptor: one that is no pidfd is an error.
bool SendSignal(int pidfd, int signal);

}  // namespace baton

#endif  // LIB_BASE_PIDFD_H_
