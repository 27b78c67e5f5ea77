// The worker library: attaches to a service of Baton, owns shards of its connections, and processes
// their completions in transactions. worker/guide.md introduces it.
//
//   class Echo : public baton::Service { void OnCompletion(Shard&, const Completion&) override; };
//   Echo echo;
//   auto worker =
//       baton::Worker::Attach({.socket = "/run/baton/echo.sock", .service = "echo"}, &echo);
//   (*worker)->Listen("0.0.0.0", 7471);
//   (*worker)->Run();
//
// A worker stages what it does to a shard, and Shard::Commit makes it happen: the commit submits
// work requests, acknowledges completions and replaces application state, all together. If the
// worker dies before the commit, nothing of it happens, and the successor receives the same
// completions.
//
// Thread-safety: only the thread that called Attach may use a Worker, its shards and its
// connections, except where a function says otherwise. That thread must not end before the Worker
// is destroyed or the process ends: the keeper kills a process that goes on without it.
//
// Errors are absl::Status. The library does not throw, and does not end the process.
#ifndef WORKER_WORKER_H_
#define WORKER_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/verbs/verbs.h"

namespace baton {

namespace arena {
struct BankHeader;
struct CommitEntry;
struct CompletionEntry;
struct ShardRecord;
struct UsableBuffers;
struct WorkRequest;
}  // namespace arena

class Heap;
class HeapGrants;
class Shard;
class Worker;
class WorkerShards;
enum class CommitMode : uint8_t;

// One connection of a shard.
//
// The Worker owns it. A pointer to it is valid until OnCompletion has returned from its
// kDisconnected or kConnectFailed, or until this worker no longer owns the shard. The views that it
// returns point into shared memory: do not keep them beyond the callback.
class Connection {
 public:
  // Below Capacity::connections. Another connection may have the same index after this one ended,
  // and then has another generation.
  uint32_t index() const { return index_; }
  uint32_t generation() const { return generation_; }
  Shard& shard() const { return *shard_; }
  bool established() const;
  std::string_view peer_address() const;  // "HOST:PORT"
  // Returns what the peer sent with its connection request.
  std::string_view private_data() const;

  // Returns the application state of the last commit, whoever committed it. Staged state does not
  // show here before its commit. Empty before the first.
  absl::Span<const uint8_t> state() const;
  // Returns the version that SetState was called with. 0 before the first commit of a state.
  uint32_t state_version() const;

  // Return the sequence numbers of the next work requests that are staged. A buffer chosen by the
  // sequence number modulo twice the queue depth is not in use by another request. Shared receives
  // have slots instead: see Shard::next_shared_receive.
  uint64_t next_send() const { return send_staged_; }
  uint64_t next_receive() const { return receive_staged_; }
  // Returns the sequence number of the first send whose completion this owner has not been given.
  uint64_t completed_sends() const { return send_completed_; }

  // Return how many more requests may be staged now. receive_room() is 0 in a service with shared
  // receives.
  uint32_t send_room() const;
  uint32_t receive_room() const;

  // For the application's use. A successor finds nullptr, and so does this worker after it adopted
  // the shard again.
  void* context = nullptr;

 private:
  friend class Shard;
  friend class WorkerShards;

