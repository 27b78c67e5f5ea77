// A service's engine, as OrderExecutor uses it: workers and shards (Succession), listeners,
// connections and grants. A native service has a NativeEngine, and a brokered one a BrokeredEngine,
// or on a device that forks cannot use an Engine, which operates the queues, too.
#ifndef SUPERVISOR_DRIVER_ENGINE_SERVICE_ENGINE_H_
#define SUPERVISOR_DRIVER_ENGINE_SERVICE_ENGINE_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/driver/connection_state.h"
#include "lib/driver/device_objects.h"
#include "lib/driver/queue_driver.h"
#include "lib/native/connection_table.h"
#include "lib/verbs/verbs.h"
#include "supervisor/driver/engine/event_text.h"
#include "supervisor/driver/engine/succession.h"
#include "supervisor/driver/engine/turn_loop.h"

namespace baton::driver_process {

class ServiceEngine {
 public:
  virtual ~ServiceEngine() = default;

  // An engine without a thread of its own does nothing here, and runs all work at once.
  virtual void Start() {}
  virtual void Stop() {}

  // Any thread.
  virtual std::string_view device_name() const { return device_->name(); }

  // Any thread. Runs `work` on the engine's thread, soon or at once. Returns false, and does not
  // run it, once the engine has stopped.
  virtual bool Post(std::function<void()> work) {
    const std::function<void()> ours = std::move(work);
    ours();
    return true;
  }
  // Like Post(), and waits until `work` has run. Must not be called on the engine's own thread.
  virtual void Run(const std::function<void()>& work) { work(); }

  // ---- The rest is for the engine's thread.

  virtual Succession& succession() = 0;
  virtual const Succession& succession() const = 0;

  // kUnavailable: what the former worker of the slot has left is not dealt with yet.
  virtual absl::Status CheckPlace(uint32_t /*slot*/) { return absl::OkStatus(); }
  // See Succession::AddWorker. REQUIRES: CheckPlace() has returned OK.
  virtual void AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake,
                         StateVersions versions = {}, Standing standing = Standing::kFirst) {
    succession().AddWorker(slot, id, std::move(wake), versions, standing);
  }

  // Has the deaths of this worker's threads noticed by its locks (DeathWatcher), if workers do not
  // watch each other. Called when it is added and, because only then it has its locks, when it is
  // ready. `process`: its pid.
  virtual void WatchWorker(uint32_t /*slot*/, uint64_t /*id*/, pid_t /*process*/) {}
  virtual void ForgetWorker(uint32_t /*slot*/) {}

  // See driver::ListenOnce and DeviceObjects.
  virtual absl::StatusOr<verbs::Address> Listen(const verbs::Address& address) {
    return driver::ListenOnce(device_, objects(), address);
  }
  bool IsListening(const verbs::Address& address) {
    return objects()->FindListener(address) != nullptr;
  }
  std::vector<verbs::Address> listeners() { return objects()->ListenAddresses(); }
  void StopListening(const verbs::Address& address) { objects()->StopListening(address); }
  // These methods behave like QueueDriver's. Call SetGate at most once.
  virtual absl::StatusOr<uint32_t> Connect(uint32_t shard, const verbs::Address& address,
                                           std::string_view private_data, uint64_t tag) = 0;
  // Connects for a worker's request, unless a dead `baton-driver` that this process follows has
  // begun that: then it returns that connection.
  virtual absl::StatusOr<uint32_t> ConnectFor(const native::Asker& /*asker*/, uint32_t shard,
                                              const verbs::Address& address,
                                              std::string_view private_data, uint64_t tag) {
    return Connect(shard, address, private_data, tag);
  }
  virtual uint32_t DisconnectAll(std::string_view why) = 0;
  virtual void SetGate(driver::ConnectionGate* gate) = 0;
  virtual uint32_t connection_count() const = 0;
  virtual uint32_t connections_of(uint32_t shard) const = 0;
  // See ConnectionManager.
  virtual uint64_t established_ns(uint32_t connection) const = 0;
  virtual driver::ShardCounters counters(uint32_t shard) const = 0;
  // The number of device objects that this process has made.
  virtual driver::ObjectCounts device_objects() const = 0;

  // Behave like driver::ReserveGrant and driver::ReserveRegion. The caller then calls
  // RegisterGrant, once.
  virtual absl::StatusOr<uint32_t> ReserveGrant(uint64_t offset, uint64_t length, uint32_t access);
  virtual absl::StatusOr<uint32_t> ReserveRegion(const driver::GrantRange& range);
  // Both call `done` on the engine's thread, at once or later; shards are served meanwhile. If
  // RegisterGrant() fails, the grant does not exist. If RevokeGrant() succeeds, no peer has access
  // any more. Other errors: see driver::BeginRevoke.
  using GrantDone = std::function<void(absl::Status)>;
  virtual void RegisterGrant(uint32_t grant, GrantDone done);
  virtual void RevokeGrant(uint32_t grant, GrantDone done);

  // Limits the work requests posted in a second; 0: no limit. Requests beyond it wait. Ignored in a
  // native service.
  virtual void SetPostRates(uint32_t /*of_service*/, uint32_t /*of_worker*/) {}
  // Sets after how many deaths on one completion its connection is failed. Ignored in a native
  // service, whose workers count deaths themselves.
  virtual void SetPoisonDeaths(uint32_t /*deaths*/) {}
  // Returns the load of the thread that drives the shards; none if workers do.
  virtual std::optional<EngineLoad> load() { return std::nullopt; }

  // The processes that drive the queues, and wait to do so; 0: none does.
  virtual pid_t broker() const { return 0; }
  virtual pid_t twin() const { return 0; }
  // See Brokers.
  virtual std::string driver_code_release() const { return ""; }
  virtual std::string driver_code_given_up() const { return ""; }
  virtual absl::Status ReplaceDriverCode(std::chrono::milliseconds /*probation*/) {
    return absl::FailedPreconditionError(
        "this service has no broker: on its device, or as it is configured, other processes drive "
        "the queues");
  }

  const arena::Arena& arena() const { return *arena_; }
  // The device's state at the start, or at its last event.
  const verbs::DeviceInfo& device_info() const { return device_info_; }

 protected:
  // All outlive it. `device`: null for an engine of tests that has none.
  ServiceEngine(arena::Arena* arena, verbs::Device* device, EngineListener* listener);

  virtual driver::DeviceObjects* objects() const = 0;
  void TellRefused(std::string_view why, uint64_t now_ns);
  // `connection`: DriverObserver::kNoConnection, or the one that the event is about. An error: the
  // device is lost.
  absl::Status TellDeviceEvent(const verbs::DeviceEvent& event, uint32_t connection);

  arena::Arena* const arena_;
  verbs::Device* const device_;
  EngineListener* const listener_;
  verbs::DeviceInfo device_info_;

 private:
  Refusals refusals_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_SERVICE_ENGINE_H_
