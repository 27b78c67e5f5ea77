#ifndef LIB_BASE_HEARTBEAT_H_
#define LIB_BASE_HEARTBEAT_H_

#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "lib/base/file_descriptor.h"
#include "lib/base/program_start.h"

namespace baton {

// The environment variable with the pipe by which a child shows batond that it lives. The child
// does not pass it on.
inline constexpr char kHeartbeatVariable[] = "BATON_HEARTBEAT_FD";

// How often a child of batond shows that it lives, once it is ready.
inline constexpr std::chrono::milliseconds kHeartbeat{1000};

// A sign of life says what batond does if no other sign follows it.
enum class AfterLastSign : char {
  kAsBefore = 0,  // what an earlier sign said or, without any, the configuration
  kReport = 1,
  kRestart = 2,
};
// This bit of a driver's sign says that its keeper hangs. To a batond of the release before such a
// sign is one of life alone.
inline constexpr char kKeeperHangs = 0x10;

namespace internal {

// Never closed, because it is used until the process ends.
inline FileDescriptor& Heart() {
  static FileDescriptor& pipe = *new FileDescriptor(GivenDescriptor(kHeartbeatVariable));
  return pipe;
}

}  // namespace internal

// Shows batond that this process lives, by a byte in the pipe that kHeartbeatVariable names. batond
// reads it now and then. Does not wait. Returns false if the batond that read the pipe is gone, and
// true if there never was one. Call it from one thread. REQUIRES: SIGPIPE is ignored.
inline bool ShowLife(AfterLastSign then = AfterLastSign::kAsBefore, bool keeper_hangs = false) {
  const char sign = static_cast<char>(static_cast<char>(then) | (keeper_hangs ? kKeeperHangs : 0));
  const FileDescriptor& pipe = internal::Heart();
  return !pipe || write(pipe.get(), &sign, 1) == 1 || errno != EPIPE;
}

// Replaces the former pipe by `pipe`, which the next batond reads. Takes ownership of it.
inline void SetHeart(int pipe) { internal::Heart().Reset(pipe); }

}  // namespace baton

#endif  // LIB_BASE_HEARTBEAT_H_
