#include "supervisor/driver/workers/forked_child.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/memory_shortage.h"
#include "lib/base/process_limits.h"
#include "lib/base/status.h"
#include "supervisor/driver/native/lifeline.h"

namespace baton::driver_process {
namespace {

// Checks that there is one thread: a lock that another held would be held in the child for ever.
absl::Status CheckAlone() {
  const int count = CountThreads();
  if (count == 1) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this driver has ", count, " threads: one that forks must have one"));
}

// Restores the handlers and the mask that a program starts with, except that SIGPIPE stays ignored:
// write(2) fails when the reader of its output has gone.
void ResetSignals() {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction current = {};
    if (sigaction(signal, nullptr, &current) == 0 && current.sa_handler != SIG_DFL) {
      current.sa_handler = SIG_DFL;
      current.sa_flags = 0;
      (void)sigaction(signal, &current, nullptr);
    }
  }
  (void)signal(SIGPIPE, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace

absl::StatusOr<ForkedChild> Fork() {
  BATON_RETURN_IF_ERROR(CheckAlone());
  ForkedChild child;
  // Holds room for the child's pidfd: nobody would reap a child that has none.
  BATON_ASSIGN_OR_RETURN(child.pidfd, OpenPidfd(getpid()));
  child.pid = fork();
  if (child.pid < 0) return ErrnoStatus(errno, "fork (see RLIMIT_NPROC, pids.max)");
  child.pidfd.Reset();  // in both processes
  if (child.pid == 0) return child;
  absl::StatusOr<FileDescriptor> pidfd = OpenPidfd(child.pid);
  // The child stays a zombie: its object's file system may delay its death, and the driver never
  // waits.
  if (!pidfd.ok()) kill(child.pid, SIGKILL);
  BATON_ASSIGN_OR_RETURN(child.pidfd, std::move(pidfd));
  return child;
}

absl::StatusOr<ForkedChild> ForkChild(const std::function<void()>& run) {
  absl::StatusOr<ForkedChild> child = Fork();
  if (!child.ok() || child->pid != 0) return child;
  run();
  _exit(127);
}

void BeginChild(const char* name) {
  (void)setpgid(0, 0);  // see SpawnPlan::LeaveSession
  prctl(PR_SET_NAME, name);
  GoLikeOthersWhenMemoryIsShort();  // another one follows it
  ResetSignals();
}

absl::StatusOr<int> ConfineChild(const ChildPlan& plan) {
  plan.arena->KeepFromChildren();
  BATON_RETURN_IF_ERROR(plan.device->AfterFork());
  BATON_ASSIGN_OR_RETURN(FileDescriptor lifeline, OpenOwnEnd(plan.lifeline));
  std::vector<int> kept = plan.device->ForkedDescriptors();
  kept.insert(kept.end(), plan.descriptors.begin(), plan.descriptors.end());
  kept.push_back(lifeline.get());
  BATON_RETURN_IF_ERROR(KeepOnly(std::move(kept)));
  ForgetKeepersVariables();
  BATON_RETURN_IF_ERROR(Confine(plan.identity));
  const absl::Status tied = TieToLifeline(lifeline.get());
  if (absl::IsUnavailable(tied)) _exit(0);
  BATON_RETURN_IF_ERROR(tied);
  return lifeline.Release();  // stays open as long as the process lives
}

}  // namespace baton::driver_process