  Shard* shard_ = nullptr;
  uint32_t index_ = 0;
  uint32_t generation_ = 0;
  // Sequence numbers: staged by this worker, committed, seen completed, acknowledged (as
  // committed).
  uint64_t send_staged_ = 0, send_committed_ = 0, send_completed_ = 0, send_acknowledged_ = 0;
  uint64_t receive_staged_ = 0, receive_committed_ = 0, receive_completed_ = 0,
           receive_acknowledged_ = 0;
  uint32_t state_slot_ = 0, state_length_ = 0, state_version_ = 0;
  uint32_t entry_ = 0;           // 1 + index of its entry in the open transaction; 0: none
  uint64_t known_epoch_ = 0;     // of the shard when this was loaded; 0: ended or moved
  uint64_t ended_epoch_ = 0;     // of the shard when its end was delivered
  uint64_t moved_epoch_ = 0;     // of the shard when it was accepted into another
  bool unacknowledged_ = false;  // listed in Shard::unacknowledged_
  // The connection's logs in the arena. receive_log_ is unused if the shard's receives are shared.
  arena::WorkRequest* send_log_ = nullptr;
  arena::WorkRequest* receive_log_ = nullptr;
};

// An event of a connection. `status`, `opcode`, `byte_len` and the immediate are those of
// verbs; after an error only `status` is meaningful among them.
struct Completion {
  enum class Kind : uint8_t {
    kSend = 1,            // a request of Shard::Send has completed
    kReceive = 2,         // a message has arrived
    kConnectRequest = 3,  // a peer asks: answer with Accept or Reject, now or later
    kEstablished = 4,
    // The connection has ended, and this is its last completion. A work request that has had none
    // was not posted and will not be.
    kDisconnected = 5,
    kConnectFailed = 6,  // it was not established, and this is its last completion
  };
  Kind kind = Kind::kReceive;
  verbs::CompletionStatus status = verbs::CompletionStatus::kSuccess;
  verbs::CompletionOpcode opcode = verbs::CompletionOpcode::kSend;
  bool has_immediate = false;
  bool has_invalidate = false;
  uint32_t byte_len = 0;  // bytes received or read
  uint32_t immediate = 0;
  uint64_t sequence = 0;             // of the work request; of a shared receive: its slot
  uint64_t tag = 0;                  // of the work request; of an outcome: that of Worker::Connect
  Connection* connection = nullptr;  // never null in OnCompletion
};

// A range of the service's registered memory, in bytes from the beginning of Worker::buffers(). The
// heaps lie behind these. Worker::Region::At returns ranges of the application's own memory.
struct Buffer {
  uint64_t offset = 0;
  uint32_t length = 0;
};

// A send request of any opcode; the fields are those of verbs::SendRequest (lib/verbs/verbs.h).
struct SendWork {
  verbs::Opcode opcode = verbs::Opcode::kSend;
  // At most 4. The bytes must not change until the request has completed; the span itself is read
  // during the call only.
  absl::Span<const Buffer> buffers = {};
  uint64_t tag = 0;  // comes back in Completion::tag
  uint32_t immediate = 0;
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
  uint32_t invalidate_rkey = 0;
  uint64_t compare_add = 0;
  uint64_t swap = 0;
  bool fence = false;
  bool solicited = false;
};

// A shard that this worker owns, and the transaction that is open on it.
//
// The Worker owns it, and it lives as long as the Worker. It can be used from OnAdopt until
// OnRelease returns or OnLost is called. Until the next OnAdopt another worker owns the shard, and
// functions that stage return kAborted.
class Shard {
 public:
  uint32_t index() const { return index_; }  // below Capacity::shards
  uint64_t epoch() const { return epoch_; }  // grows with each owner; 0: not owned
  Worker& worker() const;
  CommitMode commit_mode() const;  // of the worker

  // Returns all connections of the shard that have not ended. It looks at each connection slot of
  // the service: call it in OnAdopt if you must, not in a loop. Most services do not need it,
  // because the library loads a connection when its first completion comes.
  // A connection that is just being accepted into this shard from another one is missing here. It
  // appears with its first completion.
  std::vector<Connection*> connections();

  // The shard's committed state, like a connection's.
  absl::Span<const uint8_t> state() const;
  uint32_t state_version() const { return state_version_; }

  // The functions from here to Disconnect stage: nothing has an effect before Commit. They return
  //   kResourceExhausted: no room now. Commit, and go on when completions have come.
  //   kInvalidArgument: the message names the wrong field.
  //   kFailedPrecondition: the connection has ended; or Receive where receives are shared, or
  //     ReceiveShared where they are not.
  //   kUnimplemented: the device cannot do it (atomics), or the peer does not answer READs. The
  //     message says which. On a connection that is not established yet this is not known: such a
  //     READ is taken, and ends the connection later.
  //   kAborted: this worker does not own the shard.

