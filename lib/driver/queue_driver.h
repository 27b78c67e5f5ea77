// Operates the queues of a service: applies committed transactions to its queue pairs and writes
// completions and connection events to its logs. It is the one writer of the driver log memory,
// and knows neither who owns a shard nor how it waits.
//
// Thread-compatible: one thread, the driver's.
#ifndef LIB_DRIVER_QUEUE_DRIVER_H_
#define LIB_DRIVER_QUEUE_DRIVER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/driver/completion_log.h"
#include "lib/driver/transaction.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

// What became of the commits of a shard.
enum class CommitOutcome : uint8_t {
  kIdle,      // none were published
  kApplied,   // one transaction
  kReleased,  // one, and it gave the shard away
  kInvalid,   // the next one is invalid; nothing of it was applied
};

// Sums over the connections of a shard, for reports. What can never be posted because its
// connection has ended does not count as committed.
struct ShardCounters {
  uint64_t transactions = 0;
  uint64_t sends_committed = 0, sends_posted = 0, sends_completed = 0;
  uint64_t receives_committed = 0, receives_posted = 0, receives_completed = 0;
};

// Told, on the driver's thread, what operators should know.
class DriverObserver {
 public:
  virtual ~DriverObserver() = default;
  virtual void OnConnectionState(uint32_t connection, std::string_view what) = 0;
  virtual void OnRefusedConnection(std::string_view why) = 0;
};

class QueueDriver {
 public:
  // `arena` and `device` outlive it. Registers the buffers and creates a completion queue a shard.
  static absl::StatusOr<std::unique_ptr<QueueDriver>> Create(arena::Arena* arena,
                                                             verbs::Device* device,
                                                             DriverObserver* observer);
  ~QueueDriver();

  // Applies the next published transaction of the shard's current epoch. `owned`: says of a shard
  // whether the same worker owns it (targets of an accept). `*error` is set with kInvalid.
  CommitOutcome ApplyNext(uint32_t shard, absl::Status* error);

  // Entries published and not yet applied in the bank of the shard's current epoch. An impossible
  // tail counts as one entry, which ApplyNext then finds invalid.
  uint64_t PendingEntries(uint32_t shard) const;

  // Moves what the completion queue has to the completion log. Returns whether the owner has
  // something new; an error means the completion queue is unusable.
  absl::StatusOr<bool> PollCompletions(uint32_t shard);
  absl::Status RequestNotification(uint32_t shard);

  // Handles one connection-manager event; false when there is none. `*shard` is set to the shard
  // whose completion log got an entry, or kNoShard.
  static constexpr uint32_t kNoShard = ~0u;
  bool HandleEvent(uint32_t* shard);

  // Idempotent: returns the address of the listener that was asked for with the same one before.
  absl::StatusOr<verbs::Address> Listen(const verbs::Address& address);
  bool IsListening(const verbs::Address& address) const;
  std::vector<verbs::Address> listeners() const;
  // Starts connecting, in a new slot of `shard`. Returns the slot.
  absl::StatusOr<uint32_t> Connect(uint32_t shard, const verbs::Address& address,
                                   std::string_view private_data, uint64_t tag);

  // Returns the slot of a new grant of [offset, offset + length) of the buffers.
  absl::StatusOr<uint32_t> Grant(uint64_t offset, uint64_t length, uint32_t access);
  absl::Status Revoke(uint32_t grant);

  // ---- A completion on which owners die (layout.md, "Poison"; in poison.cc).

  // The oldest unacknowledged completion that is not void, of a connection that was not failed
  // before if there is one.
  std::optional<uint64_t> OldestToBlame(uint32_t shard) const;
  // Fails the connection of an unacknowledged completion, and rewrites what the log has of it from
  // there on. Returns the entry as it was. Nobody owns the shard: nobody reads its log.
  arena::CompletionEntry Poison(uint32_t shard, uint64_t completion, std::string_view why);

