// baton-driver: has the device, the queues and the arena of one brokered service, and starts the
// service's keeper, which may die. Started by batond, which writes its configuration (text format
// of baton.internal.KeeperConfig) to standard input and learns through the descriptor in
// BATON_READY_FD that workers can attach.
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lib/base/program_start.h"
#include "lib/base/status_text.h"
#include "lib/log/log.h"
#include "lib/log/standard_error.h"
#include "spdlog/spdlog.h"
#include "supervisor/driver/driver_process.h"
#include "supervisor/keeper/batond_link.h"
#include "supervisor/keeper/driver_host.h"
#include "supervisor/keeper/held_descriptors.h"
#include "supervisor/keeper/held_logs.h"
#include "supervisor/keeper/service_network.h"
#include "supervisor/keeper/service_program.h"

namespace {

using baton::driver_process::DriverProcess;
using baton::keeper::HeldDescriptors;

int Run() {
  const auto read = baton::keeper::ReadConfig();
  baton::internal::KeeperConfig config = read.value_or(baton::internal::KeeperConfig());
  DriverProcess::BlockStopSignals();
  // Before there is another thread: it would stay behind.
  const auto batonds_network = baton::keeper::EnterServiceNetwork(config.service());
  baton::keeper::BeginLog(config, "driver", baton::log::LogThread::kOwn);
  if (!read) {
    spdlog::error("standard input is not a KeeperConfig: batond starts this program");
    return 2;
  }
  if (!batonds_network.ok()) return baton::keeper::FailToStart(config, batonds_network.status());
  const std::string programs = baton::OwnDirectory();
  if (config.nic().empty()) config.set_nic(programs + "/baton-nic");
  if (config.keeper().empty()) config.set_keeper(programs + "/baton-keeper");
  baton::keeper::EngineOptions options;
#ifdef BATON_TEST_HOOKS
  options.break_recovery = std::getenv("BATON_BREAK_RECOVERY") != nullptr;
#endif
  const std::unique_ptr<HeldDescriptors> held = HeldDescriptors::OfBatond();
  auto batond = baton::keeper::BatondLink::OfEnvironment(config, held.get());
  if (held) {
    const absl::Status kept = baton::keeper::KeepFormerLogs(held.get());
    if (!kept.ok()) spdlog::warn("logs of the former driver: {}", baton::MessageOf(kept));
  }
  auto host = baton::keeper::DriverHost::Open(config, options);
  if (!host.ok()) return baton::keeper::FailToStart(config, host.status());
  if (held) {
    const absl::Status status = baton::keeper::HoldLogs(held.get(), (*host)->driver().arena());
    if (!status.ok()) spdlog::warn("batond does not keep the logs: {}", baton::MessageOf(status));
  }
  DriverProcess driver(config, *std::move(host), &batond, config.keeper(), batonds_network->get());
  const absl::Status ended = driver.Run();
  if (!ended.ok()) {
    if (driver.ready_once()) return baton::keeper::EndFor(config, ended);
    // The keeper that could not begin has said why itself.
    spdlog::error("service {}: ends: {}", config.service().name(), baton::MessageOf(ended));
    return 1;
  }
  // An orderly end leaves nothing to inspect.
  if (held) (void)held->DropAll();
  return 0;
}

}  // namespace

int main() {
  const int result = Run();
  baton::log::EndLog();
  return result;
}