  // Posts a receive into `buffers`, at most 4.
  absl::Status Receive(Connection& connection, absl::Span<const Buffer> buffers, uint64_t tag = 0);
  // Posts a receive for the next message of any connection of the shard. Only services with
  // shared_receive_queue_depth have this, and they do not have Receive.
  // It completes as a kReceive of the connection that took it, in no order with those of other
  // connections. If that connection ends in the middle of the message, it completes with
  // kFlushError. Receives that no connection took stay posted when connections end and when the
  // owner changes. The owner posts a new one for each that completed.
  absl::Status ReceiveShared(absl::Span<const Buffer> buffers, uint64_t tag = 0);
  absl::Status Send(Connection& connection, const SendWork& work);
  // Replace the application state; `state` is copied. At most Capacity::connection_state_bytes, and
  // shard_state_bytes. `version` is the format, which a successor finds in state_version().
  absl::Status SetState(Connection& connection, absl::Span<const uint8_t> state, uint32_t version);
  absl::Status SetShardState(absl::Span<const uint8_t> state, uint32_t version);
  // Answer a kConnectRequest. `shard` is where the connection is to live, and must be one that this
  // worker owns; without it, this one. `shard` is not released before this is committed.
  absl::Status Accept(Connection& connection, std::string_view private_data = {});
  absl::Status Accept(Connection& connection, Shard& shard, std::string_view private_data = {});
  absl::Status Reject(Connection& connection, std::string_view private_data = {});
  // kDisconnected follows.
  absl::Status Disconnect(Connection& connection);

  // Returns the shard's part of the registered memory, from which its owner allocates (heap.h).
  // REQUIRES: Capacity::shard_heap_bytes > 0.
  Heap& heap() { return *heap_; }

  // Makes what was staged happen and acknowledges the completions that were delivered so far, as
  // one transaction. The library calls it, unless the mode is CommitMode::kManual.
  // kAborted: this worker does not own the shard, and nothing has happened. kResourceExhausted: the
  // driver is behind; commit later.
  absl::Status Commit();
  // Forgets what was staged. Completions that were delivered stay unacknowledged.
  void Abandon();

  // Returns how many shared receives may be staged now. An owner keeps posting while there is room,
  // beginning in OnAdopt: what a former owner posted is still posted, and counts.
  uint32_t shared_receive_room() const;
  // Returns how many shared receives are staged, posted, or completed and not delivered.
  uint32_t shared_receives_outstanding() const { return shared_outstanding_; }
  // Returns the slot of the next shared receive, below twice the depth. REQUIRES:
  // shared_receive_room() > 0. A buffer chosen by the slot is not in use by another receive.
  // Completion::sequence is the slot.
  uint32_t next_shared_receive() const {
    return shared_free_.empty() ? 0 : uint32_t{shared_free_.back()};
  }

  // Calls `visit` for each buffer of a work request that is not acknowledged: an owner must not use
  // it for anything else. Each lies within Worker::buffers(), a shard's heap or a region. A
  // successor that manages its buffers itself needs this; one that chooses them by sequence number
  // does not.
  void ForEachBufferInUse(const Connection& connection,
                          const std::function<void(const Buffer&, bool send)>& visit) const;
  // The same for shared receives, with their tags.
  void ForEachSharedBufferInUse(
      const std::function<void(const Buffer&, uint64_t tag)>& visit) const;

 private:
  friend class OwnershipChanges;
  friend class WorkerShards;
  friend class Connection;
  friend class Heap;
  friend class HeapGrants;

  struct Staged;  // the open transaction

  Shard(WorkerShards* shards, uint32_t index);

  absl::Status CheckUsable(const Connection& connection) const {
    const bool usable =
        epoch_ != 0 && connection.shard_ == this && connection.known_epoch_ == epoch_;
    return usable ? absl::OkStatus() : WhyUnusable(connection);
  }
  absl::Status WhyUnusable(const Connection& connection) const;
  absl::Status CheckPeer(const Connection& connection, verbs::Opcode opcode) const;
  absl::Status EnterConnection(Connection& connection) {
    return connection.entry_ != 0 ? absl::OkStatus() : AddConnection(connection);
  }
  absl::Status AddConnection(Connection& connection);
  bool MayStageMore(const Connection& connection) const;
  bool StagePlainSend(Connection& connection, const SendWork& work);
  [[gnu::noinline]] absl::Status StageSend(Connection& connection, const SendWork& work);
  [[gnu::noinline]] absl::Status StageReceive(Connection& connection,
                                              absl::Span<const Buffer> buffers, uint64_t tag);
  absl::Status WhyNoReceive() const;
  arena::UsableBuffers usable() const;
  absl::Status StageDecision(Connection& connection, uint8_t kind, uint32_t shard,
                             std::string_view private_data);
  uint32_t EntryRoom() const;
  void LimitIfCrowded() const;
  void NoteStagedRequest();
  bool TakeHeapEntry();
  void NoteHeapChange();
  void ForEachRangeInUse(absl::FunctionRef<void(uint64_t offset, uint64_t length)> visit);
  bool HasEntryRoom(uint32_t needed) const;
  void AddStateAndHeap();
  void NoteStateAndHeap();
  void TellHeap();
  void AddSharedReceives();
  void Publish(bool release);
  bool MovesInto(const Shard& shard) const;
  void ForgetMoved();
  void ClearStaged();
  void Acknowledge();
  void NoteDelivered(Connection& connection);
  void NoteAcknowledged();
  void ForgetDelivered();
  bool NothingStaged() const;
  bool OnlySkipped() const;
  void LoadSharedReceives();

