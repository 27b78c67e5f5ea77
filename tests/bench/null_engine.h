// An engine over the null device in a process of its own, as a keeper is: nothing that it keeps
// shares a cache line with what a worker keeps.
#ifndef TESTS_BENCH_NULL_ENGINE_H_
#define TESTS_BENCH_NULL_ENGINE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"

namespace baton::bench {

struct NullEngineOptions {
  uint64_t worker_id = 0;  // in slot 0
  uint32_t yield_microseconds = 0;
  bool has_peer = false;  // each SEND is answered
  int processor = -1;     // -1: any
  // All of the buffers are granted to peers and revoked, again and again, for as long as it lives.
  bool grants = false;
};

// Thread-compatible. One at a time, to be started while the process has no other thread.
class NullEngine {
 public:
  // Of `arena`, which nobody drives yet, and with as many peers that want a connection as it has
  // room for. `wake`: the engine's end of its socket to the worker.
  static absl::StatusOr<std::unique_ptr<NullEngine>> Start(arena::Arena* arena, FileDescriptor wake,
                                                           const NullEngineOptions& options);
  ~NullEngine();
  NullEngine(const NullEngine&) = delete;

 private:
  NullEngine(pid_t pid, FileDescriptor life) : pid_(pid), life_(std::move(life)) {}

  const pid_t pid_;
  FileDescriptor life_;  // closed, the process ends
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_NULL_ENGINE_H_
