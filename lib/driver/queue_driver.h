// Operates the queues of a service: applies committed transactions to its queue pairs and writes
// completions and connection events to its logs. It is the one writer of the driver log memory,
// and knows neither who owns a shard nor how it waits.
//
// It can die at any instruction: another goes on with the arena and the device's objects (Recover;
// layout.md has the algorithm). So what it knows is in the arena before it acts on it, and a step
// that is repeated changes nothing.
//
// Thread-compatible: one thread, the driver's.
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
#include "lib/driver/connection_gate.h"
#include "lib/driver/device_objects.h"
#include "lib/driver/request_list.h"
#include "lib/driver/transaction.h"
#include "lib/verbs/mlx5/completion_queue.h"
#include "lib/verbs/verbs.h"

// Where a simulation's driver dies and is succeeded.
#ifdef BATON_TEST_HOOKS
#define BATON_DRIVER_SEAM virtual
#else
#define BATON_DRIVER_SEAM
#endif

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
  uint64_t bytes_sent = 0;  // of the buffers of sends that were committed: READs among them
  uint64_t bytes_received = 0;
};

// What a recovery has found and done.
struct RecoveryCounters {
  uint64_t recoveries = 0;            // 0: this driver is the first
  uint64_t transactions_resumed = 0;  // begun by a dead driver, and finished
  uint64_t sends_ambiguous = 0, receives_ambiguous = 0;
  uint64_t sends_found_posted = 0, sends_never_posted = 0;
  uint64_t receives_never_posted = 0;
  uint64_t shared_receives_ambiguous = 0;
  uint64_t answers = 0;  // of the device, which of a queue's requests it has
  uint64_t markers = 0, spares = 0;
  uint64_t connections_failed = 0;  // of which the truth could not be established
};

// Told, on the driver's thread, what operators should know.
class DriverObserver {
 public:
  virtual ~DriverObserver() = default;
  virtual void OnConnectionState(uint32_t connection, std::string_view what) = 0;
  virtual void OnRefusedConnection(std::string_view why) = 0;
  // `connection`: that the event is about; kNoConnection: none.
  static constexpr uint32_t kNoConnection = ~0u;
  virtual void OnDeviceEvent(const verbs::DeviceEvent& event, uint32_t connection) {
    (void)event;
    (void)connection;
  }
  // Of one of several drivers: the connection has ended, and its slot may be another's. Told again
  // by a successor.
  virtual void OnSlotFree(uint32_t connection) { (void)connection; }
  // What a dead driver had maybe posted is known: requests before `end` were submitted.
  virtual void OnSettled(uint32_t connection, bool receive, uint64_t end) {
    (void)connection;
    (void)receive;
    (void)end;
  }
};

class QueueDriver {
 public:
  // `arena` and `device` outlive it. Registers the buffers and creates a completion queue a shard.
  static absl::StatusOr<std::unique_ptr<QueueDriver>> Create(arena::Arena* arena,
                                                             verbs::Device* device,
                                                             DriverObserver* observer);

  // Takes the place of a driver that is dead, with what it left: all shards, as Adopt does.
  static absl::StatusOr<std::unique_ptr<QueueDriver>> Recover(
      arena::Arena* arena, verbs::Device* device, DriverObserver* observer,
      std::shared_ptr<DeviceObjects> objects);

  // One of several drivers of a service: it operates no shard before Adopt.
  static std::unique_ptr<QueueDriver> Attach(arena::Arena* arena, verbs::Device* device,
                                             DriverObserver* observer,
                                             std::shared_ptr<DeviceObjects> objects);
  // Operates these shards from now on, whose former driver is dead or has left them. Connections
  // whose sends or receives are ambiguous go on at once where the device says what is queued
  // (QueuePair::LastQueued), and else when a marker has completed, each on its own. Can itself be
  // killed and called again, by this or another driver. An error: the shards cannot be operated any
  // more.
  absl::Status Adopt(absl::Span<const uint32_t> shards);
  // The same, and looks only at `connections`: all that are in these shards, and maybe others. For
  // one of several drivers.
  absl::Status Adopt(absl::Span<const uint32_t> shards, absl::Span<const uint32_t> connections);
  // Other shards into which connections are accepted by what is published and not applied in this
  // one. Only a driver that has adopted both can apply that.
  std::vector<uint32_t> AcceptTargets(uint32_t shard) const;
  // Operates the shard no longer: another driver may.
  void Leave(uint32_t shard);
  bool Operates(uint32_t shard) const { return shards_[shard].operated; }

  BATON_DRIVER_SEAM ~QueueDriver();

  // What a successor needs besides the arena.
  const std::shared_ptr<DeviceObjects>& objects() const { return objects_; }