  WorkerShards* shards_;
  uint32_t index_;
  // Pointers that each message needs, and that do not change.
  const arena::ShardRecord* record_;
  const arena::CompletionEntry* log_;
  uint64_t log_mask_, send_log_mask_, receive_log_mask_;
  uint64_t shared_bytes_;  // of the buffers, before the heaps
  uint32_t send_depth_;
  uint32_t receive_depth_;             // 0: receives are shared
  uint32_t entries_per_completion_;    // a completion may need so many in the commit log
  uint32_t plain_opcodes_;             // a bit for each opcode of the device but READs and atomics
  uint64_t most_send_bytes_;           // of one message
  uint64_t epoch_ = 0;                 // 0: not owned
  uint64_t released_epoch_ = 0;        // the last one that this worker gave back
  arena::BankHeader* bank_ = nullptr;  // of the epoch, with its entries
  arena::CommitEntry* bank_entries_ = nullptr;
  uint64_t commit_tail_ = 0;
  mutable uint64_t folded_ = 0;        // entries that the driver has applied, at least
  mutable uint32_t entries_left_ = 0;  // room in the open transaction, at least
  uint64_t delivered_ = 0;             // completions given to the application, or skipped
  uint64_t handed_ = 0;                // completions up to the last one given to the application
  uint64_t acknowledged_ = 0;          // as committed
  uint32_t state_slot_ = 0, state_length_ = 0, state_version_ = 0;
  std::vector<uint16_t> shared_free_;  // free slots of shared receives; the last is next
  uint32_t shared_outstanding_ = 0;
  // The connections, and slots of shared receives, of completions between acknowledged_ and
  // delivered_.
  std::vector<Connection*> unacknowledged_;
  std::vector<uint16_t> shared_unacknowledged_;
  std::unique_ptr<Staged> staged_;
  std::unique_ptr<Heap> heap_;        // null: the service has none
  uint64_t heap_begin_, heap_bytes_;  // in the buffers

 public:
  ~Shard();
};

// The application implements this class. It owns the object, and keeps it alive as long as the
// Worker. All calls come on the thread that called Attach: from Poll, Run, and the end of the
// Worker. A callback that does not return within hang_timeout_ms of the service is a hang: the
// keeper kills the process.
class Service {
 public:
  virtual ~Service() = default;

  // This worker owns `shard` from now on, with the connections and the state that its former owner
  // committed. Completions that the former owner had not acknowledged follow. What is staged here
  // is committed on return. If OnAdopt returns an error, the library gives the shard back.
  virtual absl::Status OnAdopt([[maybe_unused]] Shard& shard) { return absl::OkStatus(); }

  // `completion` is valid during the call.
  //
  // If `poison_deaths` owners die or hang on one completion, one after the other, no further owner
  // receives it. Its connection is failed: the next owner receives it as a kFlushError, and
  // kDisconnected follows. If the owners died on the connection's request or on its kDisconnected,
  // the next owner receives nothing for it. If they died on its flush errors, the next owner
  // receives only kDisconnected, and none of its work requests is outstanding.
  virtual void OnCompletion(Shard& shard, const Completion& completion) = 0;

