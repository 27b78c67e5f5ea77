// baton-driver: has the device, the queues and the arena of one brokered service, and starts the
// service's keeper, which may die. Started by batond, which writes its configuration (text format
// of baton.internal.KeeperConfig) to standard input and learns through the descriptor in
// BATON_READY_FD that workers can attach.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "google/protobuf/text_format.h"
#include "lib/base/program_start.h"
#include "lib/base/status_text.h"
#include "lib/log/log.h"
#include "lib/log/standard_error.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/down_reason.h"
#include "supervisor/config/log_level.h"
#include "supervisor/driver/driver_process.h"
#include "supervisor/keeper/batond_link.h"
#include "supervisor/keeper/driver_host.h"
#include "supervisor/keeper/held_descriptors.h"
#include "supervisor/keeper/held_logs.h"
#include "supervisor/keeper/service_network.h"

namespace {

constexpr unsigned kEndSeconds = 5;

int Fail(const baton::internal::KeeperConfig& config, const std::string& why) {
  const std::string& service = config.service().name();
  spdlog::error("service {}: {}", service, why);
  baton::SetDownReason(config.state_dir(), service, "it cannot be started: " + why);
  return 1;
}

// In every thread that starts later, too: DriverProcess reads them from a descriptor.
void BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  (void)pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

int Run() {
  const std::string text((std::istreambuf_iterator<char>(std::cin)),
                         std::istreambuf_iterator<char>());
  baton::internal::KeeperConfig config;
  const bool parsed = google::protobuf::TextFormat::ParseFromString(text, &config);
  BlockStopSignals();
  // Before there is another thread: it would stay behind.
  const auto batonds_network = baton::keeper::EnterServiceNetwork(config.service());
  baton::log::LogToStandardError("baton-driver", baton::log::LogThread::kOwn);
  spdlog::default_logger()->set_level(baton::LevelOf(config.service().log_level()));
  if (config.log_format() == baton::v1::JSON) {
    baton::log::UseJson("driver", config.service().name());
  }
  if (!parsed) {
    spdlog::error("standard input is not a KeeperConfig: batond starts this program");
    return 2;
  }
  if (!batonds_network.ok()) {
    return Fail(config, std::string(baton::MessageOf(batonds_network.status())));
  }
  const std::string programs = baton::OwnDirectory();
  if (config.nic().empty()) config.set_nic(programs + "/baton-nic");
  if (config.keeper().empty()) config.set_keeper(programs + "/baton-keeper");
  baton::keeper::EngineOptions options;
#ifdef BATON_TEST_HOOKS
  options.break_recovery = std::getenv("BATON_BREAK_RECOVERY") != nullptr;
#endif
  const std::unique_ptr<baton::keeper::HeldDescriptors> held =
      baton::keeper::HeldDescriptors::OfBatond();
  auto batond = baton::keeper::BatondLink::OfEnvironment(config, held.get());
  if (held) {
    const absl::Status kept = baton::keeper::KeepFormerLogs(held.get());
    if (!kept.ok()) spdlog::warn("logs of the former driver: {}", baton::MessageOf(kept));
  }
  auto host = baton::keeper::DriverHost::Open(config, options);
  if (!host.ok()) return Fail(config, std::string(baton::MessageOf(host.status())));
  if (held) {
    const absl::Status status = baton::keeper::HoldLogs(held.get(), (*host)->driver().arena());
    if (!status.ok()) spdlog::warn("batond does not keep the logs: {}", baton::MessageOf(status));
  }
  const std::string service = config.service().name();
  baton::driver_process::DriverProcess driver(config, *std::move(host), &batond, config.keeper(),
                                              batonds_network->get());
  const absl::Status ended = driver.Run();
  // An orderly end leaves nothing to inspect.
  if (held && ended.ok()) (void)held->DropAll();
  if (ended.ok()) return 0;
  const std::string why(baton::MessageOf(ended));
  spdlog::error("service {}: ends: {}", service, why);
  // A keeper that could not begin has said why itself.
  if (!driver.ready_once()) return 1;
  baton::SetDownReason(config.state_dir(), service, why);
  // Destructors take down the rest of a lost device. If they hang, the alarm ends the process.
  alarm(kEndSeconds);
  return 1;
}

}  // namespace

int main() {
  const int result = Run();
  baton::log::EndLog();
  return result;
}
