#include "supervisor/nic_check/processes.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/errno_status.h"

namespace baton::nic_check {

absl::StatusOr<pid_t> Fork(const std::function<absl::Status()>& run) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, "fork");
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  _exit(getppid() == parent && run().ok() ? 0 : 1);
}

absl::Status AwaitSuccess(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) return ErrnoStatus(errno, "waitpid");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the forked process has failed (wait status ", status, ")"));
}

absl::Status Kill(pid_t child) {
  int status = 0;
  if (kill(child, SIGKILL) != 0 || waitpid(child, &status, 0) != child) {
    return ErrnoStatus(errno, "cannot kill a driver");
  }
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("a driver had ended by itself (wait status ", status, ")"));
}

void PassTime(uint64_t nanoseconds) {
  const uint64_t end = MonotonicNanoseconds() + nanoseconds;
  while (MonotonicNanoseconds() < end) continue;
}

}  // namespace baton::nic_check
