// One connection of the benchmark's server. The same code serves over raw verbs and as a worker of
// Baton; what differs is the Queue.
//
// Thread-compatible.
#ifndef TESTS_BENCH_BENCH_SERVER_H_
#define TESTS_BENCH_BENCH_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/clock.h"
#include "tests/bench/protocol.h"

namespace baton::bench {

// Where a server leaves its work requests. They may be released in batches, and each completes.
// Offsets count from the slab's first byte.
class Queue {
 public:
  virtual ~Queue() = default;
  virtual absl::Status Receive(uint32_t slot, size_t offset, uint32_t length) = 0;
  virtual absl::Status Send(size_t offset, uint32_t length) = 0;
  // kWrite, kRead or kFetchAdd (of 1).
  virtual absl::Status Remote(Op op, size_t offset, uint32_t length, uint64_t remote_address,
                              uint32_t rkey) = 0;
};

class BenchServer {
 public:
  // `slab`, of kSlabBytes, and `queue` outlive it.
  BenchServer(uint8_t* slab, Queue* queue,
              std::function<uint64_t()> nanoseconds = MonotonicNanoseconds);

  // Posts the receives.
  absl::Status Start();
  absl::Status OnReceived(uint32_t slot);
  absl::Status OnSent();
  absl::Status OnRemoteDone();

  // No request is to come soon.
  bool resting() const { return resting_; }

 private:
  absl::Status Reply(const Message& reply);
  absl::Status BeginRemote(const Message& request);
  absl::Status ReleaseOne();
  absl::Status EndRemote();

  uint8_t* const slab_;
  Queue* const queue_;
  const std::function<uint64_t()> nanoseconds_;
  bool resting_ = true;
  uint64_t replies_ = 0;
  uint32_t unsent_ = 0;  // replies without a completion
  // What is under way: of `job_`, of which so many were released and have completed.
  Message job_;
  uint32_t released_ = 0;
  uint32_t done_ = 0;
  uint64_t job_began_ns_ = 0;
  std::vector<uint64_t> released_ns_;  // by number, modulo kMaxRemoteWindow
  std::vector<uint32_t> took_ns_;
};

}  // namespace baton::bench

#endif  // TESTS_BENCH_BENCH_SERVER_H_