  // The shard is about to move to another worker: the last chance to stage. The library commits
  // what is staged and releases the shard when this returns. With CommitMode::kManual it does not
  // commit: what the application has not committed is forgotten, and the successor receives the
  // completions that were not acknowledged.
  virtual void OnRelease([[maybe_unused]] Shard& shard) {}

  // The driver has taken the shard away (it fenced this worker), or the Worker ends after its
  // driver. What was staged is forgotten.
  virtual void OnLost([[maybe_unused]] Shard& shard) {}

  // An operator (`baton worker stop`) or an upgrade asks this worker to end. Run then releases the
  // shards and returns. An application that calls Poll itself has to end its loop and destroy the
  // Worker, which releases them. A worker that has not ended after stop_timeout_ms is killed.
  virtual void OnShutdown([[maybe_unused]] std::string_view reason) {}
};

// When the library calls Shard::Commit.
enum class CommitMode : uint8_t {
  // After all completions that one Poll delivers for a shard, at most 64. Connection::state() is
  // the same for all of them, since nothing is committed in between. Completions for which nothing
  // was staged are acknowledged later: with the next transaction, or when the worker is idle, and
  // always before it sleeps.
  kAfterEachBatch,
  // After each OnCompletion. Simpler, with more commits.
  kAfterEachCompletion,
  // The application calls it. While the open transaction has room for fewer than 256 more requests,
  // or for fewer than Heap::kStepsPerCompletion in the heap, nothing is delivered for the shard:
  // commit it. Poison works worse with this mode: only a death within OnCompletion shows which
  // completion it was. If owners die outside it again and again and nothing more is acknowledged,
  // the connection of the oldest completion that is not acknowledged is failed.
  kManual,
};

struct WorkerOptions {
  // The service's socket: "<state_dir>/<service>.sock". In a container that has the service's
  // directory only: "<state_dir>/<service>/worker.sock".
  std::string socket = {};
  std::string service = {};  // Attach fails if the socket is another service's
  std::string name = {};     // shown to operators; empty: the program's name
  std::string version = {};  // of the program, shown to operators
  // The formats of application state (SetState's version) that this program reads, and the one that
  // it writes. An upgrade is refused if the new program does not read what is there, or writes what
  // the old one does not read.
  uint32_t reads_state_version_min = 0;
  uint32_t reads_state_version_max = 0;
  uint32_t writes_state_version = 0;
  CommitMode commit_mode = CommitMode::kAfterEachBatch;
  // Real-time priority (SCHED_RR, 1 to 99) of the thread that calls Attach; 0: unchanged.
  int realtime_priority = 0;
  // Keeps the gRPC stream to control, in a thread of its own: health for operators, notices.
  bool control_stream = true;
  // The longest time for which Wait polls and yields before it sleeps. 0: it sleeps at once. Wait
  // adapts: about 10 us when waits have lately been longer than four times this. While no send has
  // completed since sends were last committed, it polls up to 200 times as long, but at most 20 ms,
  // and not when such waits have lately been longer. With a real-time priority it polls at most 20
  // us, since no other thread would get the processor. The service may set a lower limit.
  uint32_t yield_microseconds = 100;
  // Makes Run call TakeOver for all shards, so that the start of the program is an upgrade. Run
  // returns the error if the keeper refuses. Native workers ignore it: `baton upgrade` starts them.
  bool take_over = false;
};

// The capacity that the service was created with. It does not change while the driver lives.
struct Capacity {
  uint32_t connections = 0;          // at once
  uint32_t send_queue_depth = 0;     // outstanding per connection, a power of two
  uint32_t receive_queue_depth = 0;  // the same for receives; 0: receives are shared
  uint32_t shards = 0;
  uint32_t shared_receive_queue_depth = 0;  // of each shard, a power of two; 0: not shared
  uint32_t connection_state_bytes = 0;      // the longest state of a connection
  uint32_t shard_state_bytes = 0;           // and of a shard
  uint64_t shard_heap_bytes = 0;            // registered memory that a shard allocates from
  // After a death, a successor starts only when the whole process of its predecessor is proven
  // dead.
  bool outside_effects = false;
  // Where the driver suggests that the worker runs: CPUs as Linux lists them ("2-5,8"), and the
  // NUMA node of the arena. Empty and -1: it suggests nothing. The library does not move threads.
  std::string cpus;
  int numa_node = -1;
  uint64_t max_message_bytes = 0;  // the longest message that the device sends; 0: unknown
};

// A process's membership in a service. The thread that called Attach owns it, see above.
class Worker {
 public:
  // Connects to the service's socket and maps its memory. `service` must outlive the Worker.
  // kNotFound: there is no such socket. kFailedPrecondition: it serves another service, or the
  // layout or the protocol do not fit; the message names both. A native worker, which the service's
  // driver has forked, has its session already: it ignores `socket`, and attaches once.
  static absl::StatusOr<std::unique_ptr<Worker>> Attach(const WorkerOptions& options,
                                                        Service* service);
  virtual ~Worker() = default;  // releases the shards that it owns, then detaches

