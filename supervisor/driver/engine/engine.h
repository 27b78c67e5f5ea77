// The engine of a brokered service: one thread that has its connections, decides who owns its
// shards (Succession) and drives them (Broker).
//
// Everything is done on the engine's thread; other threads hand it work with Post. It never waits
// for a worker. Another thread registers and deregisters memory (Registrar).
#ifndef SUPERVISOR_DRIVER_ENGINE_ENGINE_H_
#define SUPERVISOR_DRIVER_ENGINE_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/driver/queue_driver.h"
#include "lib/native/local_driver.h"
#include "lib/verbs/verbs.h"
#include "supervisor/driver/engine/broker.h"
#include "supervisor/driver/engine/death_watcher.h"
#include "supervisor/driver/engine/registrar.h"
#include "supervisor/driver/engine/service_engine.h"
#include "supervisor/driver/engine/succession.h"

namespace baton::driver_process {

struct EngineOptions : BrokerOptions {
  // The longest time that the idle engine yields before it sleeps (YieldBudget). With a real-time
  // priority it is at most 10 us, because no other thread would get the processor.
  uint32_t yield_microseconds = 100;
  // A simulation sets this, so that its driver can die.
  std::function<void(native::LocalDriver*)> wrap_driver;
};

// Returns how long the loop may yield before it sleeps.
uint32_t YieldMicroseconds(const EngineOptions& options);

class Engine final : public ServiceEngine, private native::LocalObserver {
 public:
  // `arena`, `device` and `listener` outlive it. The thread starts with Start.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(arena::Arena* arena, verbs::Device* device,
                                                        EngineListener* listener,
                                                        const EngineOptions& options);
  ~Engine() override;  // stops the thread

  void Start() override;
  void Stop() override;

  bool Post(std::function<void()> work) override;
  // If the engine was not started, runs `work` on the caller's thread.
  void Run(const std::function<void()>& work) override;

  // ---- The rest is for the engine's thread. A simulation that has not started the engine drives
  // it with these instead.

  // See TurnLoop.
  bool Turn();
  bool TurnShards();
  bool HasPosted() const { return has_posted_.load(std::memory_order_relaxed); }
  int LongestSleepMs() { return broker_.LongestSleepMs(); }
  uint32_t shard_count() const { return arena_->shape().shards; }
  // With owners_drive, the owner of the shard calls this: it applies what the owner has committed,
  // and moves completions to its log.
  void Drive(uint32_t shard);
  // Returns true if nothing is left to do. Workers, other threads and the device then send a signal
  // when they have something.
  bool BeginSleep();
  // Waits for a signal. Returns false if none came within `timeout_ms` (-1: waits for ever).
  bool AwaitSignal(int timeout_ms);
  void EndSleep();

  Succession& succession() override { return succession_; }
  const Succession& succession() const override { return succession_; }
  void AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake, StateVersions versions = {},
                 Standing standing = Standing::kFirst) override;
  void WatchWorker(uint32_t slot, uint64_t id, pid_t process) override;
  void ForgetWorker(uint32_t slot) override;

  absl::StatusOr<verbs::Address> Listen(const verbs::Address& address) override;
  absl::StatusOr<uint32_t> Connect(uint32_t shard, const verbs::Address& address,
                                   std::string_view private_data, uint64_t tag) override;
  uint32_t DisconnectAll(std::string_view why) override;
  void RegisterGrant(uint32_t grant, GrantDone done) override;
  void RevokeGrant(uint32_t grant, GrantDone done) override;
  void SetGate(driver::ConnectionGate* gate) override { local_->manager().SetGate(gate); }
  void SetPostRates(uint32_t of_service, uint32_t of_worker) override {
    broker_.SetPostRates(of_service, of_worker);
  }
  void SetPoisonDeaths(uint32_t deaths) override { broker_.shards().SetPoisonDeaths(deaths); }
  driver::ShardCounters counters(uint32_t shard) const override { return driver_->counters(shard); }
  uint64_t established_ns(uint32_t connection) const override {
    return local_->manager().established_ns(connection);
  }
  uint32_t connection_count() const override { return local_->manager().connection_count(); }
  uint32_t connections_of(uint32_t shard) const override {
    return local_->manager().connections_of(shard);
  }
  std::optional<EngineLoad> load() override;
  driver::ObjectCounts device_objects() const override { return local_->manager().Count(); }

  driver::QueueDriver& driver() { return *driver_; }
  int device_event_fd() const { return device_->event_fd(); }

 private:
  Engine(arena::Arena* arena, verbs::Device* device, EngineListener* listener,
         const EngineOptions& options);

  driver::DeviceObjects* objects() const override { return local_->objects(); }

  void Loop();
  bool RunPosted();
  void NoticeChanges();
  bool HandleNotices();
  absl::Status CheckNotLost() const {
    return broker_.is_lost() ? broker_.why_lost() : absl::OkStatus();
  }
  void ContinueLoss();

  void OnConnectionState(uint32_t connection, std::string_view what) override;
  void OnRefusedConnection(std::string_view why) override;
  void OnDeviceEvent(const verbs::DeviceEvent& event, uint32_t connection) override;

  EngineOptions options_;
  FileDescriptor wake_;  // eventfd, of this process alone
  std::unique_ptr<native::LocalDriver> local_;
  driver::QueueDriver* driver_ = nullptr;  // that of `local_`
  Succession succession_;
  Broker broker_;  // carries out what `succession_` decides
  TurnTimes times_;

  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  // guarded by mutex_
  bool stopped_ = false;                       // guarded by mutex_
  std::atomic<bool> has_posted_{false};
  std::atomic<bool> stop_{false};
  bool started_ = false;  // before there is another thread
  std::thread thread_;
  // Null: the device registers memory on the engine's thread, which waits for it.
  std::unique_ptr<Registrar> registrar_;
  std::optional<DeathWatcher> watcher_;  // of workers; last: its thread uses the others
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_ENGINE_H_
