// Inside the worker library: one attachment to a service.
#ifndef WORKER_WORKER_IMPL_H_
#define WORKER_WORKER_IMPL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/pauses.h"
#include "proto/baton/internal/keeper.pb.h"
#include "worker/control_stream.h"
#include "worker/keeper_session.h"
#include "worker/native_host.h"
#include "worker/thread_lock.h"
#include "worker/worker.h"

namespace baton {

// Returns how many more requests a queue and its log have room for.
inline uint32_t RoomOf(uint64_t staged, uint64_t completed, uint64_t acknowledged, uint32_t depth) {
  const uint64_t log = 2 * uint64_t{depth} - (staged - acknowledged);
  const uint64_t queue = depth - std::min<uint64_t>(staged - completed, depth);
  return static_cast<uint32_t>(std::min(log, queue));
}

// Requests before the returned sequence number have room in the queue and in the log.
inline uint64_t RoomEnd(uint64_t completed, uint64_t acknowledged, uint32_t depth) {
  return std::min(completed + depth, acknowledged + 2 * uint64_t{depth});
}

struct Shard::Staged {
  // Entries kept free for what Commit itself adds (shard state, acknowledgement), and for the
  // release, which must always be possible after a commit.
  static constexpr uint32_t kReservedEntries = 8;

  // Returns how many entries `receives` shared receives need.
  static size_t SharedEntries(size_t receives) {
    return (receives + arena::kSharedReceivesPerEntry - 1) / arena::kSharedReceivesPerEntry;
  }

  std::vector<arena::CommitEntry> entries;
  std::vector<Connection*> connections;  // those with a kConnection entry
  std::vector<uint16_t> shared;          // slots of shared receives
  bool has_state = false;
  bool moves = false;  // a connection is accepted into another shard
  arena::CommitEntry state = {};
  uint32_t requests = 0;
};

inline bool Shard::HasEntryRoom(uint32_t needed) const {
  return entries_left_ >= needed || EntryRoom() >= needed;
}

inline void Shard::NoteDelivered(Connection& connection) {
  if (connection.unacknowledged_) return;
  connection.unacknowledged_ = true;
  unacknowledged_.push_back(&connection);
}

class WorkerImpl final : public Worker {
 public:
  WorkerImpl(const WorkerOptions& options, Service* service);
  ~WorkerImpl() override;

  absl::Status Attach();

  // The parts of Attach that need no keeper: a simulation calls these instead.
  absl::Status FindNativeHost();
  void Connected(FileDescriptor keeper) {
    keeper_.emplace(std::move(keeper));
    keeper_->WaitWith([this](pollfd socket, int timeout_ms) { AwaitKeeper(socket, timeout_ms); });
  }
  absl::Status Start(std::shared_ptr<const arena::Arena> arena, FileDescriptor wake, uint64_t id,
                     uint32_t slot);
  // Releases all shards and detaches from the keeper, like the destructor.
  void Detach();
  // For a simulation: the worker's process is dead, and nothing of it happens any more.
  void Die() { keeper_gone_ = true; }

  absl::Status Ready() override;
  absl::StatusOr<int> Poll() override;
  int event_fd() const override { return event_fd_.get(); }
  bool ArmEvent() override;
  absl::Status Wait(int timeout_ms) override;
  absl::Status Run() override;
  void Stop() override;
  void Wake() override;
  absl::StatusOr<uint16_t> Listen(const std::string& host, uint16_t port) override;
  absl::StatusOr<Connection*> Connect(Shard& shard, const std::string& host, uint16_t port,
                                      std::string_view private_data, uint64_t tag) override;
  const Capacity& capacity() const override { return capacity_; }
  absl::Span<uint8_t> buffers() const override;
  absl::StatusOr<Grant> GrantRemoteAccess(uint64_t offset, uint64_t length,
                                          uint32_t access) override;
  absl::Status RevokeGrant(uint32_t id) override;
  void ReportHealth(bool healthy, std::string_view detail) override;
  uint64_t id() const override { return id_; }

