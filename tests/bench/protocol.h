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
};

struct Message {
  uint64_t sequence = 0;
  uint32_t op = 0;
  // kWrite: so many writes of `size` bytes, `window` of them under way.
  uint32_t size = 0;
  uint32_t count = 0;
  uint32_t window = 0;
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
  uint32_t failed = 0;  // in a reply: the server cannot do this
  // In the reply to kWrite: of all, and of one from its release to its completion.
  uint64_t total_ns = 0;
  uint32_t p50_ns = 0;
  uint32_t p99_ns = 0;
  uint64_t padding = 0;
};
static_assert(sizeof(Message) == 64);

constexpr uint32_t kMaxWriteBytes = 64 * 1024;
constexpr uint32_t kMaxWriteWindow = 16;
constexpr uint32_t kMaxWrites = 100'000;
constexpr uint32_t kMaxEchoWindow = 32;
// Twice the window: a receive is posted again before the reply that lets the client send again.
constexpr uint32_t kSlots = 2 * kMaxEchoWindow;

// Memory of one connection, of either side: messages received, messages sent, and what is written.
constexpr size_t kReceiveOffset = 0;
constexpr size_t kSendOffset = kReceiveOffset + kSlots * sizeof(Message);
constexpr size_t kPayloadOffset = kSendOffset + kSlots * sizeof(Message);
constexpr size_t kSlabBytes = kPayloadOffset + kMaxWriteBytes;

}  // namespace baton::bench

#endif  // TESTS_BENCH_PROTOCOL_H_
