// The worker library: attach to a service of Baton, own shards of its connections, and process
// their completions in transactions.
//
//   class Echo : public baton::Service { void OnCompletion(Shard&, const Completion&) override; };
//   auto worker = baton::Worker::Attach({.socket = "/run/baton/echo.sock", .service = "echo"},
//   &echo);
//   (*worker)->Listen("0.0.0.0", 7471);
//   (*worker)->Run();
//
// Everything that a worker does to a shard is staged, and takes effect with Shard::Commit: work
// requests are released, completions acknowledged and application state replaced together, or,
// when the worker dies before, not at all. The successor then sees the same completions again.
//
// Thread-safety: a Worker, its shards and connections are used by one thread, the one that called
// Attach, except where a function says otherwise. That thread ends after its worker, or with its
// process: the keeper kills a process that goes on without it. The library never aborts or throws.
#ifndef WORKER_WORKER_H_
#define WORKER_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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
struct WorkRequest;
}  // namespace arena

class Shard;
class Worker;
class WorkerImpl;

// One connection of a shard. Valid from OnAdopt or its first event until OnCompletion has returned
// from kDisconnected or kConnectFailed, or the shard was released.
class Connection {
 public:
  uint32_t index() const { return index_; }  // below the service's max_connections
  uint32_t generation() const { return generation_; }
  Shard& shard() const { return *shard_; }
  bool established() const;
  std::string_view peer_address() const;
  std::string_view private_data() const;  // of the peer, from its connection request

  // Application state as of the last commit: empty before the first.
  absl::Span<const uint8_t> state() const;
  uint32_t state_version() const;

  // Sequence numbers that the next staged work requests get. A buffer chosen by the sequence
  // number modulo twice the queue depth is never in use by another request. (Shared receives have
  // slots instead, see Shard::next_shared_receive.)
  uint64_t next_send() const { return send_staged_; }
  uint64_t next_receive() const { return receive_staged_; }

  // How many more may be staged now. Of receives: none where the shard shares them.
  uint32_t send_room() const;
  uint32_t receive_room() const;

  void* context = nullptr;  // the application's; not shared with other workers

 private:
  friend class Shard;
  friend class WorkerImpl;

  Shard* shard_ = nullptr;
  uint32_t index_ = 0;
  uint32_t generation_ = 0;
  // Sequence numbers: staged by us, committed, seen completed, acknowledged (as committed).
  uint64_t send_staged_ = 0, send_committed_ = 0, send_completed_ = 0, send_acknowledged_ = 0;
  uint64_t receive_staged_ = 0, receive_committed_ = 0, receive_completed_ = 0,
           receive_acknowledged_ = 0;
  uint32_t state_slot_ = 0, state_length_ = 0, state_version_ = 0;
  uint32_t entry_ = 0;           // 1 + index of its entry in the open transaction; 0: none
  uint64_t known_epoch_ = 0;     // of the shard when this was loaded; 0: ended or moved
  uint64_t ended_epoch_ = 0;     // of the shard when its end was delivered
  bool unacknowledged_ = false;  // among its shard's
  // Its work requests in the arena; a receive's are unused where the shard shares them.
  arena::WorkRequest* send_log_ = nullptr;
  arena::WorkRequest* receive_log_ = nullptr;
};

struct Completion {
  enum class Kind : uint8_t {
    kSend = 1,
    kReceive = 2,
    kConnectRequest = 3,  // answer with Accept or Reject, now or later
    kEstablished = 4,
    kDisconnected = 5,   // the last of its connection: what has no completion yet was never posted
                         // and never will be
    kConnectFailed = 6,  // the last of a connection that was never established
  };
  Kind kind = Kind::kReceive;
  verbs::CompletionStatus status = verbs::CompletionStatus::kSuccess;
  verbs::CompletionOpcode opcode = verbs::CompletionOpcode::kSend;
  bool has_immediate = false;
  bool has_invalidate = false;
  uint32_t byte_len = 0;
  uint32_t immediate = 0;
  uint64_t sequence = 0;  // of the work request; of a shared receive its slot
  uint64_t tag = 0;       // of the work request, or of Worker::Connect
  Connection* connection = nullptr;
};

// A range of the service's registered buffers.
struct Buffer {
  uint64_t offset = 0;
  uint32_t length = 0;
};

struct SendWork {
  verbs::Opcode opcode = verbs::Opcode::kSend;
  absl::Span<const Buffer> buffers = {};  // at most 4
  uint64_t tag = 0;
  uint32_t immediate = 0;
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
  uint32_t invalidate_rkey = 0;
  uint64_t compare_add = 0;
  uint64_t swap = 0;
  bool fence = false;
  bool solicited = false;
};

