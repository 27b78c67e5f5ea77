// The owner of one connection's queues, which answers each message with the bytes that it received.
// Suites compare owners of different kinds: they serve the same peer, and differ in what is between
// the queues and the handler.
#ifndef TESTS_BENCH_QUEUE_OWNER_H_
#define TESTS_BENCH_QUEUE_OWNER_H_

#include <sched.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"

namespace baton::bench {

inline constexpr uint32_t kEchoDepth = 64;  // of the send queue, and of the receive queue
inline constexpr uint32_t kEchoBytes = 64;  // of a message

// Thread-compatible. All functions are called by the thread that made it.
class QueueOwner {
 public:
  virtual ~QueueOwner() = default;

  // The port that it listens at.
  virtual uint16_t port() const = 0;
  // One turn of what makes the connection. Called until established() is true.
  virtual absl::Status Establish() = 0;
  virtual bool established() const = 0;

  // One turn: takes what has completed, at most 64 completions. For each message it posts a receive
  // and the answer. Returns how many completions it took.
  virtual absl::StatusOr<int> Turn() = 0;
  // Looks at the queues, and yields now and then, until Turn() has something to do or kWaitMs are
  // over.
  virtual absl::Status Wait() = 0;
  static constexpr int kWaitMs = 20;

  virtual uint64_t received() const = 0;  // messages
  virtual uint64_t answered() const = 0;  // answers that have completed
};

// A native worker makes so many between two yields (kLooksPerYield in wait_loop.cc).
inline constexpr int kLooks = 4;

// The wait of owners that have no worker library. It is the library's: some looks, a yield, a look
// at the clock, and again. `look` returns whether it has found something, or an error. Ends when it
// has, and after QueueOwner::kWaitMs.
template <typename Look>
absl::Status PollingWait(const Look& look) {
  const uint64_t deadline = MonotonicNanoseconds() + QueueOwner::kWaitMs * uint64_t{1'000'000};
  do {
    for (int i = 0; i < kLooks; ++i) {
      BATON_ASSIGN_OR_RETURN(const bool found, look());
      if (found) return absl::OkStatus();
    }
    sched_yield();
  } while (MonotonicNanoseconds() < deadline);
  return absl::OkStatus();
}

}  // namespace baton::bench

#endif  // TESTS_BENCH_QUEUE_OWNER_H_
