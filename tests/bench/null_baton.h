// The whole brokered data path over the null device: an engine in a process of its own, and a
// worker that the caller's thread turns.
#ifndef TESTS_BENCH_NULL_BATON_H_
#define TESTS_BENCH_NULL_BATON_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "worker/worker_impl.h"

namespace baton::bench {

struct NullEngineOptions {
  uint64_t worker_id = 0;  // in slot 0
  uint32_t yield_microseconds = 0;
  bool has_peer = false;  // each SEND is answered
  int processor = -1;     // -1: any
  // All of the buffers are granted to peers and revoked, again and again, for as long as it lives.
  bool grants = false;
};

// The engine is in a process of its own, as a keeper's is, so nothing that it keeps shares a cache
// line with what a worker keeps. Thread-compatible. One at a time, to be started while the process
// has no other thread.
class NullEngine {
 public:
  // Starts an engine for `arena`, which nobody drives yet, with as many peers that want a
  // connection as the arena has room for. `wake`: the engine's end of its socket to the worker.
  static absl::StatusOr<std::unique_ptr<NullEngine>> Start(arena::Arena* arena, FileDescriptor wake,
                                                           const NullEngineOptions& options);
  ~NullEngine();
  NullEngine(const NullEngine&) = delete;

 private:
  NullEngine(pid_t pid, FileDescriptor life) : pid_(pid), life_(std::move(life)) {}

  const pid_t pid_;
  FileDescriptor life_;  // closed, the process ends
};

struct NullBatonOptions {
  uint32_t connections = 1;
  uint32_t queue_depth = 64;
  // How long engine and worker yield before they sleep. With 0 they sleep at once.
  uint32_t yield_microseconds = 1'000'000;
  bool has_peer = false;  // one connection; each SEND of ours is answered
  // The processor of the engine; the worker's is the caller's to choose. -1: any.
  int engine_processor = -1;
  uint64_t buffer_bytes = 1 << 21;
  bool grants = false;  // as NullEngineOptions'
};

// Thread-compatible: the caller's thread is the worker's.
class NullBaton final : private Service {
 public:
  // With all connections established.
  static absl::StatusOr<std::unique_ptr<NullBaton>> Start(const NullBatonOptions& options);
  ~NullBaton() override;

  // One request after the other, from its staging to its completion, in nanoseconds: a WRITE; with
  // a peer a SEND, to its answer.
  absl::Status RoundTrips(uint32_t count, std::vector<uint32_t>* took_ns);
  // The same, one each `interval_us`, from the time when it was due, unless the caller slept longer
  // until then.
  absl::Status PacedRoundTrips(uint32_t count, uint32_t interval_us,
                               std::vector<uint32_t>* took_ns);
  // `count` WRITEs, `batch` in each transaction, over the first `active` connections in turns, at
  // most `window` of them under way. In seconds.
  absl::StatusOr<double> Stream(uint32_t count, uint32_t batch, uint32_t active, uint32_t window);

 private:
  explicit NullBaton(const NullBatonOptions& options) : options_(options) {}

  absl::Status CreateParts();
  absl::Status EstablishAll();
  absl::Status Turn();
  absl::Status StageBatch(uint32_t batch, uint32_t active);
  absl::Status StageMessage();
  absl::Status RoundTrip();

  void OnCompletion(Shard& shard, const Completion& completion) override;
  absl::Status OnAdopt(Shard& shard) override;

  const NullBatonOptions options_;
  std::unique_ptr<NullEngine> engine_;
  FileDescriptor keeper_;  // the other end of the worker's session: nobody answers there
  std::unique_ptr<WorkerImpl> worker_;
  Shard* shard_ = nullptr;
  std::vector<Connection*> connections_;  // established
  uint64_t completed_ = 0;
  uint32_t next_ = 0;  // connection, in turns
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_NULL_BATON_H_
