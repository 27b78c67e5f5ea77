// baton-keeper: keeps one service: the sessions of its workers, its policy and its upgrades.
// baton-driver, which has the queues, starts it. It reads its configuration (text format of
// baton.internal.KeeperConfig) from standard input, and tells the driver that workers can attach.
#include <sys/prctl.h>

#include <string>
#include <utility>

#include "lib/base/program_start.h"
#include "lib/base/status_text.h"
#include "lib/log/log.h"
#include "lib/log/standard_error.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/down_reason.h"
#include "supervisor/driver/device/service_network.h"
#include "supervisor/driver/service_program.h"
#include "supervisor/keeper/keeper.h"
#include "supervisor/keeper/remote_driver.h"

namespace {

using baton::FileDescriptor;
using baton::driver_process::FailToStart;
using baton::keeper::Keeper;

int Keep(const baton::internal::KeeperConfig& config, FileDescriptor orders) {
  auto driver = baton::keeper::RemoteDriver::Meet(std::move(orders),
                                                  baton::GivenDescriptor(baton::kNewsVariable));
  if (!driver.ok()) return FailToStart(config, driver.status());
  FileDescriptor network = baton::GivenDescriptor(baton::kNetworkVariable);
  const absl::Status stays = baton::driver_process::StayInServiceNetwork(network);
  if (!stays.ok()) return FailToStart(config, stays);
  auto keeper = Keeper::Create(config, *std::move(driver), std::move(network));
  if (!keeper.ok()) return FailToStart(config, keeper.status());
  baton::SetDownReason(config.state_dir(), config.service().name(), "");
  const absl::Status ended = (*keeper)->Run();
  if (ended.ok()) return 0;
  spdlog::error("service {}: its keeper ends: {}", config.service().name(),
                baton::MessageOf(ended));
  return 1;
}

int Run() {
  const auto read = baton::driver_process::ReadConfig();
  baton::internal::KeeperConfig config = read.value_or(baton::internal::KeeperConfig());
  FileDescriptor orders = baton::GivenDescriptor(baton::kOrdersVariable);
  baton::driver_process::BeginLog(config, "keeper", baton::log::LogThread::kOwn);
  if (!read || !orders) {
    spdlog::error(
        "standard input is not a KeeperConfig, or there is no driver: baton-driver starts this "
        "program");
    return 2;
  }
  if (config.launcher().empty()) config.set_launcher(baton::OwnDirectory() + "/baton-launch");
  return Keep(config, std::move(orders));
}

}  // namespace

int main() {
  // The driver may execute this program by a descriptor, whose number would be the process's name.
  prctl(PR_SET_NAME, "baton-keeper");
  const int result = Run();
  baton::log::EndLog();
  return result;
}
