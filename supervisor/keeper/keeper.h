// One service: the sessions of its workers, its policy, its upgrades and its sockets.
#ifndef SUPERVISOR_KEEPER_KEEPER_H_
#define SUPERVISOR_KEEPER_KEEPER_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/channel/acceptor.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/driver_client.h"
#include "supervisor/keeper/event_log.h"
#include "supervisor/keeper/keeper_parts.h"
#include "supervisor/keeper/management.h"
#include "supervisor/keeper/policy/limit_watch.h"
#include "supervisor/keeper/policy/live_config.h"
#include "supervisor/keeper/policy/policies.h"
#include "supervisor/keeper/policy/service_drain.h"
#include "supervisor/keeper/programs/native_workers.h"
#include "supervisor/keeper/programs/program.h"
#include "supervisor/keeper/sessions/worker_sessions.h"
#include "supervisor/keeper/upgrades/standbys.h"
#include "supervisor/keeper/upgrades/take_overs.h"
#include "supervisor/keeper/upgrades/upgrades.h"

namespace baton::keeper {

class Keeper : private DriverListener {
 public:
  // If the driver had a keeper before, the new one goes on with its sockets, its sessions with
  // workers and what was set at run time. `batonds_network`: as EnterServiceNetwork returns it.
  static absl::StatusOr<std::unique_ptr<Keeper>> Create(const internal::KeeperConfig& config,
                                                        std::unique_ptr<DriverClient> driver,
                                                        FileDescriptor batonds_network = {});
  ~Keeper() override;

  // Runs the management loop until SIGTERM or SIGINT. An error: the device was lost, or the driver.
  absl::Status Run();

 private:
  Keeper(const internal::KeeperConfig& config, std::unique_ptr<DriverClient> driver);
  absl::Status Begin(v1::ServiceConfig configured, FileDescriptor batonds_network);
  // Leaves in `configured` the listeners that the service has.
  absl::Status BeginListening(v1::ServiceConfig* configured);
  absl::Status ListenForWorkers();
  void AwaitNews();
  // `configured`: as batond gave it.
  void MakeManagement(const v1::ServiceConfig& configured, FileDescriptor batonds_network);
  // REQUIRES: policies_.
  CommonParts common_parts() { return {loop_, config_, *driver_, *policies_, events_}; }
  void MakePrograms(FileDescriptor batonds_network);
  void TellPlacement();
  void TellHugePages();
  absl::StatusOr<bool> Listen(const std::string& path, uint32_t mode,
                              std::function<void(FileDescriptor)> on_client);

  void OnEvent(const internal::EngineEvent& event) override;
  void OnFenced(uint64_t worker_id) override;
  void OnThreadEnded(uint64_t worker_id) override;
  void OnDeviceLost(const absl::Status& why) override;

  internal::KeeperConfig config_;  // with the placement in effect
  boost::asio::io_context loop_{1};
  boost::asio::signal_set signals_;
  boost::asio::steady_timer heart_;
  EventLines lines_;
  EventLog events_;
  const std::unique_ptr<DriverClient> driver_;
  boost::asio::posix::stream_descriptor news_;  // the driver's
  DriverClient::HeldByKey held_;                // by the keeper before this one, until Begin ends
  std::unique_ptr<Policies> policies_;
  std::unique_ptr<WorkerSessions> workers_;
  std::unique_ptr<WorkerPrograms> programs_;
  NativeWorkers* native_ = nullptr;  // programs_, of native services
  std::unique_ptr<Upgrades> upgrades_;
  std::unique_ptr<Standbys> standbys_;  // of brokered services
  std::unique_ptr<ServiceDrain> drain_;
  std::unique_ptr<TakeOvers> take_overs_;
  std::unique_ptr<LimitWatch> limits_;
  std::unique_ptr<LiveConfig> live_;
  std::unique_ptr<Management> management_;
  std::vector<std::unique_ptr<Acceptor>> acceptors_;
  absl::Status end_;  // what Run returns
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_KEEPER_H_
