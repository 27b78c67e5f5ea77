// Operates the queues of a service: applies committed transactions to its queue pairs and writes
// completions and connection events to its logs. It is the only writer of the driver log memory.
// It does not know who owns a shard, or how the owner waits.
//
// A driver can die at any instruction. Its successor continues from the arena and the device's
// objects (Recover; layout.md has the algorithm). So the driver stores each fact in the arena
// before it acts on it, and every step is idempotent.
//
// Thread-compatible: the driver's thread.
#ifndef LIB_DRIVER_QUEUE_DRIVER_H_
#define LIB_DRIVER_QUEUE_DRIVER_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"
#include "lib/driver/completion_log.h"
#include "lib/driver/connection_state.h"
#include "lib/driver/device_objects.h"
#include "lib/driver/request_list.h"
#include "lib/driver/transaction.h"
#include "lib/verbs/mlx5/completion_queue.h"
#include "lib/verbs/verbs.h"

// In test builds a simulation overrides these functions, to kill and replace the driver there.
#ifdef BATON_TEST_HOOKS
#define BATON_DRIVER_SEAM virtual
#else
#define BATON_DRIVER_SEAM
#endif

namespace baton::driver {

// The result of ApplyNext().
enum class CommitOutcome : uint8_t {
  kIdle,      // no transaction is published
  kApplied,   // one transaction
  kReleased,  // one transaction, which releases the shard
  kInvalid,   // the next transaction is invalid; nothing of it was applied
};

// Sums over the connections of a shard, for reports. Requests that can never be posted, because
// their connection has ended, do not count as committed.
struct ShardCounters {
  uint64_t transactions = 0;
  uint64_t sends_committed = 0, sends_posted = 0, sends_completed = 0;
  uint64_t receives_committed = 0, receives_posted = 0, receives_completed = 0;
  uint64_t bytes_sent = 0;  // bytes in the buffers of all committed sends, including READs
  uint64_t bytes_received = 0;
};

// Counters of a recovery.
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
  virtual ~DriverObserver() = default;
  virtual void OnConnectionState(uint32_t connection, std::string_view what) = 0;
  virtual void OnRefusedConnection(std::string_view why) = 0;
  // `connection`: the one that the event is about, or kNoConnection.
  static constexpr uint32_t kNoConnection = ~0u;
  virtual void OnDeviceEvent(const verbs::DeviceEvent& /*event*/, uint32_t /*connection*/) {}
  // Only one of several drivers calls this: the connection has ended, and its slot may be reused. A
  // successor may report it again.
  virtual void OnSlotFree(uint32_t /*connection*/) {}
  // Resolves the ambiguity about a dead driver's posts: requests before `end` were submitted.
  virtual void OnSettled(uint32_t /*connection*/, bool /*receive*/, uint64_t /*end*/) {}
};

class QueueDriver {
 public:
  // Registers the buffers and creates a completion queue per shard. The caller keeps `arena` and
  // `device` alive longer than the driver.
  static absl::StatusOr<std::unique_ptr<QueueDriver>> Create(arena::Arena* arena,
                                                             verbs::Device* device,
                                                             DriverObserver* observer);

  // Replaces a dead driver: takes over its objects and adopts all shards.
  static absl::StatusOr<std::unique_ptr<QueueDriver>> Recover(
      arena::Arena* arena, verbs::Device* device, DriverObserver* observer,
      std::shared_ptr<DeviceObjects> objects);

  // Creates one of several drivers of a service. It operates no shard before Adopt().
  static std::unique_ptr<QueueDriver> CreateBeside(arena::Arena* arena, verbs::Device* device,
                                                   DriverObserver* observer,
                                                   std::shared_ptr<DeviceObjects> objects);
  // Starts to operate these shards. REQUIRES: their former driver is dead or has left them. A
  // connection with ambiguous requests continues at once if the device can say what is queued
  // (QueuePair::LastQueued), and otherwise when its own marker has completed. A driver may be
  // killed in this call; this or another driver then calls it again. Error: the shards can no
  // longer be operated.
  absl::Status Adopt(absl::Span<const uint32_t> shards);
  // The same for one of several drivers. Reads only `connections`, which must include all
  // connections in these shards.
  absl::Status Adopt(absl::Span<const uint32_t> shards, absl::Span<const uint32_t> connections);
  // Returns the other shards into which published but not applied transactions of this shard accept
  // connections. Only a driver that has adopted both shards can apply them.
  std::vector<uint32_t> AcceptTargets(uint32_t shard) const;
  // Stops operating the shard. Another driver may adopt it.
  void Leave(uint32_t shard);
  bool Operates(uint32_t shard) const { return shards_[shard].operated; }

