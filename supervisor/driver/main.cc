// baton-driver: has the device, the queues and the arena of one service, and starts the service's
// keeper, which may die. The workers of a native service are forks of it. batond starts it, writes
// its configuration (text format of baton.internal.KeeperConfig) to its standard input, and learns
// through the descriptor in BATON_READY_FD that workers can attach.
#include <sys/prctl.h>

#include <cstdlib>
#include <utility>

#include "lib/base/memory_shortage.h"
#include "lib/base/program_start.h"
#include "lib/base/status.h"
#include "lib/log/log.h"
#include "lib/log/standard_error.h"
#include "lib/native/host.h"
#include "spdlog/spdlog.h"
#include "supervisor/driver/batond_link.h"
#include "supervisor/driver/device/open_device.h"
#include "supervisor/driver/driver_host.h"
#include "supervisor/driver/driver_process.h"
#include "supervisor/driver/service_program.h"
#include "supervisor/driver/workers/fork_worker.h"

namespace {

namespace internal = baton::internal;
using baton::driver_process::DriverProcess;

int Drive(internal::KeeperConfig config, int batonds_network) {
  if (config.nic().empty()) config.set_nic(baton::OpenHelper(baton::kNicProgram));
  if (config.driver_code().empty()) config.set_driver_code(baton::OpenHelper(baton::kDriverCode));
  if (config.keeper().empty()) config.set_keeper(baton::OwnDirectory() + "/baton-keeper");
  baton::driver_process::EngineOptions options;
#ifdef BATON_TEST_HOOKS
  options.break_recovery = std::getenv("BATON_BREAK_RECOVERY") != nullptr;
#endif
  auto batond = baton::driver_process::BatondLink::OfEnvironment(config);
  auto host = baton::driver_process::DriverHost::Open(config, options);
  if (!host.ok()) return baton::driver_process::FailToStart(config, host.status());
  DriverProcess driver(config, *std::move(host), &batond, config.keeper(), batonds_network);
  const absl::Status ended = driver.Run();
  if (ended.ok()) return 0;
  if (driver.ready_once()) return baton::driver_process::EndFor(config, ended);
  // The keeper has reported itself why it could not start.
  spdlog::error("service {}: ends: {}", config.service().name(), baton::MessageOf(ended));
  return 1;
}

int Run() {
  const auto read = baton::driver_process::ReadConfig();
  internal::KeeperConfig config = read.value_or(internal::KeeperConfig());
  DriverProcess::BlockStopSignals();
  // Called before there is another thread, which would stay in the former namespace.
  const auto batonds_network = baton::driver_process::EnterServiceNetwork(config.service());
  baton::driver_process::BeginLog(config, "driver");
  if (!read) {
    spdlog::error("standard input is not a KeeperConfig: batond starts this program");
    return 2;
  }
  if (!batonds_network.ok())
    return baton::driver_process::FailToStart(config, batonds_network.status());
  return Drive(std::move(config), batonds_network->get());
}

}  // namespace

// The symbol of the driver's executable that a service's object uses (lib/native/host.md).
extern "C" BatonNativeHost* baton_native_host() {
  return baton::driver_process::HostOfThisProcess();
}

int main() {
  // batond executes this program by a descriptor, whose number would be the process's name.
  prctl(PR_SET_NAME, "baton-driver");
  // All connections of the service end with it, or with its NIC, which it starts.
  baton::GoLastWhenMemoryIsShort();
  const int result = Run();
  baton::log::EndLog();
  return result;
}