  // Ready, TakeOver, Listen, Connect, GrantRemoteAccess, RevokeGrant, the calls about held
  // descriptors, RegisterMemory and UnregisterMemory block until the keeper answers. No callback
  // comes meanwhile. The wait does not count as a hang, and a native worker goes on driving its
  // queues. If the keeper dies meanwhile, they wait for the next one. kDeadlineExceeded: no answer
  // for 10 s, because the keeper is stopped or busy; it may still do what was asked. Until it has
  // answered, later calls fail at once, and ask nothing. kUnavailable: they did so, no other keeper
  // has followed within 10 s, or the driver is gone.

  // Reports to the keeper that this worker may be given shards.
  virtual absl::Status Ready() = 0;

  // Asks for shards that other workers own. REQUIRES: Ready. Returns when the take-over has begun,
  // and before a shard has moved: OnAdopt follows from Poll, and OnShutdown if it is undone.
  //
  // Without `shards`, or with all of them, this is an upgrade to this process: the shards move once
  // all of its workers are ready and healthy. The former owners stand by for the watch window, get
  // the shards back if this worker dies, hangs or turns unhealthy, and are asked to end after it.
  // With some shards it is a handoff, which is not watched and ends nobody. If the keeper dies
  // before it is over, shards that have not come do not come: ask again.
  //
  // OK, and nothing moves: the worker owns the shards, no other worker is ready, or the keeper has
  // started this process, as a standby or in an upgrade, and decides what it gets.
  // kPermissionDenied: the policy has no workers_may_take_over. kInvalidArgument: there is no such
  // shard. kFailedPrecondition: the worker is not ready, another upgrade is under way, the last
  // take-over by this version has gone back, the service is drained or native, or the formats
  // of the state do not fit. kUnimplemented: the keeper is of an earlier release.
  virtual absl::Status TakeOver(absl::Span<const uint32_t> shards = {}) = 0;

  // Adopts and releases shards and delivers completions, once, without blocking. Returns how many
  // completions and changes of ownership it delivered. kUnavailable: the service's driver is gone,
  // or no keeper has this worker's session any more, and all that the driver had published before
  // was delivered. A native worker goes on without its keeper. The process of a native worker must
  // end after any error. A brokered worker's process destroys the Worker, and may attach again.
  virtual absl::StatusOr<int> Poll() = 0;

  // For a loop of the application's: poll, epoll (also edge-triggered), io_uring, Boost.Asio. Call
  // ArmEvent before each sleep. If it returns true, event_fd() becomes readable when Poll has
  // something to do, when Stop or Wake is called, and each heartbeat_ms of the service, because
  // Poll is the worker's sign of life. If it returns false, call Poll now. Do not read from the
  // descriptor; the Worker owns it.
  virtual int event_fd() const = 0;
  virtual bool ArmEvent() = 0;

  // Makes `fd` a part of the worker's wait: a timerfd, signalfd, eventfd, socket or io_uring.
  // While it is readable, or has an error or a hang-up, Wait returns, event_fd() is readable, and
  // Poll calls `callback` after it has delivered completions. `callback` has to take what is there,
  // or it is called again. The library commits what it stages, unless the mode is
  // CommitMode::kManual. It may call Watch and Unwatch, but neither Poll nor Wait nor Run, and it
  // must not destroy the Worker. A Poll that follows no ArmEvent, and no Wait that has slept, looks
  // at descriptors only each 16th time.
  // The application owns `fd`, and calls Unwatch before it closes it. kAlreadyExists: it is watched
  // already. kResourceExhausted: 256 are. kPermissionDenied: it is a regular file, which cannot be
  // waited for.
  virtual absl::Status Watch(int fd, std::function<void()> callback) = 0;
  // Does nothing if `fd` is not watched. No call of its callback follows.
  virtual void Unwatch(int fd) = 0;