// One shard that this worker owns.
class Shard {
 public:
  uint32_t index() const { return index_; }
  uint64_t epoch() const { return epoch_; }
  Worker& worker() const;

  // All connections of the shard that have not ended. One that is being accepted into it from
  // another shard at this moment comes with its first completion instead. Looks at every connection
  // slot of the service: for OnAdopt, not for a loop. (An adopted shard needs no such look:
  // connections are loaded when their first completion comes, so moving 10,000 costs what moving
  // one costs.)
  std::vector<Connection*> connections();

  // Application state of the shard as of the last commit.
  absl::Span<const uint8_t> state() const;
  uint32_t state_version() const { return state_version_; }

  // Staging. Nothing has an effect before Commit. kResourceExhausted: no room now; commit, and go
  // on when completions came. kInvalidArgument names the bad field. kFailedPrecondition: the
  // connection has ended. kUnimplemented: the service's device, or the connection's peer, does not
  // do that (atomics; READs of a peer that answers none), the message says which. What the peer of
  // a connection that is not established yet does is not known: a READ that it does not answer ends
  // it then.
  absl::Status Receive(Connection& connection, absl::Span<const Buffer> buffers, uint64_t tag = 0);
  // A receive for whichever connection of the shard has the next message, in a service with
  // shared_receive_queue_depth; Receive is then refused, and this in others (kFailedPrecondition).
  // It completes as a receive of that connection, in no order with those of others; with
  // kFlushError when that connection ends in the middle of its message. It is the shard's all the
  // same: what is posted stays posted when a connection ends, and who has completions posts anew.
  absl::Status ReceiveShared(absl::Span<const Buffer> buffers, uint64_t tag = 0);
  absl::Status Send(Connection& connection, const SendWork& work);
  absl::Status SetState(Connection& connection, absl::Span<const uint8_t> state, uint32_t version);
  absl::Status SetShardState(absl::Span<const uint8_t> state, uint32_t version);
  // `shard`: where the connection is to live, a shard that this worker owns.
  absl::Status Accept(Connection& connection, std::string_view private_data = {});
  absl::Status Accept(Connection& connection, Shard& shard, std::string_view private_data = {});
  absl::Status Reject(Connection& connection, std::string_view private_data = {});
  absl::Status Disconnect(Connection& connection);

  // Releases everything staged and acknowledges the completions delivered so far, as one
  // transaction. With CommitMode::kAfterEachBatch the library calls it. kAborted: the shard is no
  // longer ours, nothing had an effect.
  absl::Status Commit();
  // Forgets what was staged; completions delivered stay unacknowledged.
  void Abandon();

  // Of shared receives. How many more may be staged now: an owner posts as long as there is room,
  // also when it adopts the shard (what its former owner had posted is posted still).
  uint32_t shared_receive_room() const;
  // Posted, staged or about to be delivered.
  uint32_t shared_receives_outstanding() const { return shared_outstanding_; }
  // The slot that the next one gets, below twice the depth; only while there is room. A buffer
  // chosen by it is never in use by another, and its completion has it as `sequence`.
  uint32_t next_shared_receive() const {
    return shared_free_.empty() ? 0 : uint32_t{shared_free_.back()};
  }

  // Calls `visit` for each buffer that a work request not yet acknowledged refers to: what a
  // successor must not reuse. All of them lie within Worker::buffers().
  void ForEachBufferInUse(Connection& connection,
                          const std::function<void(const Buffer&, bool send)>& visit) const;
  // Likewise of the shared receives, with their tags.
  void ForEachSharedBufferInUse(
      const std::function<void(const Buffer&, uint64_t tag)>& visit) const;

 private:
  friend class WorkerImpl;
  friend class Connection;

  struct Staged;  // the open transaction

  Shard(WorkerImpl* impl, uint32_t index);

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
  absl::Status StageDecision(Connection& connection, uint8_t kind, uint32_t shard,
                             std::string_view private_data);
  uint32_t EntryRoom() const;
  bool HasEntryRoom(uint32_t needed) const;
  void AddSharedReceives();
  void Publish(bool release);
  void ForgetMoved();
  void ClearStaged();
  void Acknowledge();
  void NoteDelivered(Connection& connection);
  void NoteAcknowledged();
  void ForgetDelivered();
  bool NothingStaged() const;
  bool OnlySkipped() const;
  void LoadSharedReceives();

