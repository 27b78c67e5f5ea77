// The connection manager's knowledge of a service's connections. It lies in memory of its own, so
// that a process that follows a dead `baton-driver` goes on with it (ConnectionManager::TakeOver).
#ifndef LIB_NATIVE_CONNECTION_TABLE_H_
#define LIB_NATIVE_CONNECTION_TABLE_H_

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/shared_array.h"
#include "lib/base/status.h"
#include "lib/verbs/verbs.h"

namespace baton::native {

// kAccepted: by this service, or by the peer that it connects to. kUnfreed: the slot is not free
// yet, because its request is still in the log of another shard than its last.
enum class Phase : uint8_t {
  kNone,
  kRequested,
  kAccepting,
  kConnecting,
  kAccepted,
  kEnded,
  kUnfreed,
};

// A worker's request to connect. With a request of 0 it is told apart from no other.
struct Asker {
  uint64_t worker_id = 0;
  uint64_t request = 0;
  bool operator==(const Asker&) const = default;
};

struct ManagedSlot {
  uint32_t generation = 0;
  uint32_t shard = 0;
  uint32_t first_shard = 0;                                         // where it was requested
  verbs::CompletionStatus end = verbs::CompletionStatus::kSuccess;  // as told with kEnded
  uint8_t owed = 0;             // notices that are not in the ring yet: NoticeKind, as bits
  uint64_t established_ns = 0;  // 0: not yet
  int32_t pooled = -1;  // place of its queue pair in the pool of `pooled_shard`; -1: none yet
  uint32_t pooled_shard = 0;
  uint32_t id = 0;            // verbs::ConnectionId::number()
  Asker asker;                // of a connection that this service began
  uint64_t acknowledged = 0;  // kUnfreed: the slot is free once `first_shard` has acknowledged it

  // The other members mean what they say once the phase is stored, also for the follower of a
  // process that dies in between.
  void SetPhase(Phase phase) {
    std::atomic_signal_fence(std::memory_order_release);
    phase_ = phase;
    std::atomic_signal_fence(std::memory_order_release);
  }
  Phase phase() const { return phase_; }

 private:
  Phase phase_ = Phase::kNone;
};
static_assert(static_cast<uint32_t>(arena::kLastNoticeKind) < 8);

// Each step of the manager changes the table so that it can be repeated until it is done.
struct ConnectionTable {
  static absl::StatusOr<ConnectionTable> Make(const arena::Shape& shape) {
    BATON_ASSIGN_OR_RETURN(auto slots, SharedArray<ManagedSlot>::Make(shape.connections));
    BATON_ASSIGN_OR_RETURN(auto rested, SharedArray<uint64_t>::Make(
                                            size_t{shape.shards} * arena::PooledQueuePairs(shape)));
    return ConnectionTable{std::move(slots), std::move(rested)};
  }
  // Sets whether processes that are forked from now on share the table.
  absl::Status SetInherited(bool inherited) {
    BATON_RETURN_IF_ERROR(slots.SetInherited(inherited));
    return rested_ns.SetInherited(inherited);
  }

  SharedArray<ManagedSlot> slots;  // by connection
  // By shard and place in its pool: MonotonicNanoseconds() from which on a queue pair that is
  // kSpent serves again.
  SharedArray<uint64_t> rested_ns;
};

}  // namespace baton::native

#endif  // LIB_NATIVE_CONNECTION_TABLE_H_
