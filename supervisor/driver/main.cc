// baton-driver: has the device, the queues and the arena of one service, and starts the service's
// keeper, which may die. The workers of a native service are forks of it. Started by batond, which
// writes its configuration (text format of baton.internal.KeeperConfig) to standard input and
// learns through the descriptor in BATON_READY_FD that workers can attach.
#include <signal.h>
#include <sys/prctl.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/program_start.h"
#include "lib/base/status_text.h"
#include "lib/log/log.h"
#include "lib/log/standard_error.h"
#include "spdlog/spdlog.h"
#include "supervisor/driver/batond_link.h"
#include "supervisor/driver/device/service_network.h"
#include "supervisor/driver/driver_host.h"
#include "supervisor/driver/driver_process.h"
#include "supervisor/driver/held_descriptors.h"
#include "supervisor/driver/held_logs.h"
#include "supervisor/driver/native/drain.h"
#include "supervisor/driver/service_program.h"

namespace {

namespace internal = baton::internal;
using baton::driver_process::DriverHost;
using baton::driver_process::DriverProcess;
using baton::driver_process::HeldDescriptors;

// Keeps what batond holds of the driver before this one, or waits until nothing of it is left.
// Returns false if the driver was told to end meanwhile.
absl::StatusOr<bool> FollowFormer(const internal::KeeperConfig& config, HeldDescriptors* held,
                                  baton::driver_process::BatondLink* batond) {
  if (config.service().mode() == baton::v1::NATIVE) {
    absl::StatusOr<bool> drained = baton::driver_process::DrainFormer(held, config, batond);
    if (drained.ok()) return drained;
    return absl::Status(drained.status().code(),
                        absl::StrCat("what its former driver had cannot be given back: ",
                                     drained.status().message()));
  }
  const absl::Status kept = baton::driver_process::KeepFormerLogs(held);
  if (!kept.ok()) spdlog::warn("logs of the former driver: {}", baton::MessageOf(kept));
  return true;
}

// Gives batond what is needed after this driver's death.
void HoldForNext(HeldDescriptors* held, DriverHost& host) {
  if (host.forks() == nullptr) {
    const absl::Status status = baton::driver_process::HoldLogs(held, host.driver().arena());
    if (!status.ok()) spdlog::warn("batond does not keep the logs: {}", baton::MessageOf(status));
  } else if (host.service().device().has_rdma()) {
    // Connections of the soft device end with this process, and workers with them.
    host.forks()->HoldAt(held, host.device());
  }
}

int Drive(internal::KeeperConfig config, int batonds_network) {
  const std::string programs = baton::OwnDirectory();
  if (config.nic().empty()) config.set_nic(programs + "/baton-nic");
  if (config.keeper().empty()) config.set_keeper(programs + "/baton-keeper");
  baton::driver_process::EngineOptions options;
#ifdef BATON_TEST_HOOKS
  options.break_recovery = std::getenv("BATON_BREAK_RECOVERY") != nullptr;
#endif
  const std::unique_ptr<HeldDescriptors> held = HeldDescriptors::OfBatond();
  auto batond = baton::driver_process::BatondLink::OfEnvironment(config, held.get());
  if (held) {
    const absl::StatusOr<bool> follows = FollowFormer(config, held.get(), &batond);
    if (!follows.ok()) return baton::driver_process::FailToStart(config, follows.status());
    if (!*follows) return 0;
  }
  auto host = DriverHost::Open(config, options);
  if (!host.ok()) return baton::driver_process::FailToStart(config, host.status());
  if (held) HoldForNext(held.get(), **host);
  DriverProcess driver(config, *std::move(host), &batond, config.keeper(), batonds_network);
  const absl::Status ended = driver.Run();
  // An orderly end leaves nothing to inspect, and that of a native service nothing to adopt.
  if (held && (ended.ok() || config.service().mode() == baton::v1::NATIVE)) (void)held->DropAll();
  if (ended.ok()) return 0;
  if (driver.ready_once()) return baton::driver_process::EndFor(config, ended);
  // The keeper that could not begin has said why itself.
  spdlog::error("service {}: ends: {}", config.service().name(), baton::MessageOf(ended));
  return 1;
}

int Run() {
  const auto read = baton::driver_process::ReadConfig();
  internal::KeeperConfig config = read.value_or(internal::KeeperConfig());
  DriverProcess::BlockStopSignals();
  // SIGUSR1 ends a drain (DrainFormer). It must not end a driver that drains nothing.
  (void)signal(SIGUSR1, SIG_IGN);
  // Before there is another thread: it would stay behind.
  const auto batonds_network = baton::driver_process::EnterServiceNetwork(config.service());
  // The driver of a native service forks, and has no second thread.
  const bool native = config.service().mode() == baton::v1::NATIVE;
  baton::driver_process::BeginLog(
      config, "driver", native ? baton::log::LogThread::kNone : baton::log::LogThread::kOwn);
  if (!read) {
    spdlog::error("standard input is not a KeeperConfig: batond starts this program");
    return 2;
  }
  if (!batonds_network.ok())
    return baton::driver_process::FailToStart(config, batonds_network.status());
  return Drive(std::move(config), batonds_network->get());
}

}  // namespace

int main() {
  // batond enters it by a descriptor, and the name would be its number.
  prctl(PR_SET_NAME, "baton-driver");
  const int result = Run();
  baton::log::EndLog();
  return result;
}
