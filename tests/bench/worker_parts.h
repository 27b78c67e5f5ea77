// What owners that are workers of Baton are made of.
#ifndef TESTS_BENCH_WORKER_PARTS_H_
#define TESTS_BENCH_WORKER_PARTS_H_

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/errno_status.h"
#include "lib/base/file_descriptor.h"
#include "worker/worker.h"

namespace baton::bench {

inline constexpr uint64_t kEchoWorkerId = 1;

inline absl::Status MakeStreams(FileDescriptor* one, FileDescriptor* other) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  one->Reset(pair[0]);
  other->Reset(pair[1]);
  return absl::OkStatus();
}

// A mapping of its own, as a worker has.
inline absl::StatusOr<arena::Arena> AttachTo(const arena::Arena& arena) {
  const auto copy = [](int fd) { return FileDescriptor(dup(fd)); };
  return arena::Arena::Attach(copy(arena.worker_log_fd()), copy(arena.driver_log_fd()),
                              copy(arena.buffers_fd()));
}

// It never sleeps between two messages.
inline WorkerOptions EchoWorkerOptions() {
  WorkerOptions options;
  options.control_stream = false;
  options.yield_microseconds = 1'000'000;
  return options;
}

}  // namespace baton::bench

#endif  // TESTS_BENCH_WORKER_PARTS_H_