  BATON_DRIVER_SEAM ~QueueDriver();

  // The objects that a successor needs besides the arena.
  const std::shared_ptr<DeviceObjects>& objects() const { return objects_; }

  // Applies the next published transaction of the shard's current epoch. Sets `*error` if it
  // returns kInvalid.
  BATON_DRIVER_SEAM CommitOutcome ApplyNext(uint32_t shard, absl::Status* error);

  // Returns the number of entries in the bank of the current epoch that are published and not
  // applied. An impossible tail counts as one entry, which ApplyNext() then finds invalid.
  uint64_t PendingEntries(uint32_t shard) const;

  // Moves completions from the completion queue to the completion log, in a few batches, each
  // published before the next. The limit keeps a queue from delaying the others. Returns true if it
  // consumed a completion; then there may be more. A consumed completion cancels a pending
  // notification request, so the caller must request again. Some completions (recovery markers) are
  // not reported to the owner. Error: the completion queue is unusable.
  BATON_DRIVER_SEAM absl::StatusOr<bool> PollCompletions(uint32_t shard);
  absl::Status RequestNotification(uint32_t shard);

  // Disconnects every connection, as if each peer had disconnected. Returns their number.
  uint32_t DisconnectAll(std::string_view why);

  // Handles one connection-manager event. Returns false if there is none. Sets `*shard` to the
  // shard whose completion log got an entry, or kNoShard.
  static constexpr uint32_t kNoShard = DeviceObjects::kNoShard;
  BATON_DRIVER_SEAM bool HandleEvent(uint32_t* shard);

  // Handles one event of the device. Returns false if there is none. Ends the connection of a
  // failed queue pair. After kDeviceLost the caller ends the connections (EndAll).
  bool HandleDeviceEvent(uint32_t* shard);

  // Returns true if no shard can receive any more: each shared receive queue has refused a receive.
  bool AllBroken() const;

  // Gives up the device: refuses new connections and begins to end all others with kFatalError.
  // AllEnded() returns true when all have ended and their logs report it to the owners.
  void EndAll(std::string_view why);
  bool AllEnded() const;
  // Ends at once the connections of `shard` that the device does not flush any more. Destroys their
  // queue pairs. Which of their requests had completed stays unknown.
  void GiveUp(uint32_t shard, std::string_view why);

  // See ListenOnce (device_objects.h).
  absl::StatusOr<verbs::Address> Listen(const verbs::Address& address);
  // Starts connecting in a new slot of `shard`. Returns the slot.
  BATON_DRIVER_SEAM absl::StatusOr<uint32_t> Connect(uint32_t shard, const verbs::Address& address,
                                                     std::string_view private_data, uint64_t tag);

  // Sets the gate for later connections; nullptr admits all. The caller keeps it alive longer than
  // the driver.
  void SetGate(ConnectionGate* gate) { gate_ = gate; }

  // ---- A completion on which owners die (layout.md, "Poison"; in poison.cc).

  // Returns the oldest unacknowledged completion before `end` that is not void. Prefers those of
  // connections that were not failed before.
  std::optional<uint64_t> OldestToBlame(uint32_t shard, uint64_t end) const;
  // Fails the connection of an unacknowledged completion and rewrites its entries from there on.
  // Returns the entry as it was. REQUIRES: the shard has no owner or is only claimed, so that
  // nobody reads its log. `known`: the level chosen by a driver that died in this call; none: the
  // entry determines it. kFailedPrecondition: nothing was done, because the shard has an owner, or
  // its log has no such unacknowledged completion of an existing connection.
  absl::StatusOr<arena::CompletionEntry> Poison(
      uint32_t shard, uint64_t completion, std::string_view why,
      std::optional<arena::PoisonLevel> known = std::nullopt);

