#include "tests/supervisor/keeper/older_kernel.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace baton::keeper::testing {
namespace {

constexpr int kPeerPidfd = 77;  // SO_PEERPIDFD

std::atomic<int> older{0};

}  // namespace

OlderKernel::OlderKernel() { ++older; }
OlderKernel::~OlderKernel() { --older; }

// In the place of libc's.
extern "C" int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept {
  if (older > 0 && level == SOL_SOCKET && name == kPeerPidfd) {
    errno = ENOPROTOOPT;
    return -1;
  }
  return static_cast<int>(syscall(SYS_getsockopt, fd, level, name, value, length));
}

}  // namespace baton::keeper::testing
