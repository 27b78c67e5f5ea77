// One service: its arena, its engine and its sockets.
#ifndef SUPERVISOR_KEEPER_KEEPER_H_
#define SUPERVISOR_KEEPER_KEEPER_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/batond_link.h"
#include "supervisor/keeper/driver_host.h"
#include "supervisor/keeper/event_lines.h"
#include "supervisor/keeper/event_log.h"
#include "supervisor/keeper/held_descriptors.h"
#include "supervisor/keeper/lifeline.h"
#include "supervisor/keeper/limit_watch.h"
#include "supervisor/keeper/live_config.h"
#include "supervisor/keeper/management.h"
#include "supervisor/keeper/native_workers.h"
#include "supervisor/keeper/policies.h"
#include "supervisor/keeper/program_output.h"
#include "supervisor/keeper/remote_driver.h"
#include "supervisor/keeper/service_drain.h"
#include "supervisor/keeper/service_driver.h"
#include "supervisor/keeper/standbys.h"
#include "supervisor/keeper/upgrades.h"
#include "supervisor/keeper/worker_sessions.h"

namespace baton::keeper {

class Keeper : private DriverListener {
 public:
  // `engine_options`: beyond what the configuration says.
  // `held` is told what the workers of a native service need to outlive this process; null: they
  // end with it. `batonds_network`: of EnterServiceNetwork. `batond`, if not null, outlives it.
  static absl::StatusOr<std::unique_ptr<Keeper>> Create(const internal::KeeperConfig& config,
                                                        EngineOptions engine_options,
                                                        HeldDescriptors* held = nullptr,
                                                        FileDescriptor batonds_network = {},
                                                        BatondLink* batond = nullptr);
  // The keeper of a service whose driver is another process. It follows another keeper, if there
  // was one: it goes on with the sockets, the sessions of workers and what was set at run time.
  static absl::StatusOr<std::unique_ptr<Keeper>> CreateOver(const internal::KeeperConfig& config,
                                                            std::unique_ptr<RemoteDriver> driver,
                                                            FileDescriptor batonds_network);
  ~Keeper() override;

  // Runs the management loop until SIGTERM or SIGINT. An error: the device was lost, or the driver.
  absl::Status Run();

  // REQUIRES: made by Create.
  ServiceEngine& engine() { return host_->engine(); }

 private:
  struct Acceptor {
    explicit Acceptor(boost::asio::io_context& loop) : pause(loop) {}
    boost::asio::steady_timer pause;  // while no descriptor is free
    std::unique_ptr<boost::asio::posix::stream_descriptor> descriptor;
    std::function<void(FileDescriptor)> on_client;
  };

  // Native workers live by these and print to them. The keeper makes them before it opens any
  // descriptor that native workers must not inherit.
  struct NativeTies {
    Lifeline lifeline;
    OutputPipe output;
  };

  static absl::StatusOr<NativeTies> MakeNativeTies();
  Keeper(const internal::KeeperConfig& config, std::unique_ptr<DriverHost> host,
         std::unique_ptr<RemoteDriver> remote, NativeTies ties);
  static absl::StatusOr<std::unique_ptr<Keeper>> Begin(std::unique_ptr<Keeper> keeper,
                                                       const v1::ServiceConfig& configured,
                                                       FileDescriptor batonds_network);
  absl::Status BeginListening();
  absl::Status ListenForWorkers();
  void AwaitNews();
  // `configured`: as batond gave it.
  void MakeManagement(const v1::ServiceConfig& configured, FileDescriptor batonds_network);
  void HoldNative(HeldDescriptors* held);
  void TellPlacement();
  void TurnNative();
  // Returns the time until the next call.
  std::chrono::milliseconds ShowLife();
  void ShowLifeLater(std::chrono::milliseconds pause);
  void BeatNicLater();
  absl::StatusOr<bool> Listen(const std::string& path, uint32_t mode,
                              std::function<void(FileDescriptor)> on_client);
  void AwaitClient(Acceptor& acceptor);

  void OnEvent(const internal::EngineEvent& event) override;
  void OnFenced(uint64_t worker_id) override;
  void OnThreadEnded(uint64_t worker_id) override;
  void OnDeviceLost(const absl::Status& why) override;

  internal::KeeperConfig config_;  // its placement is that in effect
  boost::asio::io_context loop_{1};
  boost::asio::signal_set signals_;
  boost::asio::steady_timer heart_, nic_timer_;
  BatondLink* batond_ = nullptr;  // null: nobody is shown that this lives
  EventLines lines_;
  EventLog events_;
  std::unique_ptr<DriverHost> host_;            // one of these two
  std::unique_ptr<RemoteDriver> remote_;        // is null
  ServiceDriver& driver_;                       // of either
  boost::asio::posix::stream_descriptor news_;  // of remote_
  ServiceDriver::HeldByKey held_;               // by the keeper before this one, until Begin ends
  NativeEngine* native_ = nullptr;              // of host_, in native services
  boost::asio::steady_timer native_timer_;
  std::vector<std::unique_ptr<boost::asio::posix::stream_descriptor>> native_descriptors_;
  NativeTies ties_;  // of native services
  std::unique_ptr<ProgramOutput> native_lines_;
  std::unique_ptr<Policies> policies_;
  std::unique_ptr<WorkerSessions> workers_;
  std::unique_ptr<WorkerPrograms> programs_;
  NativeWorkers* native_workers_ = nullptr;  // programs_, of native services
  std::unique_ptr<Upgrades> upgrades_;
  std::unique_ptr<Standbys> standbys_;  // of brokered services
  std::unique_ptr<ServiceDrain> drain_;
  std::unique_ptr<LimitWatch> limits_;
  std::unique_ptr<LiveConfig> live_;
  std::unique_ptr<Management> management_;
  std::vector<std::unique_ptr<Acceptor>> acceptors_;
  absl::Status end_;  // what Run returns
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_KEEPER_H_
