// Opens files of a file system that may not answer. Nothing ends such a wait, not even SIGKILL, so
// child processes wait.
#ifndef SUPERVISOR_BATOND_OPEN_WITHIN_H_
#define SUPERVISOR_BATOND_OPEN_WITHIN_H_

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton {

// At most so many children that were killed and have not died are left behind.
inline constexpr size_t kMostLeftBehind = 16;

// Returns OK if another child may be made to wait for `path`. kDeadlineExceeded: a child that was
// left behind still waits for it. kResourceExhausted: too many are left behind. Reaps those that
// have died. Never waits. One thread of a process calls this and the functions below.
absl::Status MayWaitFor(const std::string& path);

// Forks. The child calls `run`, which must not return. Signals stay blocked in the child: a handler
// of the parent's would write into what both share.
pid_t ForkToWait(const std::function<void()>& run);

// Kills and reaps a child that was to wait for `path`. Waits for its death for `timeout`, and
// leaves it behind if it lives then. `pidfd` is the child's; with -1 there is no wait.
void KillAndReap(pid_t pid, int pidfd, std::chrono::milliseconds timeout, const std::string& path);

// Closes all descriptors but `kept`, which must be in ascending order. A child calls it before it
// waits: otherwise a child that never dies would keep locks, lifelines and the device of its
// parent.
void CloseAllBut(const std::vector<int>& kept);

// Returns whether `fd` became readable in time.
bool BecomesReadable(int fd, std::chrono::milliseconds timeout);

// Short, because batond does nothing else while it waits.
inline constexpr std::chrono::milliseconds kOpenTimeout(500);

// Opens a regular file as open(2) does with `flags`, O_CLOEXEC and `mode`. Never waits for anything
// else at `path`. kFailedPrecondition: `path` is no regular file. kDeadlineExceeded: the file
// system has not answered within `timeout`. open(2) would wait for ever, so a child process opens
// the file, and is then killed. While such a child has not died, OpenWithin refuses `path` at once
// (MayWaitFor).
//
// REQUIRES: the process is single-threaded.
absl::StatusOr<FileDescriptor> OpenWithin(const std::string& path, int flags, mode_t mode = 0,
                                          std::chrono::milliseconds timeout = kOpenTimeout);

}  // namespace baton

#endif  // SUPERVISOR_BATOND_OPEN_WITHIN_H_
