// What the client of the benchmark and its servers say to each other, in messages of 64 bytes. Each
// request has one reply, and replies come in the order of their requests.
#ifndef TESTS_BENCH_PROTOCOL_H_
#define TESTS_BENCH_PROTOCOL_H_

#include <cstddef>
#include <cstdint>

namespace baton::bench {

enum class Op : uint32_t {
  kEcho = 1,
  // The server writes into the client's memory, and replies with how long that took.
  kWrite = 2,
  // The same as kEcho; a server that polls sleeps from then on until the next request.
  kRest = 3,
  // As kWrite: it reads from the client's memory, or adds 1 to the 8 bytes there.
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

}  // namespace baton::bench

#endif  // TESTS_BENCH_PROTOCOL_H_
