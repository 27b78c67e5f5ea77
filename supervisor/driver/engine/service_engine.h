// The interface between OrderExecutor and the engine, which moves shards between workers. A
// brokered service has an Engine, which operates the queues, too. A native service has a
// NativeEngine.
#ifndef SUPERVISOR_DRIVER_ENGINE_SERVICE_ENGINE_H_
#define SUPERVISOR_DRIVER_ENGINE_SERVICE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/latency_histogram.h"
#include "lib/driver/queue_driver.h"
#include "lib/verbs/verbs.h"
#include "supervisor/driver/engine/candidate.h"
#include "supervisor/driver/engine/reconciliation.h"

namespace baton::driver_process {

// On the engine's thread.
class EngineListener {
 public:
  virtual ~EngineListener() = default;
  virtual void OnEvent(std::string_view kind, const std::string& message, uint64_t worker_id,
                       int shard, int connection) = 0;
  // The worker wrote what no correct worker writes. The listener must kill it.
  virtual void OnFenced(uint64_t worker_id) = 0;
  // Reports the outcome of a shard's work requests when an ownership ended. Called again when the
  // report changes.
  virtual void OnReport(uint32_t shard, const ReconciliationReport& report) {
    (void)shard;
    (void)report;
  }
  // The owner after that of `ended_epoch` has committed for the first time. Its own epoch may be
  // later than `ended_epoch` + 1: a brokered engine skips those whose commit bank is not free.
  virtual void OnServed(uint32_t shard, uint64_t ended_epoch, uint64_t worker_id,
                        uint64_t blackout_ns) {
    (void)shard;
    (void)ended_epoch;
    (void)worker_id;
    (void)blackout_ns;
  }
  // The device can no longer be used: all connections have ended, and the engine has stopped.
  virtual void OnDeviceLost(const absl::Status& why) = 0;
};

// The owner of a shard.
struct ShardOwner {
  uint64_t epoch = 0;
  uint64_t worker_id = 0;  // 0: nobody
  uint32_t slot = arena::kNobody;
  uint64_t heir_id = 0;  // 0: nobody is named
};

// How busy an engine's thread is. Thread-compatible.
struct EngineLoad {
  uint64_t busy_ns = 0;
  uint64_t turns = 0;  // that found something to do
  // Times the turns that ended an idle time or did what other threads had posted, and one in 64 of
  // the others.
  LatencyHistogram turn;
};

class ServiceEngine {
 public:
  using HandoffDone = std::function<void(absl::Status, double blackout_us)>;

  virtual ~ServiceEngine() = default;

  virtual void Start() = 0;
  virtual void Stop() = 0;

  // Any thread.
  virtual std::string_view device_name() const = 0;

  // Any thread. Runs `work` on the engine's thread, soon or at once. Returns false, and does not
  // run it, once the engine has stopped.
  virtual bool Post(std::function<void()> work) = 0;
  // The same, and waits for it. Not on a thread of the engine's own.
  virtual void Run(const std::function<void()>& work) = 0;

  // ---- The rest is for the engine's thread.

  // `wake`: our end of a socket pair. A byte in either direction wakes the other side. An eventfd
  // would let a worker consume our signals and make our writes block.
  virtual void AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake, StateVersions versions,
                         Standing standing) = 0;
  virtual void SetStanding(uint32_t slot, uint64_t id, Standing standing) = 0;
  // Tells the worker in the arena that it should end.
  virtual void AskToStop(uint32_t slot, uint64_t id) = 0;
  virtual void SetReady(uint32_t slot) = 0;  // again, after it gave a shard back unasked
  // `stalled`: the worker has shown no sign of life for long. A stalled worker does not become a
  // successor.
  virtual void SetStalled(uint32_t slot, uint64_t id, bool stalled) = 0;
  // Returns true if the worker can be given a shard.
  virtual bool IsReady(uint32_t slot) const = 0;
  // Returns true if the worker owns no shard and none is on its way to it. Always false in a native
  // service, because its heirs take shards without asking.
  virtual bool IsIdle(uint32_t slot, uint64_t id) const = 0;
  // Is given no shard any more. Of one that is idle, in the same turn.
  virtual void Retire(uint32_t slot, uint64_t id) = 0;
  // All its registered threads are dead, or it has detached: it writes no more.
  virtual void WorkerStopped(uint32_t slot, uint64_t id, std::string_view cause) = 0;
  // It wrote what is invalid, and is not believed before its process is dead.
  virtual bool IsFenced(uint32_t slot) const = 0;
  // Its death, which is to come, is somebody else's doing: no completion is blamed for it.
  virtual void PardonDeath(uint32_t slot, uint64_t id) = 0;
  // Its death, which is to come, has this cause in reports ("hang"), and not "crash". A literal.
  virtual void ExplainDeath(uint32_t slot, uint64_t id, std::string_view cause) = 0;
  // Its process is gone; the slot may be used again after this.
  virtual void WorkerDead(uint32_t slot, uint64_t id) = 0;

