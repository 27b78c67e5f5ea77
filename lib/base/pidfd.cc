#include "lib/base/pidfd.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "lib/base/errno_status.h"

namespace baton {

absl::StatusOr<FileDescriptor> OpenPidfd(pid_t process) {
  FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  if (!pidfd) return ErrnoStatus(errno, "pidfd_open (see RLIMIT_NOFILE)");
  return pidfd;
}

bool SendSignal(int pidfd, int signal) {
  return syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0;
}

}  // namespace baton