  WorkerImpl* impl_;
  uint32_t index_;
  // What is looked up for each message, and does not change.
  const arena::ShardRecord* record_;
  const arena::CompletionEntry* log_;
  uint64_t log_mask_, send_log_mask_, receive_log_mask_, buffer_bytes_;
  uint32_t send_depth_;
  uint32_t receive_depth_;       // 0: receives are shared
  uint32_t plain_opcodes_;       // a bit for each that the device has, and is no READ or atomic
  uint64_t most_send_bytes_;     // of one message
  uint64_t epoch_ = 0;           // 0: not ours
  uint64_t released_epoch_ = 0;  // the last one that we gave back
  arena::BankHeader* bank_ = nullptr;  // of the epoch, with its entries
  arena::CommitEntry* bank_entries_ = nullptr;
  uint64_t commit_tail_ = 0;
  mutable uint64_t folded_ = 0;        // entries that the driver is done with: so many, or more
  mutable uint32_t entries_left_ = 0;  // the open transaction has room for so many, or more
  uint64_t delivered_ = 0;             // completions given to the application, or skipped
  uint64_t handed_ = 0;                // up to the last that was given to it
  uint64_t acknowledged_ = 0;          // as committed
  uint32_t state_slot_ = 0, state_length_ = 0, state_version_ = 0;
  std::vector<uint16_t> shared_free_;  // slots of shared receives that are nobody's, the next last
  uint32_t shared_outstanding_ = 0;
  // Of completions between acknowledged_ and delivered_: their connections, and their slots of
  // shared receives.
  std::vector<Connection*> unacknowledged_;
  std::vector<uint16_t> shared_unacknowledged_;
  std::unique_ptr<Staged> staged_;

 public:
  ~Shard();
};

// What the application implements. All calls come from Worker::Poll, on its thread.
class Service {
 public:
  virtual ~Service() = default;

  // `shard` is ours from now on, with the connections and state its former owner committed.
  // Completions that owner had not acknowledged follow. An error gives the shard back.
  virtual absl::Status OnAdopt([[maybe_unused]] Shard& shard) { return absl::OkStatus(); }

  // A completion in which `poison_deaths` owners of the service die or hang, one after the other,
  // is given to no other: its connection is failed, and ends like one that failed by itself (the
  // completion becomes a kFlushError, kDisconnected follows). Of a connection that kills its owners
  // with its request or with its end, no successor hears anything; with its flush errors, only of
  // its end, with which all of its work requests are over.
  virtual void OnCompletion(Shard& shard, const Completion& completion) = 0;

  // Somebody asked that the shard moves: the last chance to stage and commit. It is released when
  // this returns. What is not committed then (CommitMode::kManual) has no effect, and completions
  // not acknowledged are delivered to the successor.
  virtual void OnRelease([[maybe_unused]] Shard& shard) {}

  // The shard was taken away without our doing (this worker was fenced).
  virtual void OnLost([[maybe_unused]] Shard& shard) {}

  // This worker is asked to end: by an operator (`baton worker stop`), or because an upgrade has
  // replaced it. Run releases its shards and returns after this; who calls Poll instead destroys
  // the Worker, which does the same.
  virtual void OnShutdown([[maybe_unused]] std::string_view reason) {}
};

enum class CommitMode : uint8_t {
  // After all OnCompletion calls of one turn of Poll, at most 64 a shard. Where they have staged
  // nothing, the completions are acknowledged with the next transaction, or when a few looks have
  // found nothing, at the latest before the worker sleeps.
  kAfterEachBatch,
  kAfterEachCompletion,  // the simple way: every OnCompletion is a transaction of its own
  // The application calls Shard::Commit. Only a death within OnCompletion tells which completion it
  // was. When owners that process later than that die again and again, and nothing more is
  // acknowledged, the connection of the oldest completion not acknowledged is failed.
  kManual,
};

struct WorkerOptions {
  // The service's socket: "<state_dir>/<service>.sock" or, where a container has the service's
  // directory alone, "<state_dir>/<service>/worker.sock".
  std::string socket = {};
  std::string service = {};  // refused when the socket serves another
  std::string name = {};     // shown to operators; empty: the program's name
  std::string version = {};  // of the program, shown to operators
  // Formats of application state (SetState's version).
  uint32_t reads_state_version_min = 0;
  uint32_t reads_state_version_max = 0;
  uint32_t writes_state_version = 0;
  CommitMode commit_mode = CommitMode::kAfterEachBatch;
  // Real-time priority (SCHED_RR, 1 to 99) of the thread that calls Attach; 0: as it is.
  int realtime_priority = 0;
  bool control_stream = true;  // keep the gRPC stream to control, in a thread of its own
  // How long Wait polls and yields before it sleeps, at most: so long while what it waits for comes
  // soon (within four times that), and about 10 us when it does not; 200 times as long, but no more
  // than 20 ms, when it has committed sends of which none has completed, unless such waits take
  // longer. 0: it sleeps at once. With a real-time priority at most 20 us, since nobody else would
  // get the processor.
  uint32_t yield_microseconds = 100;
};