  // Moves `shard` to the worker in `slot`. `done` is called when it has committed for the first
  // time, or with why it did not come to that.
  virtual void Handoff(uint32_t shard, uint32_t slot, HandoffDone done) = 0;
  virtual void CancelHandoff(uint32_t shard, const absl::Status& why) = 0;

  // These methods behave like QueueDriver's.
  virtual absl::StatusOr<verbs::Address> Listen(const verbs::Address& address) = 0;
  virtual bool IsListening(const verbs::Address& address) const = 0;
  virtual std::vector<verbs::Address> listeners() const = 0;
  virtual void StopListening(const verbs::Address& address) = 0;
  virtual absl::StatusOr<uint32_t> Connect(uint32_t shard, const verbs::Address& address,
                                           std::string_view private_data, uint64_t tag) = 0;
  virtual uint32_t DisconnectAll(std::string_view why) = 0;
  // Behaves like driver::ReserveGrant. The caller then calls RegisterGrant, once.
  virtual absl::StatusOr<uint32_t> ReserveGrant(uint64_t offset, uint64_t length,
                                                uint32_t access) = 0;
  // Both call `done` on the engine's thread, at once or later: shards are served meanwhile. After
  // an error of RegisterGrant there is no such grant. After a success of RevokeGrant no peer has
  // access any more; kNotFound and kUnavailable as driver::BeginRevoke.
  using GrantDone = std::function<void(absl::Status)>;
  virtual void RegisterGrant(uint32_t grant, GrantDone done) = 0;
  virtual void RevokeGrant(uint32_t grant, GrantDone done) = 0;
  // Behaves like QueueDriver::SetGate. Call it at most once.
  virtual void SetGate(driver::ConnectionGate* gate) = 0;
  // Limits the work requests posted in a second; 0: no limit. Requests beyond it wait. Ignored in a
  // native service.
  virtual void SetPostRates(uint32_t of_service, uint32_t of_worker) = 0;
  // Sets after how many deaths on one completion its connection is failed. Ignored in a native
  // service, whose workers count deaths themselves.
  virtual void SetPoisonDeaths(uint32_t deaths) = 0;
  virtual driver::ShardCounters counters(uint32_t shard) const = 0;
  virtual uint64_t established_ns(uint32_t connection) const = 0;
  virtual uint32_t connection_count() const = 0;
  virtual uint32_t connections_of(uint32_t shard) const = 0;
  // Null: it has no thread of its own.
  virtual const EngineLoad* load() = 0;
  // The number of device objects that this process has made.
  virtual driver::ObjectCounts device_objects() const = 0;

  virtual const arena::Arena& arena() const = 0;
  // The device's state at the start, or at its last event.
  virtual const verbs::DeviceInfo& device_info() const = 0;
  virtual ShardOwner owner(uint32_t shard) const = 0;
  virtual const LatencyHistogram& handoff_blackout(uint32_t shard) const = 0;
  virtual const LatencyHistogram& failover_blackout(uint32_t shard) const = 0;
  virtual const ReconciliationReport& last_report(uint32_t shard) const = 0;
  virtual const std::string& waiting_reason(uint32_t shard) const = 0;
  virtual uint64_t poisoned_connections(uint32_t shard) const = 0;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_SERVICE_ENGINE_H_