  // Polls, yields, then sleeps, until Poll has something to do, `timeout_ms` milliseconds are over
  // (-1: no limit), or Stop or Wake was called.
  virtual absl::Status Wait(int timeout_ms) = 0;

  // Calls Ready, and TakeOver with WorkerOptions::take_over, then Poll and Wait until Stop or a
  // shutdown notice, and releases all shards.
  virtual absl::Status Run() = 0;
  // Makes Run return. Any thread, and signal handlers.
  virtual void Stop() = 0;
  // Ends a Wait, or a wait for event_fd(). For a thread that has finished something for the loop.
  // Any thread, and signal handlers.
  virtual void Wake() = 0;

  // Makes the service listen at host:port; port 0 is any free one. Idempotent: each worker of a
  // service may call it, and listeners outlive workers. Returns the port.
  virtual absl::StatusOr<uint16_t> Listen(const std::string& host, uint16_t port) = 0;
  // Begins a connection to host:port that lives in `shard`, which this worker must own. The
  // outcome, kEstablished or kConnectFailed with `tag`, is delivered to the worker that owns the
  // shard then. kResourceExhausted: the message names the limit, and nothing was begun. kAborted:
  // the shard is another worker's, or the connection has ended already.
  virtual absl::StatusOr<Connection*> Connect(Shard& shard, const std::string& host, uint16_t port,
                                              std::string_view private_data, uint64_t tag) = 0;

  virtual const Capacity& capacity() const = 0;  // does not change

  // Returns the service's registered memory without the shards' heaps, the same for all of its
  // workers. The application divides it up. Writes to it are not part of a transaction.
  virtual absl::Span<uint8_t> buffers() const = 0;

  // Gives peers access to `length` bytes of the buffers from `offset`. `access`: kRemoteRead,
  // kRemoteWrite or kRemoteAtomic of verbs::Access, or several. Returns the rkey and the address
  // that peers have to use. The grant belongs to the service and outlives this worker. If this
  // worker dies before it has the answer, the grant is withdrawn. A large range takes time; shards
  // are served meanwhile. A grant that is made after kDeadlineExceeded is revoked: the worker does
  // that in Poll. kAborted: the range is in the heap of a shard that the worker does not own.
  // kUnimplemented: the device has no atomics.
  struct Grant {
    uint32_t id = 0;
    uint32_t rkey = 0;
    uint64_t remote_address = 0;
  };
  virtual absl::StatusOr<Grant> GrantRemoteAccess(uint64_t offset, uint64_t length,
                                                  uint32_t access) = 0;
  // OK: no peer has access through the grant any more, and the memory may be used for something
  // else. After any other error than kNotFound peers may still have it. If the keeper does not
  // answer, the worker revokes the grant in a later Poll. kUnavailable, too: another worker is
  // revoking it. kAborted: it is of the heap of a shard that this worker does not own.
  virtual absl::Status RevokeGrant(uint32_t id) = 0;

  // Reports whether this worker is healthy; a worker that never reports counts as healthy. An
  // upgrade waits until the new worker is ready and healthy, and goes back if it reports that it is
  // not while it is watched. Operators see the first 256 bytes of `detail`. Any thread. Does not
  // block, and is cheap while nothing changes.
  virtual void ReportHealth(bool healthy, std::string_view detail) = 0;

  virtual uint64_t id() const = 0;  // as operators see it; no other worker gets the same

  // The service's driver holds descriptors for workers, so that a successor can go on with a file
  // that was renamed or deleted meanwhile. These block as Listen does. kUnimplemented: the keeper
  // or the driver is of an earlier release.

