// baton-keeper: keeps one service: the sessions of its workers, its policy and its upgrades. Reads
// its configuration (text format of baton.internal.KeeperConfig) from standard input.
//
// The keeper of a brokered service is started by baton-driver, which has the queues, and tells it
// that workers can attach. The keeper of a native service is started by batond, has the queues
// itself, and tells batond through the descriptor in BATON_READY_FD.
#include <signal.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/program_start.h"
#include "lib/base/readiness.h"
#include "lib/base/status_text.h"
#include "lib/log/log.h"
#include "lib/log/standard_error.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/down_reason.h"
#include "supervisor/keeper/batond_link.h"
#include "supervisor/keeper/drain.h"
#include "supervisor/keeper/held_descriptors.h"
#include "supervisor/keeper/keeper.h"
#include "supervisor/keeper/remote_driver.h"
#include "supervisor/keeper/service_network.h"
#include "supervisor/keeper/service_program.h"

namespace {

using baton::FileDescriptor;
using baton::keeper::FailToStart;
using baton::keeper::HeldDescriptors;
using baton::keeper::Keeper;

// A brokered service's.
int RunOver(const baton::internal::KeeperConfig& config, FileDescriptor orders) {
  auto driver = baton::keeper::RemoteDriver::Meet(std::move(orders),
                                                  baton::GivenDescriptor(baton::kNewsVariable));
  if (!driver.ok()) return FailToStart(config, driver.status());
  baton::keeper::RemoteDriver& remote = **driver;
  FileDescriptor network = baton::GivenDescriptor(baton::kNetworkVariable);
  const absl::Status stays = baton::keeper::StayInServiceNetwork(network);
  if (!stays.ok()) return FailToStart(config, stays);
  auto keeper = Keeper::CreateOver(config, *std::move(driver), std::move(network));
  if (!keeper.ok()) return FailToStart(config, keeper.status());
  baton::SetDownReason(config.state_dir(), config.service().name(), "");
  remote.NoteReady();
  const absl::Status ended = (*keeper)->Run();
  if (ended.ok()) return 0;
  spdlog::error("service {}: its keeper ends: {}", config.service().name(),
                baton::MessageOf(ended));
  return 1;
}

// A native service's.
int RunWithQueues(const baton::internal::KeeperConfig& config, FileDescriptor batonds_network) {
  const std::unique_ptr<HeldDescriptors> held = HeldDescriptors::OfBatond();
  auto batond = baton::keeper::BatondLink::OfEnvironment(config, held.get());
  // SIGUSR1 ends a drain. It must not end a keeper that drains nothing. Workers reset it.
  (void)signal(SIGUSR1, SIG_IGN);
  if (held) {
    const absl::StatusOr<bool> drained = baton::keeper::DrainFormer(held.get(), config, &batond);
    if (!drained.ok()) {
      return FailToStart(
          config, absl::Status(drained.status().code(),
                               absl::StrCat("what its former keeper had cannot be given back: ",
                                            drained.status().message())));
    }
    if (!*drained) return 0;
  }
  auto keeper = Keeper::Create(config, {}, held.get(), std::move(batonds_network), &batond);
  if (!keeper.ok()) return FailToStart(config, keeper.status());
  baton::SetDownReason(config.state_dir(), config.service().name(), "");
  baton::TellReady();
  const absl::Status ended = (*keeper)->Run();
  // An end leaves nothing to adopt.
  if (held) (void)held->DropAll();
  if (ended.ok()) return 0;
  return baton::keeper::EndFor(config, ended);
}

int Run() {
  const auto read = baton::keeper::ReadConfig();
  baton::internal::KeeperConfig config = read.value_or(baton::internal::KeeperConfig());
  const bool native = config.service().mode() == baton::v1::NATIVE;
  FileDescriptor orders = baton::GivenDescriptor(baton::kOrdersVariable);
  // Before there is another thread: it would stay behind. The driver of a brokered service has
  // entered it before it started this process.
  absl::StatusOr<FileDescriptor> batonds_network = FileDescriptor();
  if (native) batonds_network = baton::keeper::EnterServiceNetwork(config.service());
  // The keeper of a native service forks, and has no second thread.
  baton::keeper::BeginLog(config, "keeper",
                          native ? baton::log::LogThread::kNone : baton::log::LogThread::kOwn);
  if (!read || (!native && !orders)) {
    spdlog::error(
        "standard input is not a KeeperConfig, or there is no driver: batond starts this program, "
        "or "
        "baton-driver");
    return 2;
  }
  if (!batonds_network.ok()) return FailToStart(config, batonds_network.status());
  const std::string programs = baton::OwnDirectory();
  if (config.launcher().empty()) config.set_launcher(programs + "/baton-launch");
  if (config.nic().empty()) config.set_nic(programs + "/baton-nic");
  return native ? RunWithQueues(config, *std::move(batonds_network))
                : RunOver(config, std::move(orders));
}

}  // namespace

int main() {
  const int result = Run();
  baton::log::EndLog();
  return result;
}
