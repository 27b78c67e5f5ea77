// The engine of a native service: its workers operate the queues and move shards among themselves,
// in processes of their own. This names heirs, gives shards that nobody has to somebody, asks
// owners to release, works for them at the connection manager, and tells operators what has
// happened.
//
// Thread-compatible: the driver process's one thread. It never waits.
#ifndef SUPERVISOR_DRIVER_NATIVE_NATIVE_ENGINE_H_
#define SUPERVISOR_DRIVER_NATIVE_NATIVE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/latency_histogram.h"
#include "lib/driver/ownership.h"
#include "lib/native/connection_manager.h"
#include "lib/verbs/verbs.h"
#include "supervisor/driver/engine/refusals.h"
#include "supervisor/driver/engine/roster.h"
#include "supervisor/driver/engine/service_engine.h"
#include "supervisor/driver/native/native_counters.h"
#include "supervisor/driver/native/native_deaths.h"
#include "supervisor/driver/native/native_driver.h"

namespace baton::driver_process {

struct NativeEngineOptions {
  // A successor starts only when the whole former process is proven dead.
  bool outside_effects = false;
  int realtime_priority = 0;  // of the workers' threads that notice deaths; 0: none
  uint32_t poison_deaths = 3;
};

class NativeEngine final : public ServiceEngine, private native::ConnectionObserver {
 public:
  // `arena` and `device` outlive it. Makes everything that workers inherit.
  static absl::StatusOr<std::unique_ptr<NativeEngine>> Create(arena::Arena* arena,
                                                              verbs::Device* device,
                                                              const NativeEngineOptions& options);
  void SetListener(EngineListener* listener) { listener_ = listener; }  // before Turn

  // Returns what a worker that is about to be forked inherits.
  NativeInheritance InheritanceOf(uint32_t slot, uint64_t worker_id);

  // Everything that there may be to do. Call it when one of these descriptors is readable, and
  // every kTurnMs.
  void Turn();
  static constexpr int kTurnMs = 200;
  std::vector<int> descriptors() const;

  void Start() override {}
  void Stop() override {}
  std::string_view device_name() const override { return device_->name(); }
  bool Post(std::function<void()> work) override {
    work();
    return true;
  }
  void Run(const std::function<void()>& work) override { work(); }

  void AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake, StateVersions versions,
                 Standing standing) override;
  void SetStanding(uint32_t slot, uint64_t id, Standing standing) override;
  void AskToStop(uint32_t slot, uint64_t id) override;
  void SetReady(uint32_t slot) override;
  void SetStalled(uint32_t slot, uint64_t id, bool stalled) override;
  bool IsReady(uint32_t slot) const override { return Roster::CanServe(roster_[slot]); }
  bool IsIdle(uint32_t, uint64_t) const override { return false; }
  void Retire(uint32_t, uint64_t) override {}
  void WorkerStopped(uint32_t slot, uint64_t id, std::string_view cause) override;
  // Its driver is in its process: what it wrote wrong ends it.
  bool IsFenced(uint32_t) const override { return false; }
  void PardonDeath(uint32_t slot, uint64_t id) override;
  void ExplainDeath(uint32_t slot, uint64_t id, std::string_view cause) override;
  void WorkerDead(uint32_t slot, uint64_t id) override;

  void Handoff(uint32_t shard, uint32_t slot, HandoffDone done) override;
  void CancelHandoff(uint32_t shard, const absl::Status& why) override;

  absl::StatusOr<verbs::Address> Listen(const verbs::Address& address) override {
    return manager_->Listen(address);
  }
  bool IsListening(const verbs::Address& address) const override {
    return manager_->objects()->FindListener(address) != nullptr;
  }
  std::vector<verbs::Address> listeners() const override {
    return manager_->objects()->ListenAddresses();
  }
  void StopListening(const verbs::Address& address) override { manager_->StopListening(address); }
  absl::StatusOr<uint32_t> Connect(uint32_t shard, const verbs::Address& address,
                                   std::string_view private_data, uint64_t tag) override {
    return manager_->Connect(shard, address, private_data, tag);
  }
  uint32_t DisconnectAll(std::string_view why) override { return manager_->DisconnectAll(why); }
  // The driver process's one thread registers memory itself. A thread beside it could hold a lock
  // when the process forks a worker, and that worker would wait for the lock for ever: ForkWorker
  // refuses. Meanwhile workers drive their shards, and an heir takes over from a dead owner. What
  // the driver process does itself waits: it connects, accepts, moves and ends nothing.
  absl::StatusOr<uint32_t> ReserveGrant(uint64_t offset, uint64_t length, uint32_t access) override;
  void RegisterGrant(uint32_t grant, GrantDone done) override;
  void RevokeGrant(uint32_t grant, GrantDone done) override;
  void SetGate(driver::ConnectionGate* gate) override { manager_->SetGate(gate); }
  void SetPostRates(uint32_t, uint32_t) override {}
  void SetPoisonDeaths(uint32_t) override {}
  // A snapshot: the shard's driver goes on meanwhile.
  driver::ShardCounters counters(uint32_t shard) const override { return counters_->Of(shard); }
  uint64_t established_ns(uint32_t) const override { return 0; }
  uint32_t connection_count() const override { return manager_->connection_count(); }
  uint32_t connections_of(uint32_t shard) const override { return manager_->connections_of(shard); }
  const EngineLoad* load() override { return nullptr; }
  driver::ObjectCounts device_objects() const override { return manager_->Count(); }