  // Hands a duplicate of `fd` to the driver, which holds it until DropDescriptor, however this
  // worker ends. Returns its number, which is not 0 and is never given again while the driver
  // lives. Every worker of the service can take it, with the access that `fd` has. `tag`: for
  // HeldDescriptors, such as the number of a shard. If this worker dies before it has committed the
  // number, only HeldDescriptors tells of it. kInvalidArgument: `fd` is neither a memfd nor a
  // regular file on a local file system, since the close of any other may wait. kResourceExhausted:
  // a quota of the policy, or 256 are held. Locks of flock(2) that `fd` has last as long as it is
  // held.
  virtual absl::StatusOr<uint64_t> HoldDescriptor(int fd, uint64_t tag = 0) = 0;
  // Returns a duplicate, close-on-exec, which the caller closes. It shares its file offset with all
  // others: read with pread(2). Its close ends this process's locks (fcntl(2)) on the file.
  // kNotFound: nothing with that number is held.
  virtual absl::StatusOr<int> TakeDescriptor(uint64_t number) = 0;
  // Returns OK also if nothing with that number is held. Duplicates that were taken stay open.
  virtual absl::Status DropDescriptor(uint64_t number) = 0;
  // Returns the numbers that are held with `tag`, of all workers, ascending. The owner of a shard
  // that it adopts drops those that no state of the shard names.
  virtual absl::StatusOr<std::vector<uint64_t>> HeldDescriptors(uint64_t tag = 0) = 0;
  // Both do the same as those without Begin, and do not wait. If they return OK, `done` is called
  // once, from Poll, outside of other callbacks; it stages nothing. It is not called after
  // the worker's end. kUnavailable: nothing was asked, because the keeper is gone or has
  // an earlier request to answer: try again soon. To `done`, kUnavailable and kDeadlineExceeded
  // mean that nobody knows whether the driver has done it.
  virtual absl::Status BeginHoldDescriptor(int fd, uint64_t tag,
                                           std::function<void(absl::StatusOr<uint64_t>)> done) = 0;
  virtual absl::Status BeginDropDescriptor(uint64_t number,
                                           std::function<void(absl::Status)> done) = 0;

  // A range of the application's own memory that the device reads: in place of buffers(), a send or
  // WRITE may name it, and peers may READ it. Receives and what READs and atomics return go to
  // buffers() and heaps only. A region is the service's. It outlives its worker, because a
  // successor's driver may have to post the worker's requests.
  struct Region {
    uint32_t id = 0;          // 1 to 64
    uint64_t length = 0;      // bytes
    uint64_t descriptor = 0;  // of the memfd, as HoldDescriptor has numbered it
    uint64_t offset = 0;      // in the memfd
    // For peers that READ. They have no access if the region was registered without kRemoteRead.
    uint32_t access = 0;
    uint32_t rkey = 0;
    uint64_t remote_address = 0;

    // Returns [from, from + bytes) of the region, for SendWork::buffers.
    Buffer At(uint64_t from, uint32_t bytes) const { return {uint64_t{id} << 48 | from, bytes}; }
  };
  // Registers `length` bytes from `offset` of a memfd that HoldDescriptor has handed over, sealed
  // with F_SEAL_SHRINK and F_SEAL_GROW, and writable. `access`: 0, or verbs::kRemoteRead. The
  // driver maps the memfd; the application maps it for itself. Blocks like GrantRemoteAccess, and
  // counts as a grant of as many bytes. Registering takes time for each page; shards are served
  // meanwhile. If this worker dies before it has the answer, or has waited in vain for it, the
  // region is unregistered. kNotFound: no such descriptor is held. kInvalidArgument: the message
  // names the argument, or the seal that is missing. kResourceExhausted: 64 regions exist, or the
  // message names the quota or limit. kUnimplemented: the service's driver is of an earlier
  // release.
  virtual absl::StatusOr<Region> RegisterMemory(uint64_t descriptor, uint64_t offset,
                                                uint64_t length, uint32_t access = 0) = 0;
  // REQUIRES: no worker has staged a request that names the region: the driver takes it for
  // misconduct when a worker commits one afterwards. OK: the device does not read the memory any
  // more. kFailedPrecondition: committed requests that name the region have not completed; nothing
  // has happened. kNotFound: there is no such region. After any other error it may be gone, or go
  // yet: name it no more, and look at Regions() before another try.
  virtual absl::Status UnregisterMemory(uint32_t id) = 0;
  // Returns the service's regions, whoever registered them, by id. Allocates memory.
  virtual std::vector<Region> Regions() const = 0;
};

}  // namespace baton

#endif  // WORKER_WORKER_H_
