#include "supervisor/batond/left_behind.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct Child {
  pid_t pid;
  std::string path;  // the path that it waits for
};

std::vector<Child>& LeftBehind() {
  static auto* const left_behind = new std::vector<Child>;
  return *left_behind;
}

void ReapLeftBehind() {
  std::erase_if(LeftBehind(),
                [](const Child& child) { return waitpid(child.pid, nullptr, WNOHANG) != 0; });
}

}  // namespace

bool BecomesReadable(int fd, milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  pollfd entry = {fd, POLLIN, 0};
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    const int ready = poll(&entry, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

absl::Status MayWaitFor(const std::string& path) {
  ReapLeftBehind();
  for (const Child& child : LeftBehind()) {
    if (child.path != path) continue;
    return absl::DeadlineExceededError(absl::StrCat(
        path, ": process ", child.pid, " still waits for it: does its file system answer?"));
  }
  if (LeftBehind().size() < kMostLeftBehind) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(path, ": ", LeftBehind().size(),
                   " processes wait for file systems that do not answer; the first of them for ",
                   LeftBehind().front().path));
}

pid_t ForkToWait(const std::function<void()>& run) {
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  if (pid == 0) {
    run();
    _exit(127);  // the child must never go on as a second batond
  }
  const int error = errno;
  sigprocmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

void KillAndReap(pid_t pid, int pidfd, milliseconds timeout, const std::string& path) {
  kill(pid, SIGKILL);
  if (pidfd >= 0) (void)BecomesReadable(pidfd, timeout);
  LeftBehind().push_back({pid, path});
  ReapLeftBehind();
}

void CloseAllBut(const std::vector<int>& kept) {
  unsigned int from = 0;
  for (const int descriptor : kept) {
    const auto number = static_cast<unsigned int>(descriptor);
    if (number > from) close_range(from, number - 1, 0);
    from = number + 1;
  }
  close_range(from, ~0u, 0);
}

}  // namespace baton
