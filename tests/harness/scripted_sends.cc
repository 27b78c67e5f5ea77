#include "tests/harness/scripted_sends.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

namespace {

std::mutex g_mutex;
int g_fd = -1;                                            // guarded by g_mutex
std::deque<baton::harness::ScriptedSends::Step> g_steps;  // likewise

bool TakeStep(int fd, baton::harness::ScriptedSends::Step* step) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (fd != g_fd || g_steps.empty()) return false;
  *step = g_steps.front();
  g_steps.pop_front();
  return true;
}

}  // namespace

extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  msghdr part = *message;
  iovec bytes;
  baton::harness::ScriptedSends::Step step;
  if (TakeStep(fd, &step)) {
    if (step.error != 0) {
      errno = step.error;
      return -1;
    }
    if (step.most_bytes != 0 && part.msg_iovlen == 1) {
      bytes = *part.msg_iov;
      bytes.iov_len = std::min(bytes.iov_len, step.most_bytes);
      part.msg_iov = &bytes;
    }
  }
  return syscall(SYS_sendmsg, fd, &part, flags);
}

namespace baton::harness {

ScriptedSends::ScriptedSends(int fd, std::deque<Step> steps) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_fd = fd;
  g_steps = std::move(steps);
}

ScriptedSends::~ScriptedSends() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_fd = -1;
  g_steps.clear();
}

bool ScriptedSends::done() const {
  const std::lock_guard<std::mutex> lock(g_mutex);
  return g_steps.empty();
}

}  // namespace baton::harness
