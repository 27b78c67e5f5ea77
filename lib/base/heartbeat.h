#ifndef LIB_BASE_HEARTBEAT_H_
#define LIB_BASE_HEARTBEAT_H_

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

namespace baton {

// The descriptor by which a child shows batond that it lives. For that child alone.
inline constexpr char kHeartbeatVariable[] = "BATON_HEARTBEAT_FD";

// How often a child of batond shows that it lives, once it is ready.
inline constexpr std::chrono::milliseconds kHeartbeat{1000};

// A sign of life says what batond does if no other sign follows it.
enum class AfterLastSign : char {
  kAsBefore = 0,  // what an earlier sign said or, without any, the configuration
  kReport = 1,
  kRestart = 2,
};

// Shows it: by a byte in a pipe, whose descriptor batond has named, and which it looks into now and
// then. Waits for nothing. Nobody looking is no error. From one thread.
inline void ShowLife(AfterLastSign then = AfterLastSign::kAsBefore) {
  static const int pipe = [] {
    const char* const text = std::getenv(kHeartbeatVariable);
    const int fd = text == nullptr ? -1 : std::atoi(text);
    if (fd >= 0) (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
  }();
  const char sign = static_cast<char>(then);
  if (pipe >= 0) (void)!write(pipe, &sign, 1);
}

}  // namespace baton

#endif  // LIB_BASE_HEARTBEAT_H_
