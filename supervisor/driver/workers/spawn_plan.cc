#include "supervisor/driver/workers/spawn_plan.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/program_start.h"
#include "lib/base/status.h"

namespace baton::driver_process {

SpawnPlan::SpawnPlan() {
  posix_spawn_file_actions_init(&actions_);
  posix_spawnattr_init(&attributes_);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes_, &signals);
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes_, &signals);
  posix_spawnattr_setpgroup(&attributes_, 0);
  Detach(POSIX_SPAWN_SETPGROUP);
}

SpawnPlan::~SpawnPlan() {
  posix_spawn_file_actions_destroy(&actions_);
  posix_spawnattr_destroy(&attributes_);
}

void SpawnPlan::LeaveSession() { Detach(POSIX_SPAWN_SETSID); }

void SpawnPlan::Detach(int how) {
  posix_spawnattr_setflags(
      &attributes_, static_cast<short>(how | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
}

void SpawnPlan::Give(int descriptor, int as) {
  posix_spawn_file_actions_adddup2(&actions_, descriptor, as);
}

void SpawnPlan::Close(int descriptor) { posix_spawn_file_actions_addclose(&actions_, descriptor); }

absl::StatusOr<pid_t> SpawnPlan::Spawn(const std::string& program, std::vector<std::string> words) {
  std::string name = program, executed = program;
  FileDescriptor file;
  if (const int opened = OpenFileOf(program); opened >= 0) {
    name = PlaceOfOpenFile(opened);
    BATON_ASSIGN_OR_RETURN(file, CopyAbove(opened, close_from_));
    Give(file.get(), close_from_);
    // The child's own descriptor, because it may not look at its parent's if that has rights that
    // its executable gave it (ptrace(2), "dumpable").
    executed = OpenFilePath(close_from_++);
  }
  posix_spawn_file_actions_addclosefrom_np(&actions_, close_from_);
  words.insert(words.begin(), name);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  // Nothing that a worker chose takes effect before its identity does.
  char path[] = "PATH=/usr/bin:/bin";
  char* environment[] = {path, nullptr};
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, executed.c_str(), &actions_, &attributes_, arguments.data(), environment);
  if (error != 0) return ErrnoStatus(error, absl::StrCat("cannot run ", name));
  return pid;
}

absl::StatusOr<FileDescriptor> CopyAbove(int descriptor, int given) {
  FileDescriptor copy = CopyOf(descriptor, given + 1);
  if (!copy) return ErrnoStatus(errno, "F_DUPFD_CLOEXEC (see RLIMIT_NOFILE)");
  return copy;
}

std::string ReapProgram(int pidfd) {
  siginfo_t info = {};
  if (waitid(P_PIDFD, static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG) != 0) {
    // A former keeper started it, so only the init process learns how it ended.
    pollfd end = {pidfd, POLLIN, 0};
    return errno == ECHILD && poll(&end, 1, 0) > 0 ? "ended" : "";
  }
  if (info.si_pid == 0) return "";
  if (info.si_code == CLD_EXITED) return absl::StrCat("ended with status ", info.si_status);
  return absl::StrCat("was killed by signal ", info.si_status, " (", strsignal(info.si_status),
                      ")");
}

}  // namespace baton::driver_process
