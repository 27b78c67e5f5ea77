// The engine of a native service, whose workers operate the queues and move shards among
// themselves, in processes of their own. The engine operates the connection manager for them, and
// reports what happens to operators.
//
// Thread-compatible: the driver process's one thread. It never waits.
#ifndef SUPERVISOR_DRIVER_NATIVE_NATIVE_ENGINE_H_
#define SUPERVISOR_DRIVER_NATIVE_NATIVE_ENGINE_H_

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
#include "supervisor/driver/engine/service_engine.h"
#include "supervisor/driver/engine/service_options.h"
#include "supervisor/driver/engine/succession.h"
#include "supervisor/driver/native/native_counters.h"
#include "supervisor/driver/native/native_driver.h"
#include "supervisor/driver/native/native_shards.h"

namespace baton::driver_process {

// The driver process's one thread registers the memory of grants itself. Another thread could hold
// a lock when the process forks a worker, which would then wait for ever, so ForkWorker() refuses
// to fork beside one. Meanwhile workers drive their shards, and heirs take over from dead owners.
// Until the memory is registered, the driver process connects, accepts, moves and ends nothing.
class NativeEngine final : public ServiceEngine, private native::ConnectionObserver {
 public:
  // `arena`, `device` and `listener` outlive it. Makes everything that workers inherit.
  static absl::StatusOr<std::unique_ptr<NativeEngine>> Create(arena::Arena* arena,
                                                              verbs::Device* device,
                                                              EngineListener* listener,
                                                              const ServiceOptions& options);

  // Returns what a worker that is about to be forked inherits.
  NativeInheritance InheritanceOf(uint32_t slot, uint64_t worker_id);

  // Does everything that is to be done. Call it when one of descriptors() is readable, and every
  // kTurnMs.
  void Turn();
  static constexpr int kTurnMs = 200;
  std::vector<int> descriptors() const;

  Succession& succession() override { return succession_; }
  const Succession& succession() const override { return succession_; }

  void AddWorker(uint32_t slot, uint64_t id, FileDescriptor wake, StateVersions versions,
                 Standing standing) override;

  absl::StatusOr<uint32_t> Connect(uint32_t shard, const verbs::Address& address,
                                   std::string_view private_data, uint64_t tag) override {
    return manager_->Connect(shard, address, private_data, tag);
  }
  uint32_t DisconnectAll(std::string_view why) override { return manager_->DisconnectAll(why); }
  void SetGate(driver::ConnectionGate* gate) override { manager_->SetGate(gate); }
  // A snapshot: the shard's driver goes on meanwhile.
  driver::ShardCounters counters(uint32_t shard) const override { return counters_->Of(shard); }
  uint32_t connection_count() const override { return manager_->connection_count(); }
  uint32_t connections_of(uint32_t shard) const override { return manager_->connections_of(shard); }
  driver::ObjectCounts device_objects() const override { return manager_->Count(); }

 private:
  NativeEngine(arena::Arena* arena, verbs::Device* device, EngineListener* listener,
               const ServiceOptions& options);
  absl::Status Open();

  driver::DeviceObjects* objects() const override { return manager_->objects().get(); }
  void LookAtSharedReceives();
  void Wake(uint32_t slot) const;

  void OnFree(uint32_t connection) override { counters_->Look(connection); }
  void OnRefusedConnection(std::string_view why) override;
  void OnDeviceEvent(const verbs::DeviceEvent& event, uint32_t connection) override;

  const ServiceOptions options_;
  FileDescriptor wake_;                // eventfd, of all processes of the service
  Pipe news_;                          // packets from workers
  std::vector<FileDescriptor> wakes_;  // eventfds, by worker slot
  const std::unique_ptr<NativeCounters> counters_;
  std::unique_ptr<native::ConnectionManager> manager_;
  NativeShards shards_;
  Succession succession_;  // of `shards_`
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_NATIVE_NATIVE_ENGINE_H_