  // Applies the next published transaction of the shard's current epoch. `owned`: says of a shard
  // whether the same worker owns it (targets of an accept). `*error` is set with kInvalid.
  BATON_DRIVER_SEAM CommitOutcome ApplyNext(uint32_t shard, absl::Status* error);

  // Entries published and not yet applied in the bank of the shard's current epoch. An impossible
  // tail counts as one entry, which ApplyNext then finds invalid.
  uint64_t PendingEntries(uint32_t shard) const;

  // Moves what the completion queue has to the completion log, in batches, each of which is
  // published before the next: not more than a few, so that no queue keeps its driver from the
  // others. Returns whether there was something: for the owner as a rule, though not a recovery's
  // markers, but it has used up a notification that was asked for. Then there may be more. An error
  // means the completion queue is unusable.
  BATON_DRIVER_SEAM absl::StatusOr<bool> PollCompletions(uint32_t shard);
  absl::Status RequestNotification(uint32_t shard);

  // As if the peer of each had gone. Returns how many there were.
  uint32_t DisconnectAll(std::string_view why);

  // Handles one connection-manager event; false when there is none. `*shard` is set to the shard
  // whose completion log got an entry, or kNoShard.
  static constexpr uint32_t kNoShard = ~0u;
  BATON_DRIVER_SEAM bool HandleEvent(uint32_t* shard);

  // Handles one event of the device; false when there is none. A connection whose queue pair has
  // failed is ended; one whose device is lost is the caller's to end.
  bool HandleDeviceEvent(uint32_t* shard);

  // No shard can receive any more: the shared receive queue of each has refused a receive.
  bool AllBroken() const;

  // The device is to be given up: no connection comes any more, and all that there are begin to
  // end, with kFatalError. AllEnded: they have, and their owners find it in their logs.
  void EndAll(std::string_view why);
  bool AllEnded() const;
  // Ends at once the connections of `shard` that do not end by themselves, because the device does
  // not complete what is outstanding any more. Their queue pairs are destroyed; what of their
  // requests had completed is not known.
  void GiveUp(uint32_t shard, std::string_view why);

  // Idempotent: returns the address of the listener that was asked for with the same one before.
  absl::StatusOr<verbs::Address> Listen(const verbs::Address& address);
  bool IsListening(const verbs::Address& address) const;
  std::vector<verbs::Address> listeners() const;
  // Starts connecting, in a new slot of `shard`. Returns the slot.
  BATON_DRIVER_SEAM absl::StatusOr<uint32_t> Connect(uint32_t shard, const verbs::Address& address,
                                                     std::string_view private_data, uint64_t tag);

  // Decides about connections from now on; nullptr: all may be. Outlives the driver.
  void SetGate(ConnectionGate* gate) { gate_ = gate; }

  // Returns the slot of a new grant of [offset, offset + length) of the buffers.
  absl::StatusOr<uint32_t> Grant(uint64_t offset, uint64_t length, uint32_t access);
  absl::Status Revoke(uint32_t grant);

  // ---- A completion on which owners die (layout.md, "Poison"; in poison.cc).

  // The oldest unacknowledged completion before `end` that is not void, of a connection that was
  // not failed before if there is one.
  std::optional<uint64_t> OldestToBlame(uint32_t shard, uint64_t end) const;
  // Fails the connection of an unacknowledged completion, and rewrites what the log has of it from
  // there on. Returns the entry as it was. Nobody owns the shard, or it is only claimed: nobody
  // reads its log. `known`: the level that a driver chose that died in this; none: by the entry.
  // kFailedPrecondition: that is not so, and nothing was done.
  absl::StatusOr<arena::CompletionEntry> Poison(
      uint32_t shard, uint64_t completion, std::string_view why,
      std::optional<arena::PoisonLevel> known = std::nullopt);

  const ShardCounters& counters(uint32_t shard) const { return shards_[shard].counters; }
  // MonotonicNanoseconds() when it was established; 0: it was not, or by a driver that died.
  uint64_t established_ns(uint32_t connection) const { return slots_[connection].established_ns; }
  const RecoveryCounters& recovery() const { return recovery_; }
  // Work requests of the transaction that ApplyNext has applied last.
  size_t requests_applied() const { return requests_applied_; }
  uint32_t connection_count() const { return connection_count_; }

