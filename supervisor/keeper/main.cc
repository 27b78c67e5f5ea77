// baton-keeper: keeps one service: the sessions of its workers, its policy and its upgrades.
// baton-driver, which has the queues, starts it. It reads its configuration (text format of
// baton.internal.KeeperConfig) from standard input, and tells the driver that workers can attach.
#include <sys/prctl.h>

#include <chrono>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/base/crash_point.h"
#include "lib/base/memory_shortage.h"
#include "lib/base/program_start.h"
#include "lib/base/status.h"
#include "lib/channel/carried_status.h"
#include "lib/channel/message_channel.h"
#include "lib/log/log.h"
#include "lib/log/standard_error.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/state_files.h"
#include "supervisor/driver/device/open_device.h"
#include "supervisor/driver/service_program.h"
#include "supervisor/keeper/driver_client.h"
#include "supervisor/keeper/keeper.h"

namespace baton::keeper {

// A service's driver that is another process (baton-driver), and goes on when its keeper dies.
// Thread-compatible.
class SocketDriverClient final : public DriverClient {
 public:
  // A driver that has not answered for this long hangs, or is dead.
  static constexpr std::chrono::seconds kAnswerTimeout{10};

  // `orders` and `news`: sockets whose other ends the driver has. Blocks until the driver has
  // answered.
  static absl::StatusOr<std::unique_ptr<SocketDriverClient>> Meet(FileDescriptor orders,
                                                                  FileDescriptor news) {
    constexpr size_t kArenaDescriptors = 3;
    std::unique_ptr<SocketDriverClient> driver(
        new SocketDriverClient(std::move(orders), std::move(news)));
    internal::DriverOrder order;
    order.mutable_introduce();
    std::vector<FileDescriptor> received;
    const internal::DriverAnswer answer = driver->Execute(order, {}, &received);
    BATON_RETURN_IF_ERROR(StatusIn(answer));
    BATON_RETURN_IF_ERROR(CheckArrived(kArenaDescriptors, received.size()));
    driver->introduced_ = answer.introduced();
    BATON_ASSIGN_OR_RETURN(
        arena::Arena arena,
        arena::Arena::Map(std::move(received[0]), std::move(received[1]), std::move(received[2])));
    driver->arena_ = std::make_unique<arena::Arena>(std::move(arena));
    return driver;
  }

  // Readable also when the driver is gone: the listener is then called as for a lost device.
  int news_fd() const override { return news_.fd(); }

  const arena::Arena& arena() const override { return *arena_; }
  std::string_view device_name() const override { return introduced_.device_name(); }

  // After an error every later order fails, too: without its driver a keeper can only end. An order
  // whose descriptors cannot be sent is refused alone.
  internal::DriverAnswer Execute(const internal::DriverOrder& order,
                                 std::vector<FileDescriptor> descriptors = {},
                                 std::vector<FileDescriptor>* received = nullptr) override {
    constexpr int kTimeoutMs = std::chrono::milliseconds(kAnswerTimeout).count();
    internal::DriverAnswer answer;
    if (lost_.ok()) {
      std::vector<int> sent;
      for (const FileDescriptor& descriptor : descriptors) sent.push_back(descriptor.get());
      absl::Status asked = orders_.Send(order, sent, kTimeoutMs);
      if (absl::IsResourceExhausted(asked)) {  // nothing of it was sent
        SetStatus(asked, &answer);
        return answer;
      }
      if (asked.ok()) asked = orders_.Receive(&answer, kTimeoutMs, received);
      if (asked.ok()) {
        // Tests have each keeper die of what they choose.
        if (order.has_deal_with() && StatusIn(answer).ok()) {
          BATON_CRASH_POINT(absl::StrCat("keeper-deals-with ", order.deal_with().what()).c_str());
        }
        return answer;
      }
      NoteLost(asked);
    }
    answer.Clear();
    SetStatus(lost_, &answer);
    return answer;
  }

 protected:
  std::vector<internal::DriverNews> TakeNews() override {
    std::vector<internal::DriverNews> taken;
    absl::Status status = news_.Fill();
    for (;;) {
      internal::DriverNews news;
      const absl::StatusOr<bool> whole = news_.NextFrame(&news);
      if (!whole.ok()) status = whole.status();
      if (!whole.ok() || !*whole) break;
      taken.push_back(std::move(news));
    }
    if (status.ok()) return taken;
    SetStatus(absl::Status(status.code(),
                           absl::StrCat("the service's driver is gone: ", status.message())),
              taken.emplace_back().mutable_device_lost());
    return taken;
  }

 private:
  SocketDriverClient(FileDescriptor orders, FileDescriptor news)
      : orders_(std::move(orders)), news_(std::move(news)) {}

  MessageChannel orders_, news_;
  std::unique_ptr<arena::Arena> arena_;
};

}  // namespace baton::keeper

namespace {

using baton::FileDescriptor;
using baton::driver_process::FailToStart;

int Keep(const baton::internal::KeeperConfig& config, FileDescriptor orders) {
  auto driver = baton::keeper::SocketDriverClient::Meet(
      std::move(orders), baton::GivenDescriptor(baton::kNewsVariable));
  if (!driver.ok()) return FailToStart(config, driver.status());
  FileDescriptor network = baton::GivenDescriptor(baton::kNetworkVariable);
  const absl::Status stays = baton::driver_process::StayInServiceNetwork(network);
  if (!stays.ok()) return FailToStart(config, stays);
  auto keeper = baton::keeper::Keeper::Create(config, *std::move(driver), std::move(network));
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
  // The keeper has one thread, beside one that only closes what others pass (lib/base/closer.h).
  baton::driver_process::BeginLog(config, "keeper");
  if (!read || !orders) {
    spdlog::error(
        "standard input is not a KeeperConfig, or there is no driver: baton-driver starts this "
        "program");
    return 2;
  }
  if (config.launcher().empty()) config.set_launcher(baton::OpenHelper(baton::kLaunchProgram));
  return Keep(config, std::move(orders));
}

}  // namespace

int main() {
  // The driver may execute this program by a descriptor, whose number would be the process's name.
  prctl(PR_SET_NAME, "baton-keeper");
  // No connection ends with it, nor with a worker that it starts.
  baton::GoLikeOthersWhenMemoryIsShort();
  const int result = Run();
  baton::log::EndLog();
  return result;
}
