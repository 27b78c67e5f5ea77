// A service's device, arena and engine, in this process, and what executes orders on them.
#ifndef SUPERVISOR_DRIVER_DRIVER_HOST_H_
#define SUPERVISOR_DRIVER_DRIVER_HOST_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/verbs.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/driver/device/nic_process.h"
#include "supervisor/driver/engine/engine.h"
#include "supervisor/driver/engine/news_queue.h"
#include "supervisor/driver/engine/order_executor.h"
#include "supervisor/driver/native/native_engine.h"
#include "supervisor/driver/workers/worker_forks.h"

namespace baton::driver_process {

class DriverHost {
 public:
  // Opens the device and creates the arena and the engine, where the service is placed. A native
  // service's workers of the driver before this one are gone by then (former_workers.h). `options`:
  // beyond what the configuration says; of brokered services.
  static absl::StatusOr<std::unique_ptr<DriverHost>> Open(const internal::KeeperConfig& config,
                                                          EngineOptions options);
  ~DriverHost() {
    if (engine_) engine_->Stop();
  }

  // Starts the engine. Before that, driver() executes orders in the caller's thread.
  void Start();
  // Ends a NIC that does not answer. The caller calls this every kHeartbeat.
  void BeatNic();

  OrderExecutor& driver() { return *driver_; }
  ServiceEngine& engine() { return *engine_; }
  NewsQueue& news() { return news_; }
  // The workers' processes. Null: the service is brokered. A native service has one thread and no
  // engine's, which calls TurnNative when one of the descriptors is readable, and every
  // NativeEngine::kTurnMs.
  WorkerForks* forks() { return forks_.get(); }
  void TurnNative();
  std::vector<int> native_descriptors() const;
  verbs::Device& device() { return *device_; }

  // What a keeper is told at first of the device and the placement. Complete once the engine has
  // started.
  internal::Introduced Introduce() const;

  // The service as it was configured, but with the placement in effect.
  const v1::ServiceConfig& service() const { return service_; }
  // Whether memory and threads are where they were to be. Complete once the engine has started.
  const absl::Status& placed() const { return placed_; }

 private:
  explicit DriverHost(const v1::ServiceConfig& service)
      : service_(service), pinned_(!service.placement().cpus().empty()) {}

  absl::Status MakeDevice(const internal::KeeperConfig& config);
  absl::Status MakeQueues(EngineOptions options);
  absl::Status MakeEngine(EngineOptions options);

  v1::ServiceConfig service_;
  const bool pinned_;  // the configuration names its processors
  absl::Status placed_;
  NewsQueue news_;
  FileDescriptor presence_;  // until forks_ has it
  std::unique_ptr<verbs::Device> device_;
  std::unique_ptr<NicProcess> nic_;
  std::unique_ptr<arena::Arena> arena_;
  std::unique_ptr<ServiceEngine> engine_;
  NativeEngine* native_ = nullptr;  // engine_, of native services
  std::unique_ptr<WorkerForks> forks_;
  std::unique_ptr<OrderExecutor> driver_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_DRIVER_HOST_H_
