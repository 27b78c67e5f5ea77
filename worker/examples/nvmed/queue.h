// A queue of a host's, with its commands and its deadlines.
#ifndef WORKER_EXAMPLES_NVMED_QUEUE_H_
#define WORKER_EXAMPLES_NVMED_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "worker/examples/nvmed/capsule.h"
#include "worker/examples/nvmed/state.h"
#include "worker/worker.h"

namespace baton::nvmed {

// By when a sign of life has to come. After a stall of this process the sign may be there, unread.
// So the deadline is over only a second after IsOver first saw that it had passed.
class Deadline {
 public:
  Deadline() = default;
  explicit Deadline(uint64_t at) : at_(at) {}  // CLOCK_MONOTONIC, ns

  uint64_t at() const { return at_; }
  bool IsOver(uint64_t now) {
    if (at_ > now) return false;
    if (!std::exchange(seen_, true)) at_ = now + 1'000'000'000;
    return at_ <= now;
  }

 private:
  uint64_t at_ = 0;
  bool seen_ = false;
};

// The time, the deadlines of controllers, and the first of all deadlines. Times are
// CLOCK_MONOTONIC, ns. Thread-compatible.
class Deadlines {
 public:
  // `places`: of the registry.
  Deadlines(uint32_t host_timeout_ms, size_t places)
      : host_timeout_(host_timeout_ms * uint64_t{1'000'000}), keep_alive_(places) {}

  void set_now(uint64_t now) { now_ = now; }
  // Returns when the deadlines have to be checked at the latest.
  uint64_t next() const { return next_; }

  // Takes over the controllers of a shard that was adopted.
  void Adopt(absl::Span<const ControllerState> controllers, uint64_t now) {
    now_ = now;
    for (size_t i = 0; i < controllers.size(); ++i) {
      keep_alive_[i] = Deadline(std::min(controllers[i].deadline, NextSignOfLife(controllers[i])));
    }
    next_ = 0;  // EndTurn looks at all of them
  }
  // There is none until one is set or checked.
  void Forget() { next_ = UINT64_MAX; }

  // Returns by when a host that has just shown a sign of life has to show the next.
  uint64_t NextSignOfLife(const ControllerState& controller) const {
    return now_ + controller.keep_alive_ms * uint64_t{1'000'000};
  }
  // Notes a sign of life of the host of a controller, which has this place in the registry.
  void Hear(const ControllerState& controller, size_t place) {
    if (controller.keep_alive_ms == 0) return;
    keep_alive_[place] = Deadline(NextSignOfLife(controller));
    next_ = std::min(next_, keep_alive_[place].at());
  }
  // Returns the deadline for what a host has to do within host_timeout_ms.
  Deadline HostDeadline() {
    const Deadline deadline(now_ + host_timeout_);
    next_ = std::min(next_, deadline.at());
    return deadline;
  }

  bool IsOver(Deadline& deadline) {
    if (deadline.IsOver(now_)) return true;
    next_ = std::min(next_, deadline.at());
    return false;
  }
  bool IsKeepAliveOver(size_t place) { return IsOver(keep_alive_[place]); }

 private:
  const uint64_t host_timeout_;
  std::vector<Deadline> keep_alive_;  // by place in the registry, which may have older ones
  uint64_t next_ = UINT64_MAX;
  uint64_t now_ = 0;
};

// A queue of a host's, which is a connection.
struct Queue {
  Connection* connection = nullptr;
  uint32_t generation = 0;  // of its connection; another one may have the slot by now
  QueueState state;
  std::vector<PendingCommand> pending;  // by slot
  uint32_t pending_count = 0;
  std::optional<Deadline> connect_by;  // set while it is accepted and not connected
  std::optional<Deadline> sends_by;    // set while a send has not completed
  bool touched = false;                // differs from what is committed

  // Returns whether a command can be answered, with data.
  bool HasRoom() const { return connection->send_room() >= 2 && connection->receive_room() >= 1; }
  // Starts the deadline by which the host has to take something, anew with each thing that it
  // takes. A host that takes no answers would otherwise keep chunks, and blocks that others want to
  // write, for ever.
  void AwaitSends(Deadlines& deadlines) { sends_by = deadlines.HostDeadline(); }
};

// A command from its arrival to its answer.
struct Step {
  Queue& queue;
  uint16_t slot = 0;
  uint32_t bytes = 0;  // of its capsule
  Capsule capsule;
  uint32_t length = 0;  // of its data
};

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_QUEUE_H_
