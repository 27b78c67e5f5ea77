#include "supervisor/batond/left_behind.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::vector<pid_t>& LeftBehind() {
  static auto* const left_behind = new std::vector<pid_t>;
  return *left_behind;
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

void KillAndReap(pid_t pid, int pidfd, milliseconds timeout) {
  kill(pid, SIGKILL);
  if (pidfd >= 0) (void)BecomesReadable(pidfd, timeout);
  LeftBehind().push_back(pid);
  ReapLeftBehind();
}

void ReapLeftBehind() {
  std::erase_if(LeftBehind(), [](pid_t pid) { return waitpid(pid, nullptr, WNOHANG) != 0; });
}

}  // namespace baton
