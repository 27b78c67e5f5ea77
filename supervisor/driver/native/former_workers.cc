#include "supervisor/driver/native/former_workers.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "lib/base/status_text.h"
#include "spdlog/spdlog.h"

namespace baton::driver_process {
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
