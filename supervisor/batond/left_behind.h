// Children that wait for a file system, which may not answer: nothing ends such a wait, not even
// SIGKILL.
#ifndef SUPERVISOR_BATOND_LEFT_BEHIND_H_
#define SUPERVISOR_BATOND_LEFT_BEHIND_H_

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace baton {

// Children that were killed and have not died are left behind, so many at most.
inline constexpr size_t kMostLeftBehind = 16;

// Whether another child may be made to wait for `path`. kDeadlineExceeded: one that was left behind
// still waits for it. kResourceExhausted: too many are left behind. Reaps those that have died.
// Never waits. This and the next are for one thread of a process.
absl::Status MayWaitFor(const std::string& path);

// Forks. `run` is the child, and does not return. Its signals stay blocked: a handler of ours would
// write into what it shares with us.
pid_t ForkToWait(const std::function<void()>& run);

// Kills and reaps a child that was to wait for `path`. It is waited for until `timeout`, and left
// behind if it lives then. `pidfd` is the child's, or -1, which is not waited for.
void KillAndReap(pid_t pid, int pidfd, std::chrono::milliseconds timeout, const std::string& path);

// In a child, before it waits: closes all descriptors but `kept`, which is in ascending order. A
// child that never dies would keep locks, lifelines and the device of its parent.
void CloseAllBut(const std::vector<int>& kept);

// Whether `fd` became readable in time.
bool BecomesReadable(int fd, std::chrono::milliseconds timeout);

}  // namespace baton

#endif  // SUPERVISOR_BATOND_LEFT_BEHIND_H_