// What the service was created with, and its arena has room for.
struct Capacity {
  uint32_t connections = 0;          // at once; their indices are below
  uint32_t send_queue_depth = 0;     // outstanding per connection, a power of two
  uint32_t receive_queue_depth = 0;  // likewise; 0: the receives are shared
  uint32_t shards = 0;
  uint32_t shared_receive_queue_depth = 0;  // of each shard, a power of two; 0: none are shared
  uint32_t connection_state_bytes = 0;
  uint32_t shard_state_bytes = 0;
  // A successor starts only when the whole process of its predecessor is proven dead.
  bool outside_effects = false;
  // Where the keeper suggests that the worker runs, as Linux lists CPUs ("2-5,8"), and the NUMA
  // node of the arena's memory: near its engine and its device. Empty, -1: nowhere in particular.
  std::string cpus;
  int numa_node = -1;
};

class Worker {
 public:
  // Connects to the service's socket and maps its arena. kFailedPrecondition names both versions
  // when layout or protocol do not fit. In a native worker, which its keeper has loaded, the
  // session with the keeper is there already and `socket` is not looked at; it attaches once.
  static absl::StatusOr<std::unique_ptr<Worker>> Attach(const WorkerOptions& options,
                                                        Service* service);
  virtual ~Worker() = default;  // detaches: shards still owned are released first

  // Ready, Listen, Connect, GrantRemoteAccess and RevokeGrant wait for the keeper's answer.
  // kDeadlineExceeded: there was none for 10 s, because the keeper is stopped or busy; what was
  // asked may still be done. A worker that waits does not count as hung, and a native one drives
  // its queues meanwhile, but no function of its Service is called.

  // From now on shards may be given to this worker.
  virtual absl::Status Ready() = 0;

  // One turn, without blocking: adopts and releases shards, delivers completions. Returns how many
  // completions and ownership changes were delivered. kUnavailable: the keeper is gone, and what it
  // had said before that was delivered. A native worker goes on without it; with any error from
  // here its process has to end.
  virtual absl::StatusOr<int> Poll() = 0;

  // For poll and epoll loops: when ArmEvent returned true, event_fd() becomes readable as soon as
  // Poll has something to do. False: it has already.
  virtual int event_fd() const = 0;
  virtual bool ArmEvent() = 0;

  // Polls, yields, then sleeps until there is something to do, `timeout_ms` (-1: for ever) is
  // over, or Stop was called.
  virtual absl::Status Wait(int timeout_ms) = 0;

  // Ready, then Poll and Wait until Stop or a shutdown notice; releases all shards at the end.
  virtual absl::Status Run() = 0;
  virtual void Stop() = 0;  // any thread, and signal handlers
  // Wait, or a wait for event_fd, ends: for what another thread has done. Any thread, and signal
  // handlers.
  virtual void Wake() = 0;

  // Listens for the service; idempotent, so every worker of a service may ask. Returns the port.
  virtual absl::StatusOr<uint16_t> Listen(const std::string& host, uint16_t port) = 0;
  // Connects out, into an owned shard. The outcome arrives as kEstablished or kConnectFailed with
  // `tag`, at whoever owns the shard then. kResourceExhausted names the limit that is reached, and
  // nothing was begun.
  virtual absl::StatusOr<Connection*> Connect(Shard& shard, const std::string& host, uint16_t port,
                                              std::string_view private_data, uint64_t tag) = 0;

  virtual const Capacity& capacity() const = 0;  // does not change

  // The service's registered memory; Buffer::offset counts from here.
  virtual absl::Span<uint8_t> buffers() const = 0;

  // Gives peers access to a range of the buffers; it outlives this worker, unless this worker is
  // gone before it was answered. Returns the rkey that the peer needs, with the address the peer
  // has to use. Takes time for each page, in which shards are served. kUnimplemented: kRemoteAtomic
  // of a device without atomics.
  struct Grant {
    uint32_t id = 0;
    uint32_t rkey = 0;
    uint64_t remote_address = 0;
  };
  virtual absl::StatusOr<Grant> GrantRemoteAccess(uint64_t offset, uint64_t length,
                                                  uint32_t access) = 0;
  // OK: no peer has access by it any more, and the memory may be used for something else.
  // kUnavailable: another worker has it revoked right now.
  virtual absl::Status RevokeGrant(uint32_t id) = 0;

  // Tells how the worker is. An upgrade waits until the new worker is ready and healthy, and undoes
  // itself when it turns unhealthy while it is watched. Operators read `detail`, of which the first
  // 256 bytes go over WorkerOptions::control_stream. A worker that never says is healthy. Any
  // thread, does not block, and costs nothing while nothing changes.
  virtual void ReportHealth(bool healthy, std::string_view detail) = 0;

  virtual uint64_t id() const = 0;
};

}  // namespace baton

#endif  // WORKER_WORKER_H_
