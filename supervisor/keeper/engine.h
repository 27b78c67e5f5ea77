// The driver of a brokered service: one thread that operates all its queues and moves its shards
// between workers.
//
// Everything is done on the engine's thread; other threads hand it work with Post. It never waits
// for a worker: an owner that is slow, hung or dead delays its own shards only.
#ifndef SUPERVISOR_KEEPER_ENGINE_H_
#define SUPERVISOR_KEEPER_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/latency_histogram.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "lib/verbs/verbs.h"
#include "supervisor/keeper/death_count.h"

namespace baton::keeper {

struct EngineOptions {
  // A successor starts only when the whole former process is proven dead.
  bool outside_effects = false;
  int realtime_priority = 0;  // of its thread; 0: none
  // How long the idle engine yields before it sleeps.
  uint32_t yield_microseconds = 10;
  // Native: the owner of a shard drives it, with Drive, and nobody else does.
  bool owners_drive = false;
  // Deaths on one completion after which its connection is failed.
  uint32_t poison_deaths = 3;
  // Test builds only: what was not acknowledged is forgotten when a shard changes hands.
  bool break_recovery = false;
  // A simulation's driver dies.
  std::function<std::unique_ptr<driver::QueueDriver>(std::unique_ptr<driver::QueueDriver>,
                                                     driver::DriverObserver*)>
      wrap_driver;
  std::function<uint64_t()> nanoseconds = MonotonicNanoseconds;  // a simulation has its own time
};

// What became of a work request that was outstanding when a shard changed hands.
enum class RequestOutcome : uint8_t {
  kNeverSubmitted,
  kInFlight,
  kCompletedUndelivered,
  kDeliveredUncommitted,
  kPoisoned,  // completed, and no owner is given the completion any more
};
std::string_view RequestOutcomeName(RequestOutcome outcome);

struct ReportedRequest {
  uint32_t connection = 0;
  bool send = false;
  uint64_t sequence = 0;
  uint8_t opcode = 0;  // verbs::Opcode, of sends
  RequestOutcome outcome = RequestOutcome::kInFlight;
};

std::string_view CompletionKindName(arena::CompletionKind kind);

// A connection that was failed because owners died on a completion of it.
struct Poisoning {
  uint32_t connection = 0;
  uint32_t generation = 0;
  uint64_t completion = 0;  // index in the shard's completion log
  arena::CompletionKind kind = arena::CompletionKind::kReceive;
  uint64_t sequence = 0;  // of its work request; of sends and receives
  bool guessed = false;   // the owners had no completion in common that they named
  uint32_t deaths = 0;
  std::vector<uint64_t> worker_ids;  // the last DeathCount::kRemembered
};

struct ReconciliationReport {
  uint64_t epoch = 0;
  std::string cause;
  uint64_t former_worker_id = 0;
  uint64_t successor_worker_id = 0;
  uint64_t transactions_recovered = 0;
  uint64_t never_submitted = 0;
  uint64_t in_flight = 0;
  uint64_t completed_undelivered = 0;
  uint64_t delivered_uncommitted = 0;
  std::vector<ReportedRequest> requests;
  std::optional<Poisoning> poisoned;
  int64_t unix_micros = 0;
};

// Formats of application state that a worker declared. All zero: it declared nothing, and takes
// what comes.
struct StateVersions {
  uint32_t reads_min = 0;
  uint32_t reads_max = 0;
  uint32_t writes = 0;

  bool declared() const { return reads_min != 0 || reads_max != 0 || writes != 0; }
  bool Reads(uint32_t version) const {
    return !declared() || (reads_min <= version && version <= reads_max);
  }
};

// Who is chosen first as successor and heir; the others only when no such worker is ready.
enum class Standing : uint8_t { kLast, kFirst };

// On the engine's thread.
class EngineListener {
 public:
  virtual ~EngineListener() = default;
  virtual void OnEvent(std::string_view kind, const std::string& message, uint64_t worker_id,
                       int shard, int connection) = 0;
  // The worker wrote what no correct worker writes: it is to be killed.
  virtual void OnFenced(uint64_t worker_id) = 0;
  // The device can no longer be used: all connections have ended, and the engine has stopped.
  virtual void OnDeviceLost(const absl::Status& why) = 0;
};

class Engine : private driver::DriverObserver {
 public:
  using HandoffDone = std::function<void(absl::Status, double blackout_us)>;

