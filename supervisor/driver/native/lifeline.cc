#include "supervisor/driver/native/lifeline.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "spdlog/spdlog.h"

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

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPause{10};

// flock has no time limit, so this tries again and again.
absl::StatusOr<FileDescriptor> Lock(const std::string& path, std::chrono::milliseconds patience) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return ErrnoStatus(errno, path);
  const Clock::time_point end = Clock::now() + patience;
  while (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return ErrnoStatus(errno, absl::StrCat("flock of ", path));
    }
    if (Clock::now() >= end) {
      return absl::DeadlineExceededError(
          absl::StrCat("processes of its former driver still live ", patience.count(),
                       " ms after the driver's end: they are workers, or were forked by workers, "
                       "and hold ",
                       path, " (`fuser ", path, "` names them, beside a driver that waits)"));
    }
    std::this_thread::sleep_for(kPause);
  }
  return file;
}

}  // namespace

absl::StatusOr<FileDescriptor> FollowFormerWorkers(const std::string& path, Survivors survivors,
                                                   std::chrono::milliseconds patience) {
  absl::StatusOr<FileDescriptor> file = Lock(path, patience);
  if (!absl::IsDeadlineExceeded(file.status()) || survivors == Survivors::kAreAnError) return file;
  spdlog::warn("the service starts all the same: {}", MessageOf(file.status()));
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, path);
  return Lock(path, patience);
}

}  // namespace baton::driver_process