  const arena::Arena& arena() const override { return *arena_; }
  const verbs::DeviceInfo& device_info() const override { return device_info_; }
  ShardOwner owner(uint32_t shard) const override;
  const LatencyHistogram& handoff_blackout(uint32_t shard) const override {
    return shards_[shard].handoff_blackout;
  }
  const LatencyHistogram& failover_blackout(uint32_t shard) const override {
    return shards_[shard].failover_blackout;
  }
  const ReconciliationReport& last_report(uint32_t shard) const override {
    return shards_[shard].report;
  }
  const std::string& waiting_reason(uint32_t shard) const override {
    return shards_[shard].waiting_reason;
  }
  uint64_t poisoned_connections(uint32_t shard) const override {
    return LoadDeaths(*arena_, shard).poisoned;
  }
  // When it was last seen that a new owner has committed; CLOCK_MONOTONIC. 0: never.
  uint64_t last_served_ns() const { return last_served_ns_; }

 private:
  struct ShardState {
    explicit ShardState(driver::Ownership owner) : ownership(owner) {}
    driver::Ownership ownership;
    std::string waiting_reason = "no worker is ready";
    uint32_t state_version = 0;  // that its last owner who declared one writes; 0: none did
    uint64_t known_epoch = 0;    // whose owner is known here
    uint64_t served_epoch = 0;   // whose first commit is known here
    uint64_t asked_epoch = 0;    // the last that was asked to release
    uint64_t noted_release = 0;  // the last epoch whose release is known here
    // An owner whose death is known to be no crash, and what it is.
    uint64_t explained_worker_id = 0;
    std::string_view explanation;
    uint64_t handoff_worker_id = 0;
    HandoffDone handoff_done;
    LatencyHistogram handoff_blackout, failover_blackout;
    ReconciliationReport report;
    uint64_t reported_epoch = 0;  // the last whose end was told of
    uint64_t report_version = 0;  // of `report`, in the arena
  };

  NativeEngine(arena::Arena* arena, verbs::Device* device, const NativeEngineOptions& options);
  absl::Status Open();

  void ReadNews();
  void LookAtShards();
  void LookAtSharedReceives();
  void NoteRelease(uint32_t shard);
  void OnNewOwner(uint32_t shard, uint32_t slot);
  void ReadReports(uint32_t shard);
  bool ReadReport(uint32_t shard, uint64_t epoch);
  void OnFirstCommit(uint32_t shard);
  void GiveToSomebody(uint32_t shard);
  void NameHeirs();
  Roster::Vacancy VacancyOf(uint32_t shard) const;
  void FinishHandoff(uint32_t shard, const absl::Status& status, double blackout_us);
  uint32_t Holder(uint32_t shard) const;
  void Wake(uint32_t slot) const;

  void OnFree(uint32_t connection) override { counters_->Look(connection); }
  void OnRefusedConnection(std::string_view why) override;
  void OnDeviceEvent(const verbs::DeviceEvent& event) override;

  arena::Arena* arena_;
  verbs::Device* device_;
  const NativeEngineOptions options_;
  EngineListener* listener_ = nullptr;
  FileDescriptor wake_;                 // eventfd, of all processes of the service
  FileDescriptor news_, news_of_ours_;  // datagrams from workers; their end
  std::vector<FileDescriptor> wakes_;   // eventfds, by worker slot
  const std::unique_ptr<NativeCounters> counters_;
  std::unique_ptr<native::ConnectionManager> manager_;
  std::vector<ShardState> shards_;
  Roster roster_;
  verbs::DeviceInfo device_info_;
  Refusals refusals_;
  uint64_t last_served_ns_ = 0;
  std::string last_failure_;  // why a worker could not be run; empty: one was ready since
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_NATIVE_NATIVE_ENGINE_H_