  // `arena`, `device` and `listener` outlive it. The thread starts with Start.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(arena::Arena* arena, verbs::Device* device,
                                                        EngineListener* listener,
                                                        const EngineOptions& options);
  ~Engine() override;  // stops the thread

  void Start();
  void Stop();

  // Any thread.
  std::string_view device_name() const { return device_->name(); }

  // Any thread: runs `work` on the engine's thread, soon. False, and nothing, once it has stopped.
  bool Post(std::function<void()> work);
  // Any thread but the engine's: the same, and waits for it. An engine that was not started has no
  // other thread than the caller's.
  void Run(const std::function<void()>& work);

  // ---- The rest is for the engine's thread, or for who takes its place: a simulation drives an
  // engine that was not started with these.

  // One pass over everything that there may be to do; whether there was something.
  bool Turn();
  // For the owner of a shard, with owners_drive: applies what it has committed, and moves what is
  // completed to its log.
  void Drive(uint32_t shard);
  // True: nothing is left to do, and whoever has something from now on sends a signal.
  bool BeginSleep();
  // Until a signal comes; false: none did within `timeout_ms` (-1: for ever).
  bool AwaitSignal(int timeout_ms);
  void EndSleep();

  // `wake`: our end of a socket pair; a byte either way wakes the other side. Not an eventfd: who
  // shares one can take the other's signals, and make writing it block.
  void AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake, StateVersions versions = {},
                 Standing standing = Standing::kFirst);
  void SetStanding(uint32_t slot, uint64_t id, Standing standing);
  // Tells the worker in the arena that it should end.
  void AskToStop(uint32_t slot, uint64_t id);
  void SetReady(uint32_t slot);  // again, after it gave a shard back unasked
  // It has shown no sign of life for long, or does so again: no successor for anybody meanwhile.
  void SetStalled(uint32_t slot, uint64_t id, bool stalled);
  bool IsReady(uint32_t slot) const { return workers_[slot].ready && !workers_[slot].stopped; }
  // All its registered threads are dead, or it has detached: it writes no more.
  void WorkerStopped(uint32_t slot, uint64_t id, std::string_view cause);
  // It wrote what is invalid, and is not believed before its process is dead.
  bool IsFenced(uint32_t slot) const { return workers_[slot].fenced; }
  // Its death, which is to come, is somebody else's doing: no completion is blamed for it.
  void PardonDeath(uint32_t slot, uint64_t id);
  // Its process is gone; the slot may be used again after this.
  void WorkerDead(uint32_t slot, uint64_t id);

  // Moves `shard` to the worker in `slot`. `done` is called when it has committed for the first
  // time, or with why it did not come to that.
  void Handoff(uint32_t shard, uint32_t slot, HandoffDone done);
  void CancelHandoff(uint32_t shard, const absl::Status& why);

  driver::QueueDriver& driver() { return *driver_; }
  const driver::QueueDriver& driver() const { return *driver_; }
  int device_event_fd() const { return device_->event_fd(); }
  // As it was when the device last told of a change.
  const verbs::DeviceInfo& device_info() const { return device_info_; }
  const arena::Arena& arena() const { return *arena_; }
  const driver::Ownership& ownership(uint32_t shard) const { return shards_[shard].ownership; }
  const LatencyHistogram& handoff_blackout(uint32_t shard) const {
    return shards_[shard].handoff_blackout;
  }
  const LatencyHistogram& failover_blackout(uint32_t shard) const {
    return shards_[shard].failover_blackout;
  }
  const ReconciliationReport& last_report(uint32_t shard) const { return shards_[shard].report; }
  const std::string& waiting_reason(uint32_t shard) const { return shards_[shard].waiting_reason; }
  uint64_t poisoned_connections(uint32_t shard) const { return shards_[shard].poisoned; }

 private:
  struct Worker {
    uint64_t id = 0;  // 0: the slot is free
    FileDescriptor wake;
    StateVersions versions;
    Standing standing = Standing::kFirst;
    bool ready = false;
    bool stalled = false;
    bool stopped = false;
    bool fenced = false;
    bool pardoned = false;
    bool notify = false;  // has something new
    bool deaf = false;    // closed its end of `wake`
    uint32_t shards = 0;
  };
  struct ShardState {
    explicit ShardState(driver::Ownership owner) : ownership(owner) {}
    driver::Ownership ownership;
    std::string waiting_reason = "no worker is ready";
    uint32_t state_version = 0;  // that its last owner who declared one writes; 0: none did
    // The change of owner that is under way: from its begin to the successor's first commit.
    uint64_t blackout_start_ns = 0;  // 0: none
    bool planned = false;
    uint64_t asked_epoch = 0;       // the last that was asked to release
    uint64_t awaited_death_id = 0;  // of the former owner; with outside effects. 0: none
    uint64_t handoff_worker_id = 0;
    HandoffDone handoff_done;
    LatencyHistogram handoff_blackout, failover_blackout;
    ReconciliationReport report;
    DeathCount deaths;
    uint64_t poisoned = 0;    // connections, in all
    bool unreadable = false;  // its completion queue
  };
  struct Loss {
    absl::Status why;
    uint64_t deadline_ns = 0;  // for the connections to end by themselves
  };

  struct Ended {
    uint64_t epoch;
    uint64_t owner_id;
    uint64_t recovered;  // transactions that were published and applied only at the cut
    std::string_view cause;
    std::optional<Poisoning> poisoned = {};
  };

  Engine(arena::Arena* arena, EngineListener* listener, const EngineOptions& options);

  void Loop();
  bool RunPosted();
  bool HandleEvents();
  bool HandleDeviceEvents();
  void BeginLoss(absl::Status why);
  void ContinueLoss();
  bool IsLeftToOwner(uint32_t shard) const;
  bool ApplyCommits(uint32_t shard);
  bool PollShard(uint32_t shard);
  bool MaySleep();
  void NotifyOwner(uint32_t shard);
  void WakeNotified();

  // `await_death`: its shards move only when its process is proven dead.
  void StopWorker(uint32_t slot, uint64_t id, std::string_view cause, bool await_death);
  void OnFirstCommit(uint32_t shard);
  void OnRefused(uint32_t shard);
  void OnInvalidCommit(uint32_t shard, const absl::Status& why);
  Ended EndOwnership(uint32_t shard, std::string_view cause, bool released);
  std::optional<Poisoning> CountDeath(uint32_t shard, const Ended& ended);
  void MakeReport(uint32_t shard, const Ended& ended);
  void ListRequests(uint32_t shard, ReconciliationReport* report) const;
  void Assign(uint32_t shard);
  void AssignWaiting();
  void NameHeirs();
  uint32_t ChooseWorker(uint32_t shard, uint32_t except) const;
  bool IsBetter(const Worker& worker, const Worker& than) const;
  static bool CanServe(const Worker& worker);
  bool ReadsStateOf(const Worker& worker, uint32_t shard) const;
  bool MayOwn(const Worker& worker, uint32_t shard) const;
  std::string WhyNobody(uint32_t shard) const;
  void FinishHandoff(uint32_t shard, const absl::Status& status, double blackout_us);

  void OnConnectionState(uint32_t connection, std::string_view what) override;
  void OnRefusedConnection(std::string_view why) override;
  void OnDeviceEvent(const verbs::DeviceEvent& event, uint32_t connection) override;

  arena::Arena* arena_;
  verbs::Device* device_ = nullptr;
  EngineListener* listener_;
  EngineOptions options_;
  FileDescriptor wake_;  // eventfd, of this process alone
  std::unique_ptr<driver::QueueDriver> driver_;
  std::vector<ShardState> shards_;
  std::vector<Worker> workers_;
  bool any_notified_ = false;
  verbs::DeviceInfo device_info_;
  std::optional<Loss> loss_;  // of the device

  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  // guarded by mutex_
  bool stopped_ = false;                       // guarded by mutex_
  std::atomic<bool> has_posted_{false};
  std::atomic<bool> stop_{false};
  bool started_ = false;  // before there is another thread
  std::thread thread_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_ENGINE_H_
