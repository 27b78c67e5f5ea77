#include "supervisor/driver/workers/reap_program.h"

#include <poll.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace baton::driver_process {

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
