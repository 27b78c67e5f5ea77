// What the client of the benchmark and its servers say to each other, in messages of 64 bytes. Each
// request has one reply, and replies come in the order of their requests.
#ifndef TESTS_BENCH_BENCH_SERVER_H_
#define TESTS_BENCH_BENCH_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/clock.h"

namespace baton::bench {

enum class Op : uint32_t {
  kEcho = 1,
  // The server writes into the client's memory, and replies with how long that took.
  kWrite = 2,
  // The same as kEcho; a server that polls sleeps from then on until the next request.
  kRest = 3,
  // The reply is the same as to kWrite. The server reads from the client's memory, or adds 1 to the
  // 8 bytes there.
  kRead = 4,
  kFetchAdd = 5,
};

struct Message {
  uint64_t sequence = 0;
  uint32_t op = 0;
  // kWrite, kRead, kFetchAdd: so many of `size` bytes, `window` of them under way.
  uint32_t size = 0;
  uint32_t count = 0;
  uint32_t window = 0;
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
  uint32_t failed = 0;  // in a reply: the server cannot do this
  // In the reply to those: of all, and of one from its release to its completion.
  uint64_t total_ns = 0;
  uint32_t p50_ns = 0;
  uint32_t p99_ns = 0;
  uint32_t p999_ns = 0;
  uint32_t last_byte = 0;  // kRead: of what was read
};
static_assert(sizeof(Message) == 64);

constexpr uint32_t kMaxRemoteBytes = 1024 * 1024;
constexpr uint32_t kAtomicBytes = 8;
constexpr uint32_t kMaxRemoteWindow = 16;
constexpr uint32_t kMaxRemotes = 100'000;
constexpr uint32_t kMaxEchoWindow = 64;
// Twice the window: a receive is posted again before the reply that lets the client send again.
constexpr uint32_t kSlots = 2 * kMaxEchoWindow;

// Memory of one connection, of either side: messages received, messages sent, and what is written
// and read.
constexpr size_t kReceiveOffset = 0;
constexpr size_t kSendOffset = kReceiveOffset + kSlots * sizeof(Message);
constexpr size_t kPayloadOffset = kSendOffset + kSlots * sizeof(Message);
constexpr size_t kSlabBytes = kPayloadOffset + kMaxRemoteBytes;

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

// One connection of the benchmark's server. The same code serves over raw verbs and as a worker of
// Baton; what differs is the Queue.
//
// Thread-compatible.
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