  const ShardCounters& counters(uint32_t shard) const { return shards_[shard].counters; }
  uint32_t connection_count() const { return connection_count_; }

  // Test builds only: acknowledges everything unseen at a cut, as a broken recovery would.
  void ForgetUnacknowledged(uint32_t shard);

 private:
  struct ShardQueue {
    std::unique_ptr<verbs::CompletionQueue> completion_queue;
    CompletionLog log;
    ShardCounters counters;
  };
  // Process-private part of a connection slot. `id` goes before `queue_pair`.
  struct Slot {
    std::unique_ptr<verbs::QueuePair> queue_pair;
    std::unique_ptr<verbs::ConnectionId> id;
    bool was_established = false;
    bool connecting = false;      // Accept or Connect was called: there is nothing to answer
    bool request_in_log = false;  // its kConnectRequest was not acknowledged yet
    std::string end_reason;
  };
  struct ListenerSlot {
    std::unique_ptr<verbs::Listener> listener;
    verbs::Address asked;
  };

  QueueDriver(arena::Arena* arena, verbs::Device* device, DriverObserver* observer);

  // Applying a transaction.
  void Apply(uint32_t shard, const Transaction& transaction);
  void ApplyConnection(const TransactionPart& part);
  void ApplyShardState(uint32_t shard, const arena::CommitEntry& entry);
  void ApplyAcknowledge(uint32_t shard, const arena::CommitEntry& entry);
  void PrepareAccept(uint32_t shard, const arena::CommitEntry& entry);
  void FinishAccept(const arena::CommitEntry& entry);
  void Reject(const arena::CommitEntry& entry);
  absl::Status CreateQueuePair(uint32_t connection);
  std::string CopyPrivateData(uint32_t connection, uint32_t length) const;

  // Posting. `requests` are trusted copies of [posted, posted + size).
  bool CanPost(const arena::ConnectionRecord& record, bool receive) const;
  void PostRequests(uint32_t connection, bool receive,
                    absl::Span<const arena::WorkRequest> requests);
  void PostDeferred(uint32_t connection, bool receive);
  absl::Status PostChunk(uint32_t connection, bool receive,
                         absl::Span<const arena::WorkRequest> requests, size_t* posted);

  // Completions and the life of connections.
  void LogCompletion(uint32_t shard, const verbs::Completion& completion);
  void LogEvent(uint32_t connection, arena::CompletionKind kind, verbs::CompletionStatus status);
  void StartDraining(uint32_t connection, verbs::CompletionStatus status, std::string_view reason);
  void FinishDraining(uint32_t connection);
  void OnConnectRequest(verbs::CmEvent event, uint32_t* shard);
  void OnEstablished(uint32_t connection, const std::string& private_data);
  absl::StatusOr<uint32_t> TakeSlot(uint32_t shard);
  void FreeSlot(uint32_t connection);
  void ForgetRequest(uint32_t connection);
  const verbs::Listener* FindListener(const verbs::Address& address) const;
  uint32_t LeastUsedShard() const;
  void FillAddresses(uint32_t connection);

  arena::ConnectionRecord& record(uint32_t connection) { return arena_->connection(connection); }

  arena::Arena* arena_;
  verbs::Device* device_;
  DriverObserver* observer_;
  TransactionReader reader_;
  std::unique_ptr<verbs::MemoryRegion> buffers_region_;
  std::vector<ShardQueue> shards_;
  std::vector<Slot> slots_;  // by connection; destroyed before the completion queues
  std::deque<uint32_t> free_slots_;
  uint32_t connection_count_ = 0;
  std::vector<ListenerSlot> listeners_;
  std::vector<std::unique_ptr<verbs::MemoryRegion>> grants_;

  // Scratch of PostChunk and PollCompletions.
  std::vector<verbs::SendRequest> sends_;
  std::vector<verbs::ReceiveRequest> receives_;
  std::vector<verbs::ScatterGather> sges_;
  std::vector<verbs::Completion> completions_;
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_QUEUE_DRIVER_H_