  const ShardCounters& counters(uint32_t shard) const { return shards_[shard].counters; }
  // MonotonicNanoseconds() when it was established; 0: not established by this driver.
  uint64_t established_ns(uint32_t connection) const { return slots_[connection].established_ns; }
  const RecoveryCounters& recovery() const { return recovery_; }
  // The number of work requests in the transaction that ApplyNext() applied last.
  size_t requests_applied() const { return requests_applied_; }
  uint32_t connection_count() const { return connection_count_; }

  // Test builds only: acknowledges every completion at a cut, as a broken recovery would.
  void ForgetUnacknowledged(uint32_t shard);

 protected:
  QueueDriver(QueueDriver&&) = default;
  QueueDriver& operator=(QueueDriver&&) = default;

 private:
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
  };
  // Process-private part of a connection slot. All but the text can be derived from the arena.
  struct Slot {
    bool request_in_log = false;  // its kConnectRequest is not acknowledged yet
    bool sends_held = false;      // until a marker resolves the ambiguous sends
    bool receives_held = false;   // until the spares have completed
    bool ending = false;          // in ending_
    uint64_t established_ns = 0;  // MonotonicNanoseconds(); 0: not by this driver
    uint64_t abandoned_ns = 0;    // MonotonicNanoseconds(); 0: not by this driver
    std::string end_reason;
  };

  struct RequestLogs {
    const arena::WorkRequest* sends;
    const arena::WorkRequest* receives;
  };
  class BatchLogger;

  QueueDriver(arena::Arena* arena, verbs::Device* device, DriverObserver* observer,
              std::shared_ptr<DeviceObjects> objects);

  // Applying a transaction.
  bool ApplyPlain(uint32_t shard, arena::ShardRecord& record, const arena::CommitEntry& shared);
  void EndTransaction(uint32_t shard, arena::ShardRecord& record, uint64_t commit_head);
  void Apply(uint32_t shard, const Transaction& transaction);
  void PrepareDecisions(uint32_t shard, const Transaction& transaction);
  void Decide(const Transaction& transaction);
  void ApplyConnection(const TransactionPart& part);
  void ApplyShardState(uint32_t shard, const arena::CommitEntry& entry);
  void ApplyAcknowledge(uint32_t shard, const arena::CommitEntry& entry);
  uint64_t AcknowledgeRun(uint32_t shard, uint64_t begin, uint64_t end);
  void AcknowledgeOther(uint32_t shard, const arena::CompletionEntry& completion);
  void AcknowledgeEnd(uint32_t connection);
  bool MayMove(uint32_t from, uint32_t to) const;
  void PrepareAccept(uint32_t shard, const arena::CommitEntry& entry);
  void FinishAccept(const arena::CommitEntry& entry);
  void AnswerAccept(const arena::CommitEntry& entry);
  void Reject(const arena::CommitEntry& entry);
  absl::Status CreateQueuePair(uint32_t connection);
  std::string CopyPrivateData(uint32_t connection, uint32_t length) const;

  // Posting requests that the reader has written to the queues.
  verbs::mlx5::QueuePair* DirectQueuesOf(uint32_t connection) const;
  void PostWritten(const TransactionPart& part);
  void PostListed(const TransactionPart& part);
  template <bool kReceive, typename Batch>
  void PostBatch(arena::ConnectionRecord& connection, uint64_t count,
                 verbs::mlx5::QueuePair* queue_pair, const Batch& batch, ShardCounters& counters);

  // Posting. PostCommitted() gets the requests from `committed` on, PostRequests() those from
  // `posted` on.
  template <typename Request>
  void PostCommitted(uint32_t connection, absl::Span<const Request> requests);
  bool MarkCommitted(uint32_t connection, bool receive, uint64_t count);
  bool CanPost(uint32_t connection, bool receive) const;
  template <typename Request>
  void PostRequests(uint32_t connection, absl::Span<const Request> requests);
  void PostDeferred(uint32_t connection, bool receive);

  // Shared receives, in shared_receives.cc.
  bool SharesReceives() const { return arena::HasSharedReceives(arena_->shape()); }
  void PostSharedReceives(uint32_t shard, const TransactionPart& part);
  absl::Status PostSharedReceive(uint32_t shard, uint32_t slot,
                                 absl::Span<const verbs::ScatterGather> sges);
  void ArmLimit(uint32_t shard);
  void RefuseShared(uint32_t shard, std::string_view why);
  void RefuseBroken(uint32_t shard);
  bool IsBroken(uint32_t shard) const;
  static absl::Status BrokenQueue();
  void ApplyDeviceEvent(verbs::DeviceEvent event, uint32_t* shard);
  void LogSharedReceive(uint32_t shard, const verbs::Completion& completion);
  void SetSharedReceive(uint32_t shard, uint32_t slot, arena::SharedReceiveState state);
  void NoteSharedReceive(uint32_t shard, uint32_t slot, arena::SharedReceiveState next);
  bool IsOutstanding(uint32_t shard, uint64_t wr_id) const;
  void ReturnSharedReceive(uint32_t shard, const arena::CompletionEntry& entry);
  void LoadSharedReceives(uint32_t shard);
  void SettleSharedReceives(uint32_t shard);
  bool WasTaken(uint32_t shard, uint64_t wr_id) const;
  void FinishEnding(uint32_t shard);

  // Completions and the life of connections.
  absl::Status DrainCompletions(uint32_t shard);
  absl::StatusOr<int> TakeBatch(uint32_t shard);
  absl::StatusOr<int> TakeBatchBySlots(uint32_t shard);
  void LogCompletion(uint32_t shard, const verbs::Completion& completion);
  void LogUnexpected(uint32_t shard, uint32_t connection, const verbs::Completion& completion);
  void LogRequest(uint32_t shard, uint32_t connection, bool receive,
                  const verbs::Completion& completion);
  void LogMarker(uint32_t connection, bool receive, const verbs::Completion& completion);
  static void FillEntry(arena::CompletionKind kind, const verbs::Completion& completion,
                        arena::CompletionEntry* entry);
  void NoteFoundPosted(ShardCounters& counters, arena::ConnectionRecord& connection, bool receive);
  [[nodiscard]] bool LogEvent(uint32_t connection, arena::CompletionKind kind,
                              verbs::CompletionStatus status);
  void EndAfterError(uint32_t connection, verbs::CompletionStatus status);
  bool EndIfFailedBefore(uint32_t connection);
  void StartDraining(uint32_t connection, verbs::CompletionStatus status, std::string_view reason);
  void EndConnection(uint32_t connection);
  void FinishDraining(uint32_t connection);
  void OnEvent(uint32_t connection, const verbs::CmEvent& event);
  void OnConnectRequest(verbs::CmEvent& event, uint32_t* shard);
  void OnAssignedRequest(verbs::CmEvent& event, uint32_t* shard);
  void OnAssignedConnect(uint32_t connection, verbs::CmEvent& event);
  void OnEstablished(uint32_t connection, const std::string& private_data);
  absl::Status CheckDeviceKept() const;
  absl::StatusOr<uint32_t> TakeSlot(uint32_t shard);
  void FreeSlot(uint32_t connection);
  void GiveSlot(uint32_t connection);
  void DropObjects(uint32_t connection);
  // Returns the connection that has this queue pair, or had it last.
  uint32_t FindQueuePair(uint32_t number) const;
  void ForgetRequest(uint32_t connection);
  uint32_t LeastUsedShard() const;

  // Recovery, in recovery.cc.
  void ReplayLog(uint32_t shard, std::vector<std::pair<uint32_t, verbs::CompletionStatus>>* failed);
  void ReplayEntry(const arena::CompletionEntry& entry);
  std::vector<uint32_t> Load(absl::Span<const uint32_t> shards,
                             absl::Span<const uint32_t> candidates);
  void LoadRequests(uint32_t shard);
  void LoadSpares(uint32_t shard);
  void LoadSlot(uint32_t connection);
  void ReclaimSlot(uint32_t connection);
  void ForgetSlot(uint32_t connection);
  void LoadCounters(uint32_t connection);
  void LoadGrants();
  void LoadEvent();
  absl::Status SettlePollSlots(uint32_t shard);
  void RepeatLife(uint32_t connection);
  void SettleQueues(uint32_t connection);
  void SettleEnding(uint32_t connection);
  void FailArriving(uint32_t connection);
  void PostAllDeferred(uint32_t connection);
  void ResumeTransaction(uint32_t shard);

  // Resolving ambiguous requests: those of a dead driver, or those that a provider has refused.
  void AskFate(uint32_t connection, bool receive);
  bool AskDevice(uint32_t connection, bool receive);
  absl::StatusOr<uint64_t> EndOfQueued(uint32_t connection, bool receive,
                                       std::optional<uint64_t> last) const;
  void PostMarker(uint32_t connection, bool receive);
  void SettleCompleted(uint32_t connection, bool receive);
  void Settle(uint32_t connection, bool receive, uint64_t end);
  bool Drained(uint32_t connection) const;
  void FailUnknown(uint32_t connection, std::string_view why);
  void Abandon(uint32_t connection, std::string_view why);
  void FinishAbandoned(uint32_t shard);

  // Spare receives.
  const arena::SpareRecord* LastSpare(uint32_t connection) const;  // not completed; or null
  uint32_t CountSpares(uint32_t connection) const;
  void PostSpare(uint32_t connection);
  void OnSpare(uint32_t connection, uint32_t spare, const verbs::Completion& completion);
  void DeliverSpares(uint32_t connection);
  void DeliverSpare(uint32_t connection, uint32_t spare);
  void FreeSpare(uint32_t shard, arena::SpareRecord& spare);
  void FreeSpares(uint32_t connection, bool filled_too, uint32_t last);

  arena::ConnectionRecord& record(uint32_t connection) const { return records_[connection]; }
  // Returns a valid index, whatever other processes of a native service have written.
  uint32_t ShardOf(const arena::ConnectionRecord& connection) const {
    return std::min(arena::LoadRelaxed(connection.shard), last_shard_);
  }
  absl::Status CheckLog(uint32_t shard) const {
    if (shards_[shard].log.broken() == nullptr) [[likely]]
      return absl::OkStatus();
    return LogIsBroken(shard);
  }
  absl::Status LogIsBroken(uint32_t shard) const;
  DeviceObjects::Connection& device_of(uint32_t connection) const {
    return objects_->connections[connection];
  }

  arena::Arena* arena_;
  verbs::Device* device_;
  DriverObserver* observer_;
  ConnectionGate* gate_ = nullptr;
  std::shared_ptr<DeviceObjects> objects_;
  std::unique_ptr<TransactionReader> reader_;
  size_t requests_applied_ = 0;
  bool posts_directly_ = true;  // whether the last applied connection has direct queues
  std::vector<ShardQueue> shards_;
  uint32_t last_shard_;
  std::vector<Slot> slots_;  // by connection
  // Addresses in the arena that are read for each message.
  uint32_t connection_slots_;
  arena::ConnectionRecord* records_;
  std::vector<RequestLogs> request_logs_;  // by connection
  uint64_t send_log_mask_, receive_log_mask_;
  bool sole_ = true;  // the service's only driver: it also has slots, grants and events
  std::deque<uint32_t> free_slots_;
  std::vector<uint32_t> abandoned_;
  // Connections that end as soon as a poll finds their completion queue empty.
  std::vector<uint32_t> ending_;
  uint64_t ends_noted_ = 0;  // connections ever added to abandoned_ and ending_
  absl::flat_hash_map<uint32_t, uint32_t> by_queue_pair_;  // connections; space for all is reserved
  uint32_t connection_count_ = 0;
  // True while a recovery reads completions. It posts nothing before it has read all, so that
  // receives are posted before the sends of their transaction: a completion of the dead driver may
  // free sends whose receives wait for a spare.
  bool posts_held_ = false;
  std::string device_lost_;  // the reason; empty: not lost
  RecoveryCounters recovery_;
  std::vector<verbs::Completion> completions_;  // scratch
  RequestList one_request_;                     // scratch
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_QUEUE_DRIVER_H_
