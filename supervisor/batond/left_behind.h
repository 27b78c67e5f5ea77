#ifndef SUPERVISOR_BATOND_LEFT_BEHIND_H_
#define SUPERVISOR_BATOND_LEFT_BEHIND_H_

#include <sys/types.h>

#include <chrono>

namespace baton {

// Kills and reaps a child. The kernel may not let it die as long as it waits for a file system that
// does not answer, so this waits for `timeout` at most; a child that lives then is left behind.
// `pidfd` is the child's, or -1, which is not waited for. Thread-compatible.
void KillAndReap(pid_t pid, int pidfd, std::chrono::milliseconds timeout);

// Reaps those that were left behind and have died since. Never waits.
void ReapLeftBehind();

// Whether `fd` became readable in time.
bool BecomesReadable(int fd, std::chrono::milliseconds timeout);

}  // namespace baton

#endif  // SUPERVISOR_BATOND_LEFT_BEHIND_H_
