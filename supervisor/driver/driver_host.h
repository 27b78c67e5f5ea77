// A service's device, arena and engine in this process, and the executor of orders on them.
#ifndef SUPERVISOR_DRIVER_DRIVER_HOST_H_
#define SUPERVISOR_DRIVER_DRIVER_HOST_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/verbs.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/driver/broker/brokered_engine.h"
#include "supervisor/driver/device/nic_process.h"
#include "supervisor/driver/engine/engine.h"
#include "supervisor/driver/engine/host_engine.h"
#include "supervisor/driver/engine/news_queue.h"
#include "supervisor/driver/engine/order_executor.h"
#include "supervisor/driver/native/native_engine.h"
#include "supervisor/driver/workers/confine.h"
#include "supervisor/driver/workers/worker_forks.h"

namespace baton::driver_process {

class DriverHost {
 public:
  // Opens the device, and creates the arena and the engine where the service is placed. In a native
  // service, it first waits until the former driver's workers are gone (lifeline.h).
  // `options`: settings of a brokered service that the configuration does not have.
  static absl::StatusOr<std::unique_ptr<DriverHost>> Open(const internal::KeeperConfig& config,
                                                          EngineOptions options);
  ~DriverHost() {
    if (engine_) engine_->Stop();
  }

  // Starts the engine. Before that, driver() executes orders in the caller's thread.
  void Start();
  // Kills a NIC and a broker that do not answer, and reports that. The caller calls this every
  // kHeartbeat.
  void BeatProcesses();

  OrderExecutor& driver() { return *driver_; }
  ServiceEngine& engine() { return *engine_; }
  NewsQueue& news() { return news_; }
  // Returns whether others drive the queues, in processes that are forked from this one. Then there
  // is no engine thread: the driver's one thread calls Turn() when one of descriptors() is
  // readable, and every HostEngine::kTurnMs.
  bool turns() const { return host_ != nullptr; }
  void Turn();
  std::vector<int> descriptors() const;
  verbs::Device& device() { return *device_; }

  // OK if a process that is forked from this one can follow it.
  absl::Status CheckFollowable() const;
  // See HostEngine and verbs::Device. REQUIRES: CheckFollowable() has returned OK.
  absl::Status SetFollowable(bool followable) { return host_->SetFollowable(followable); }
  absl::Status BeginTakeOver() { return device_->BeginTakeOver(); }
  absl::Status TakeOver();
  bool TakeForksChanged() {
    const bool code_changed = forks_ != nullptr && forks_->TakeCodeChanged();
    return (host_ != nullptr && host_->TakeForksChanged()) || code_changed;
  }

  // Returns what a new keeper is first told about the device and the placement. Complete once the
  // engine has started.
  internal::Introduced Introduce() const;

  // The service as it was configured, but with the placement in effect, and with brokers or not.
  const v1::ServiceConfig& service() const { return service_; }

 private:
  explicit DriverHost(const internal::KeeperConfig& config)
      : service_(config.service()),
        pinned_(!service_.placement().cpus().empty()),
        code_(config.driver_code()) {
    if (config.has_broker_uid()) brokers_.uid = config.broker_uid();
    if (config.has_broker_gid()) brokers_.gid = config.broker_gid();
  }

  absl::Status MakeDevice(const internal::KeeperConfig& config);
  absl::Status ChooseDriver();
  absl::Status MakeQueues(EngineOptions options);
  absl::Status MakeEngine(EngineOptions options);
  void DescribePages(v1::BufferPages* pages) const;

  v1::ServiceConfig service_;
  const bool pinned_;       // the configuration names its processors
  const std::string code_;  // see KeeperConfig::driver_code
  Identity brokers_;
  absl::Status placed_;  // an error: why memory or threads are not where the placement puts them
  NewsQueue news_;
  FileDescriptor presence_;  // of lifeline.h, until forks_ has it
  std::unique_ptr<verbs::Device> device_;
  std::unique_ptr<NicProcess> nic_;
  std::unique_ptr<arena::Arena> arena_;
  std::unique_ptr<ServiceEngine> engine_;
  HostEngine* host_ = nullptr;          // engine_, if turns()
  BrokeredEngine* brokered_ = nullptr;  // engine_, if it has brokers
  std::unique_ptr<WorkerForks> forks_;  // null: the service is brokered
  std::unique_ptr<OrderExecutor> driver_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_DRIVER_HOST_H_
