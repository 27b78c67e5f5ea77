// baton-keeper: keeps one service: the sessions of its workers, its policy and its upgrades. Reads
// its configuration (text format of baton.internal.KeeperConfig) from standard input.
//
// The keeper of a brokered service is started by baton-driver, which has the queues, and tells it
// that workers can attach. The keeper of a native service is started by batond, has the queues
// itself, and tells batond through the descriptor in BATON_READY_FD.
#include <fcntl.h>
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
#include "lib/base/readiness.h"
#include "lib/base/status_text.h"
#include "lib/log/log.h"
#include "lib/log/standard_error.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/down_reason.h"
#include "supervisor/config/log_level.h"
#include "supervisor/keeper/batond_link.h"
#include "supervisor/keeper/drain.h"
#include "supervisor/keeper/held_descriptors.h"
#include "supervisor/keeper/keeper.h"
#include "supervisor/keeper/remote_driver.h"
#include "supervisor/keeper/service_network.h"

namespace {

using baton::FileDescriptor;

constexpr unsigned kEndSeconds = 5;

int Fail(const baton::internal::KeeperConfig& config, const std::string& why) {
  const std::string& service = config.service().name();
  spdlog::error("service {}: {}", service, why);
  baton::SetDownReason(config.state_dir(), service, "it cannot be started: " + why);
  return 1;
}

FileDescriptor GivenDescriptor(const char* variable) {
  const char* const text = std::getenv(variable);
  FileDescriptor descriptor(text == nullptr ? -1 : std::atoi(text));
  if (descriptor) (void)fcntl(descriptor.get(), F_SETFD, FD_CLOEXEC);
  return descriptor;
}

// With a driver that is another process.
int RunOver(const baton::internal::KeeperConfig& config, FileDescriptor orders) {
  auto driver =
      baton::keeper::RemoteDriver::Meet(std::move(orders), GivenDescriptor(baton::kNewsVariable));
  if (!driver.ok()) return Fail(config, std::string(baton::MessageOf(driver.status())));
  baton::keeper::RemoteDriver& remote = **driver;
  FileDescriptor network = GivenDescriptor(baton::kNetworkVariable);
  const absl::Status stays = baton::keeper::StayInServiceNetwork(network);
  if (!stays.ok()) return Fail(config, std::string(baton::MessageOf(stays)));
  auto keeper = baton::keeper::Keeper::CreateOver(config, *std::move(driver), std::move(network));
  if (!keeper.ok()) return Fail(config, std::string(baton::MessageOf(keeper.status())));
  baton::SetDownReason(config.state_dir(), config.service().name(), "");
  remote.NoteReady();
  const absl::Status ended = (*keeper)->Run();
  if (ended.ok()) return 0;
  spdlog::error("service {}: its keeper ends: {}", config.service().name(),
                baton::MessageOf(ended));
  return 1;
}

int Run() {
  const std::string text((std::istreambuf_iterator<char>(std::cin)),
                         std::istreambuf_iterator<char>());
  baton::internal::KeeperConfig config;
  const bool parsed = google::protobuf::TextFormat::ParseFromString(text, &config);
  FileDescriptor orders = GivenDescriptor(baton::kOrdersVariable);
  // Before there is another thread: it would stay behind. The driver has entered it before it
  // started this process.
  absl::StatusOr<FileDescriptor> batonds_network;
  if (!orders) batonds_network = baton::keeper::EnterServiceNetwork(config.service());
  // The keeper of a native service forks, and has no second thread.
  baton::log::LogToStandardError("baton-keeper", config.service().mode() == baton::v1::NATIVE
                                                     ? baton::log::LogThread::kNone
                                                     : baton::log::LogThread::kOwn);
  spdlog::default_logger()->set_level(baton::LevelOf(config.service().log_level()));
  if (config.log_format() == baton::v1::JSON) {
    baton::log::UseJson("keeper", config.service().name());
  }
  if (!parsed) {
    spdlog::error("standard input is not a KeeperConfig: batond starts this program");
    return 2;
  }
  if (!orders && !batonds_network.ok()) {
    return Fail(config, std::string(baton::MessageOf(batonds_network.status())));
  }
  const std::string programs = baton::OwnDirectory();
  if (config.launcher().empty()) config.set_launcher(programs + "/baton-launch");
  if (config.nic().empty()) config.set_nic(programs + "/baton-nic");
  if (orders) return RunOver(config, std::move(orders));
  baton::keeper::EngineOptions options;
#ifdef BATON_TEST_HOOKS
  options.break_recovery = std::getenv("BATON_BREAK_RECOVERY") != nullptr;
#endif
  const bool native = config.service().mode() == baton::v1::NATIVE;
  const std::unique_ptr<baton::keeper::HeldDescriptors> held =
      baton::keeper::HeldDescriptors::OfBatond();
  auto batond = baton::keeper::BatondLink::OfEnvironment(config, held.get());
  // SIGUSR1 ends a drain. It must not end a keeper that drains nothing. Workers reset it.
  if (native) (void)signal(SIGUSR1, SIG_IGN);
  if (held && native) {
    const absl::StatusOr<bool> drained = baton::keeper::DrainFormer(held.get(), config, &batond);
    if (!drained.ok()) {
      return Fail(config, "what its former keeper had cannot be given back: " +
                              std::string(baton::MessageOf(drained.status())));
    }
    if (!*drained) return 0;
  }
  auto keeper = baton::keeper::Keeper::Create(config, options, held.get(),
                                              *std::move(batonds_network), &batond);
  const std::string& service = config.service().name();
  if (!keeper.ok()) {
    return Fail(config, std::string(baton::MessageOf(keeper.status())));
  }
  baton::SetDownReason(config.state_dir(), service, "");
  baton::TellReady();
  const absl::Status ended = (*keeper)->Run();
  // An orderly end leaves nothing to adopt or to inspect.
  if (held && (native || ended.ok())) (void)held->DropAll();
  if (ended.ok()) return 0;
  const std::string why(baton::MessageOf(ended));
  spdlog::error("service {}: ends: {}", service, why);
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
