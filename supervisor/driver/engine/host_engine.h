// The part of a service's engine that `baton-driver` keeps when processes that are forked from it
// drive the shards: connections, listeners, memory, and who is to own each shard.
//
// Thread-compatible: the driver process's one thread. It never waits for a worker.
#ifndef SUPERVISOR_DRIVER_ENGINE_HOST_ENGINE_H_
#define SUPERVISOR_DRIVER_ENGINE_HOST_ENGINE_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/native/connection_manager.h"
#include "lib/verbs/verbs.h"
#include "supervisor/driver/engine/arena_counters.h"
#include "supervisor/driver/engine/news_line.h"
#include "supervisor/driver/engine/service_engine.h"
#include "supervisor/driver/engine/succession.h"

namespace baton::driver_process {

// The driver process's one thread registers the memory of grants itself. Another thread could hold
// a lock when the process forks, and the child would then wait for ever, so no process is forked
// beside one. Meanwhile the forks drive their shards, and successors take over from dead owners.
// Until the memory is registered, the driver process connects, accepts, moves and ends nothing.
class HostEngine : public ServiceEngine, private native::ConnectionObserver {
 public:
  static constexpr int kTurnMs = 200;
  // Does everything that is to be done. Call it when one of descriptors() is readable, and every
  // kTurnMs.
  virtual void Turn();
  virtual std::vector<int> descriptors() const;

  // Sets whether a process that is forked from now on can follow this one.
  absl::Status SetFollowable(bool followable);
  // Called in a process that was forked while this could be followed, and follows the dead one.
  virtual absl::Status TakeOver();
  // Returns whether processes have been forked, or have ended, since the last call.
  virtual bool TakeForksChanged() { return false; }

  Succession& succession() override { return succession_; }
  const Succession& succession() const override { return succession_; }

  absl::StatusOr<uint32_t> Connect(uint32_t shard, const verbs::Address& address,
                                   std::string_view private_data, uint64_t tag) override {
    return manager_->Connect(shard, address, private_data, tag);
  }
  absl::StatusOr<uint32_t> ConnectFor(const native::Asker& asker, uint32_t shard,
                                      const verbs::Address& address, std::string_view private_data,
                                      uint64_t tag) override {
    if (const auto begun = manager_->BeginFor(asker)) return *begun;
    return Connect(shard, address, private_data, tag);
  }
  uint32_t DisconnectAll(std::string_view why) override { return manager_->DisconnectAll(why); }
  void SetGate(driver::ConnectionGate* gate) override { manager_->SetGate(gate); }
  // A snapshot: the shard's driver goes on meanwhile.
  driver::ShardCounters counters(uint32_t shard) const override { return counters_->Of(shard); }
  uint64_t established_ns(uint32_t connection) const override {
    return manager_->established_ns(connection);
  }
  uint32_t connection_count() const override { return manager_->connection_count(); }
  uint32_t connections_of(uint32_t shard) const override { return manager_->connections_of(shard); }
  driver::ObjectCounts device_objects() const override { return manager_->Count(); }

 protected:
  // `outside_effects`: see ServiceOptions.
  HostEngine(arena::Arena* arena, verbs::Device* device, EngineListener* listener,
             bool outside_effects);
  // Makes everything that forked processes inherit. kFailedPrecondition: they cannot use the
  // device.
  absl::Status Open();

  // Wakes the driver of a shard, which has a notice.
  virtual void WakeDriver(uint32_t shard) = 0;
  virtual void OnNews(const News& news);
  // The device cannot be used any more.
  virtual void OnLost(const absl::Status& why) { listener_->OnDeviceLost(why); }

  native::ConnectionManager& manager() { return *manager_; }
  int wake_fd() const { return wake_.get(); }          // eventfd: wakes this process
  int news_fd() const { return news_.writing.get(); }  // see NewsLine

 private:
  driver::DeviceObjects* objects() const override { return manager_->objects().get(); }
  void OnFree(uint32_t connection) override { counters_->Look(connection); }
  void OnRefusedConnection(std::string_view why) override;
  void OnDeviceEvent(const verbs::DeviceEvent& event, uint32_t connection) override;

  FileDescriptor wake_;
  Pipe news_;
  const std::unique_ptr<ArenaCounters> counters_;
  std::unique_ptr<native::ConnectionManager> manager_;
  Succession succession_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_ENGINE_HOST_ENGINE_H_
