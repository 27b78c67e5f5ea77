// The state that all parts of a driver share. It is private to the process: a successor derives it
// anew from the arena and the device's objects (recovery.h).
//
// DriverParts (driver_parts.h) owns it. Its parts read and write it on the driver's thread.
#ifndef LIB_DRIVER_DRIVER_STATE_H_
#define LIB_DRIVER_DRIVER_STATE_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"
#include "lib/driver/completion_log.h"
#include "lib/driver/connection_state.h"
#include "lib/driver/device_objects.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

// Sums over the connections of a shard, for reports. Requests that can never be posted, because
// their connection has ended, do not count as committed.
struct ShardCounters {
  uint64_t transactions = 0;
  uint64_t sends_committed = 0, sends_posted = 0, sends_completed = 0;
  uint64_t receives_committed = 0, receives_posted = 0, receives_completed = 0;
  uint64_t bytes_sent = 0;  // bytes in the buffers of all committed sends, including READs
  uint64_t bytes_received = 0;
};

struct RecoveryCounters {
  uint64_t recoveries = 0;            // 0: this driver is the first
  uint64_t transactions_resumed = 0;  // begun by a dead driver, and finished
  uint64_t sends_ambiguous = 0, receives_ambiguous = 0;
  uint64_t sends_found_posted = 0, sends_never_posted = 0;
  uint64_t receives_never_posted = 0;
  uint64_t shared_receives_ambiguous = 0;
  uint64_t answers = 0;  // queries that the device answered about a queue's requests
  uint64_t markers = 0, spares = 0;
  uint64_t connections_failed = 0;  // because it could not be known what was posted
};

// Receives events for operators, on the driver's thread.
class DriverObserver {
 public:
  static constexpr uint32_t kNoConnection = ~0u;

  virtual ~DriverObserver() = default;
  virtual void OnConnectionState(uint32_t connection, std::string_view what) = 0;
  virtual void OnRefusedConnection(std::string_view why) = 0;
  // The connection has ended, and its slot may be reused. A successor may report it again.
  virtual void OnSlotFree(uint32_t /*connection*/) {}
  // Resolves the ambiguity about a dead driver's posts: requests before `end` were submitted.
  virtual void OnSettled(uint32_t /*connection*/, bool /*receive*/, uint64_t /*end*/) {}
};

// Process-private part of a shard.
struct ShardQueue {
  explicit ShardQueue(CompletionLog completion_log) : log(completion_log) {}

  CompletionLog log;
  bool operated = false;
  ShardCounters counters;
  uint32_t markers = 0;        // outstanding
  uint32_t spares_in_use = 0;  // of this shard
  // The next two are about the shard's shared receive queue.
  bool limit_armed = false;
  uint64_t low_ns = 0;  // MonotonicNanoseconds() of its last kSharedReceiveQueueLow; 0: never
  // The commit head at which drivers died reading the transaction; none has the first value.
  uint64_t unreadable = ~uint64_t{0};
};

// Process-private part of a connection slot. All but the text can be derived from the arena.
struct ConnectionSlot {
  bool sends_held = false;     // until a marker resolves the ambiguous sends
  bool receives_held = false;  // until the spares have completed
  bool ending = false;         // in DriverState::ending
  bool unnoticed = false;      // begun by DriverState::BeginUnnoticed
  bool stop_refused = false;   // its device refuses to put the queue pair in the error state
  bool device_gone = false;    // likewise, and it is lost: it executes nothing any more
  // MonotonicNanoseconds() when it was abandoned, or its stop refused; 0: not by this driver
  uint64_t abandoned_ns = 0;
  std::string end_reason;
};

struct DriverState {
  DriverState(arena::Arena* arena, verbs::Device* device, DriverObserver* observer,
              std::shared_ptr<DeviceObjects> objects);
  DriverState(const DriverState&) = delete;
  DriverState& operator=(const DriverState&) = delete;

  arena::ConnectionRecord& record(uint32_t connection) const { return records[connection]; }
  DeviceObjects::Connection& device_of(uint32_t connection) const {
    return objects->connections[connection];
  }
  // Returns a valid index, whatever other processes of a native service have written.
  uint32_t ShardOf(const arena::ConnectionRecord& connection) const {
    return std::min(arena::LoadRelaxed(connection.shard), last_shard);
  }
  // Returns the connection that has this queue pair, or had it last.
  uint32_t FindQueuePair(uint32_t number) const;
  // Begins the connection that `baton-driver` connects with this queue pair of the shard, if its
  // notice is not handled yet, and returns it; kNoConnection: there is none.
  uint32_t BeginUnnoticed(uint32_t shard, uint32_t queue_pair);
  // Begins a connection that `baton-driver` connects to a peer.
  void BeginConnecting(uint32_t connection);
  bool Operates(uint32_t shard) const { return shards[shard].operated; }
  bool SharesReceives() const { return arena::HasSharedReceives(arena->shape()); }
  bool IsBroken(uint32_t shard) const { return arena->shard(shard).shared_receives_refused != 0; }
  // Returns true if a committed request of the queue can be posted now.
  bool CanPost(uint32_t connection, bool receive) const {
    const ConnectionSlot& slot = slots[connection];
    if (posts_held || (receive ? slot.receives_held : slot.sends_held)) return false;
    const arena::ConnectionState state = StateOf(record(connection));
    return state == arena::ConnectionState::kEstablished ||
           (receive && state == arena::ConnectionState::kConnecting);
  }
  absl::Status CheckLog(uint32_t shard) const {
    if (shards[shard].log.broken() == nullptr) [[likely]]
      return absl::OkStatus();
    return LogIsBroken(shard);
  }
  absl::Status LogIsBroken(uint32_t shard) const;
  // Returns false if the log is broken; the caller then must not change state.
  [[nodiscard]] bool LogEvent(uint32_t connection, arena::CompletionKind kind,
                              verbs::CompletionStatus status);
  // See CompletionLog.
  void SetAt(uint32_t shard, uint32_t at) { shards[shard].log.SetAt(at); }
  // Does the work with `at` named. A driver that dies in it leaves `at` to its successor.
  template <typename Work>
  void DoAt(uint32_t shard, uint32_t at, const Work& work) {
    SetAt(shard, at);
    work();
    SetAt(shard, 0);
  }

  arena::Arena* const arena;
  verbs::Device* const device;
  DriverObserver* const observer;
  const std::shared_ptr<DeviceObjects> objects;
  std::vector<ShardQueue> shards;
  const uint32_t last_shard;
  std::vector<ConnectionSlot> slots;  // by connection
  const uint32_t connection_slots;
  arena::ConnectionRecord* const records;  // in the arena
  std::vector<uint32_t> abandoned;         // connections, also those whose stop was refused
  // Connections that end as soon as a poll finds their completion queue empty.
  std::vector<uint32_t> ending;
  uint64_t ends_noted = 0;  // connections ever added to abandoned and ending
  absl::flat_hash_map<uint32_t, uint32_t> by_queue_pair;  // connections; space for all is reserved
  uint32_t connection_count = 0;
  // True while a recovery reads completions. It posts nothing before it has read all, so that
  // receives are posted before the sends of their transaction: a completion of the dead driver may
  // free sends whose receives wait for a spare.
  bool posts_held = false;
  std::string device_lost;  // the reason; empty: not lost
  verbs::CmEvent event;     // the one that is being handled
  RecoveryCounters recovery;
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_DRIVER_STATE_H_