  // Test builds only: acknowledges everything unseen at a cut, as a broken recovery would.
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
    uint32_t spares_in_use = 0;  // of its own
    // Of its shared receive queue.
    bool limit_armed = false;
    uint64_t low_ns = 0;  // MonotonicNanoseconds() when it was last told to be low; 0: never
  };
  // Process-private part of a connection slot. All of it follows from the arena but for the text.
  struct Slot {
    bool request_in_log = false;  // its kConnectRequest was not acknowledged yet
    bool sends_held = false;      // until a marker says what became of those before
    bool receives_held = false;   // until the spares have completed
    bool ending = false;          // in ending_
    uint64_t established_ns = 0;  // MonotonicNanoseconds(); 0: not by this driver
    uint64_t abandoned_ns = 0;    // likewise
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
  void AcknowledgeEvent(uint32_t connection, arena::CompletionKind kind);
  void AcknowledgeEnd(uint32_t connection);
  bool MayMove(uint32_t from, uint32_t to) const;
  void PrepareAccept(uint32_t shard, const arena::CommitEntry& entry);
  void FinishAccept(const arena::CommitEntry& entry);
  void AnswerAccept(const arena::CommitEntry& entry);
  void Reject(const arena::CommitEntry& entry);
  absl::Status CreateQueuePair(uint32_t connection);
  std::string CopyPrivateData(uint32_t connection, uint32_t length) const;

  // Posting what the reader has written to the queues.
  verbs::mlx5::QueuePair* DirectQueuesOf(uint32_t connection) const;
  void PostWritten(const TransactionPart& part);
  void PostListed(const TransactionPart& part);
  template <bool kReceive, typename Batch>
  void PostBatch(arena::ConnectionRecord& connection, uint64_t count,
                 verbs::mlx5::QueuePair* queue_pair, const Batch& batch, ShardCounters& counters);

  // Posting. `requests` are [committed, committed + size), and then [posted, posted + size).
  template <typename Request>
  void PostCommitted(uint32_t connection, absl::Span<const Request> requests);
  bool Release(uint32_t connection, bool receive, uint64_t count);
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
  uint32_t ShardOf(const verbs::SharedReceiveQueue* queue) const;
  void FinishEnding(uint32_t shard);

  // Completions and the life of connections.
  absl::Status DrainCompletions(uint32_t shard);
  absl::StatusOr<int> TakeBatch(uint32_t shard);
  absl::StatusOr<int> TakeBatchBySlots(uint32_t shard);
  void LogCompletion(uint32_t shard, const verbs::Completion& completion);
  void LogUnexpected(uint32_t shard, uint32_t connection, const verbs::Completion& completion);
  template <bool kReceive>
  void AppendRequest(ShardQueue& queue, uint32_t connection, const verbs::Completion& completion);
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
  // The connection with this queue pair, or that had it last.
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

  // What became of requests that may have been posted: of a dead driver, or that a provider has
  // refused.
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
  const arena::SpareRecord* LastSpare(uint32_t connection) const;  // that has not completed
  uint32_t CountSpares(uint32_t connection) const;
  void PostSpare(uint32_t connection);
  void OnSpare(uint32_t connection, uint32_t spare, const verbs::Completion& completion);
  void DeliverSpares(uint32_t connection);
  void DeliverSpare(uint32_t connection, uint32_t spare);
  void FreeSpare(uint32_t shard, arena::SpareRecord& spare);
  void FreeSpares(uint32_t connection, bool filled_too, uint32_t last);

  arena::ConnectionRecord& record(uint32_t connection) const { return records_[connection]; }
  // As an index: other processes of a native service can have written anything.
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
  bool posts_directly_ = true;  // as for the connection that Apply had last
  std::vector<ShardQueue> shards_;
  uint32_t last_shard_;
  std::vector<Slot> slots_;  // by connection
  // Where the arena has what is looked up for each message.
  uint32_t connection_slots_;
  arena::ConnectionRecord* records_;
  std::vector<RequestLogs> request_logs_;  // by connection
  uint64_t send_log_mask_, receive_log_mask_;
  bool sole_ = true;  // no other driver of the service lives: slots, grants and events are ours
  std::deque<uint32_t> free_slots_;
  std::vector<uint32_t> abandoned_;
  // Connections that need only one more look at an empty completion queue to have ended.
  std::vector<uint32_t> ending_;
  uint64_t ends_noted_ = 0;  // how often one was added to these two
  absl::flat_hash_map<uint32_t, uint32_t>
      by_queue_pair_;  // connections; room for all from the start
  uint32_t connection_count_ = 0;
  // A recovery looks first, so that receives are posted before the sends of their transaction: what
  // the dead had taken from the queue may free sends whose receives wait for a spare.
  bool posts_held_ = false;
  std::string device_lost_;  // why; empty: it is not
  RecoveryCounters recovery_;
  std::vector<verbs::Completion> completions_;  // scratch
  RequestList one_request_;                     // scratch
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_QUEUE_DRIVER_H_