  const arena::Arena& arena() const { return *arena_; }
  bool Owns(const Shard& shard) const { return shard.epoch_ != 0; }
  Shard& shard(uint32_t index) { return *shards_[index]; }
  // Returns the connection in slot `index`, or null if the slot has another one or none. Loads it
  // from the driver's record if this worker does not know it yet.
  Connection* Resolve(Shard& shard, uint32_t index, uint32_t generation) {
    if (index >= capacity_.connections) return nullptr;
    Connection& connection = connections_[index];
    const bool known = connection.shard_ == &shard && connection.generation_ == generation &&
                       connection.known_epoch_ == shard.epoch_;
    return known ? &connection : Find(shard, index, generation);
  }
  uint32_t GenerationOfVoid(const arena::CompletionEntry& entry) const;
  void NoteSendsCommitted() { awaits_device_ = true; }
  uint32_t layout_version() const { return layout_version_; }
  bool awaits_device() const { return awaits_device_; }
  // Called after each transaction was published. `released`: it gives the shard away.
  void TellDriver(const Shard& shard, bool released) {
    if (native_) return TellNativeHost(shard, released);
    WakeDriver();
  }

 private:
  absl::Status PrepareEventFd();
  absl::Status CheckDescriptors() const;
  void StartControlStream(const internal::Attached& attached);
  uint32_t SpokenLayoutVersion() const;
  absl::Status Await(int timeout_ms);
  absl::StatusOr<bool> Sleep(int timeout_ms);
  void AwaitKeeper(pollfd socket, int timeout_ms);
  void WakeDriver();
  void TellNativeHost(const Shard& shard, bool released);
  void RecoverAndPoll();
  bool Advance();
  bool HasWork() const;
  void CheckKeeper();
  void LoseKeeper();
  void BeginResumption();
  void ContinueResumption();
  void SetResumptionTimer(long period_ns);
  absl::Status WatchSession();
  void HoldUntilTheEnd();
  void NoteStopRequest();
  void AskShutdown(std::string_view reason);
  int HandleOwnership();
  void AdoptTheRest();
  bool Adopt(Shard& shard, uint64_t epoch);
  void Release(Shard& shard);
  void Lose(Shard& shard);
  int Deliver(Shard& shard);
  void NoteIdleLook();
  void AcknowledgeDelivered();
  void DeliverNext(Shard& shard, bool shares_receives);
  void ShutDown();
  void Hand(Shard& shard, const arena::CompletionEntry& entry, uint32_t head,
            Connection& connection, bool shared_receive);
  void TellHandling(const Shard& shard, bool in_handler);
  Connection* Find(Shard& shard, uint32_t index, uint32_t generation);
  void Load(Connection& connection, Shard& shard, uint32_t index);
  static Completion Translate(const arena::CompletionEntry& entry, uint32_t head,
                              Connection* connection);

  void Abandon();

  const pid_t process_;  // the process that made the worker
  const WorkerOptions options_;
  Service* const service_;
  YieldBudget yield_budget_;
  YieldBudget device_yield_budget_;  // while awaits_device_
  std::optional<KeeperSession> keeper_;
  std::shared_ptr<const arena::Arena> arena_;
  uint32_t layout_version_ = arena::kLayoutVersion;  // the newest that library and arena know
  Capacity capacity_;
  std::unique_ptr<NativeHost> native_;  // null: the driver is `baton-driver`, and has to be woken
  std::optional<ThreadLock> lock_;
  FileDescriptor wake_;       // socket to the engine: a byte either way wakes the other side
  FileDescriptor self_wake_;  // eventfd: Stop and shutdown notices
  FileDescriptor event_fd_;
  uint64_t id_ = 0;
  uint32_t slot_ = 0;
  uint32_t heartbeat_ms_ = 1000;
  uint64_t seen_changes_ = 0;
  uint64_t polls_ = 0;
  uint32_t idle_looks_ = 0;  // looks in a row that found nothing
  bool armed_ = false;
  bool driven_ = false;  // a look for work has driven the queues since the last turn
  // Sends were committed, and since then none has completed, and no connection has ended.
  bool awaits_device_ = false;
  bool attached_ = false;  // the keeper counts this worker among its own
  bool keeper_gone_ = false;
  // Armed while the keeper is gone and another may follow it.
  FileDescriptor resumption_timer_;
  bool resuming_ = false;
  int watched_socket_ = -1;             // the session's socket in event_fd_
  uint32_t watched_socket_number_ = 0;  // KeeperSession::sockets_used() when it was added
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<Connection> connections_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> woken_{false};  // by Wake, since the last Wait
  std::atomic<bool> shutdown_asked_{false};
  bool stop_request_noted_ = false;
  std::mutex shutdown_mutex_;
  std::string shutdown_reason_;             // guarded by shutdown_mutex_
  std::unique_ptr<ControlStream> control_;  // last: its thread uses what is above
};

}  // namespace baton

#endif  // WORKER_WORKER_IMPL_H_
