// What the peer of the failover bar asks, and what those answer that are killed under it.
#ifndef TESTS_NATIVE_FAILOVER_MESSAGE_H_
#define TESTS_NATIVE_FAILOVER_MESSAGE_H_

#include <time.h>

#include <cstdint>

namespace baton::native {

// A reply is its request with the rest filled in. Times are CLOCK_MONOTONIC's, in ns.
struct FailoverMessage {
  uint64_t sequence = 0;
  uint64_t server = 0;    // pid of who answers
  uint64_t began_ns = 0;  // it had its shard, or the first request to connect
  uint64_t received_ns = 0;
  uint64_t padding[4] = {};
};
static_assert(sizeof(FailoverMessage) == 64);

// Receives that are posted for a connection, which has one message under way.
inline constexpr uint32_t kFailoverReceives = 2;

inline uint64_t FailoverClock() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace baton::native

#endif  // TESTS_NATIVE_FAILOVER_MESSAGE_H_
