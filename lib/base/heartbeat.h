#ifndef LIB_BASE_HEARTBEAT_H_
#define LIB_BASE_HEARTBEAT_H_

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
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

namespace internal {

inline int& Heart() {
  static int pipe = [] {
    const char* const text = std::getenv(kHeartbeatVariable);
    const int fd = text == nullptr ? -1 : std::atoi(text);
    if (fd >= 0) (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
  }();
  return pipe;
}

}  // namespace internal

// Shows it: by a byte in a pipe, whose descriptor batond has named, and which it looks into now and
// then. Waits for nothing. Returns false if the batond that read the pipe is gone; true also where
// there has never been one. Called from one thread. REQUIRES: SIGPIPE is ignored.
inline bool ShowLife(AfterLastSign then = AfterLastSign::kAsBefore) {
  const char sign = static_cast<char>(then);
  const int pipe = internal::Heart();
  return pipe < 0 || write(pipe, &sign, 1) == 1 || errno != EPIPE;
}

// Takes `pipe`, which the next batond reads, in the place of the former one.
inline void SetHeart(int pipe) {
  int& heart = internal::Heart();
  if (heart >= 0) (void)close(heart);
  heart = pipe;
}

}  // namespace baton

#endif  // LIB_BASE_HEARTBEAT_H_
