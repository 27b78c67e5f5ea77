#include "supervisor/driver/native/lifeline.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"

namespace baton::driver_process {

absl::StatusOr<FileDescriptor> OpenOwnEnd(int worker_end) {
  const std::string path = absl::StrCat("/proc/self/fd/", worker_end);
  FileDescriptor own(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!own) return ErrnoStatus(errno, absl::StrCat("opening the lifeline (", path, ")"));
  return own;
}

absl::Status TieToLifeline(int own_end) {
  if (fcntl(own_end, F_SETSIG, SIGKILL) != 0 || fcntl(own_end, F_SETOWN, getpid()) != 0 ||
      fcntl(own_end, F_SETFL, O_NONBLOCK | O_ASYNC) != 0) {
    return ErrnoStatus(errno, "tying a worker to its lifeline");
  }
  // If the writing end was closed before the tie was made, no signal comes.
  pollfd entry = {own_end, 0, 0};
  if (poll(&entry, 1, 0) == 1 && (entry.revents & POLLHUP) != 0) {
    return absl::UnavailableError("nobody holds the lifeline of the service any more");
  }
  return absl::OkStatus();
}

}  // namespace baton::driver_process
