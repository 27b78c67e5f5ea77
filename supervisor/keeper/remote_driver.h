// A service's driver that is another process (baton-driver), and goes on when its keeper dies.
#ifndef SUPERVISOR_KEEPER_REMOTE_DRIVER_H_
#define SUPERVISOR_KEEPER_REMOTE_DRIVER_H_

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/channel/message_channel.h"
#include "supervisor/keeper/service_driver.h"

namespace baton::keeper {

// Thread-compatible.
class RemoteDriver final : public ServiceDriver {
 public:
  // A driver that has not answered for this long hangs, or is dead.
  static constexpr std::chrono::seconds kAnswerTimeout{10};

  // `orders` and `news`: sockets whose other ends the driver has. Blocks until the driver has
  // answered.
  static absl::StatusOr<std::unique_ptr<RemoteDriver>> Meet(FileDescriptor orders,
                                                            FileDescriptor news);

  // Readable also when the driver is gone: the listener is then called as for a lost device.
  int news_fd() const override { return news_.fd(); }

  const arena::Arena& arena() const override { return *arena_; }
  std::string_view device_name() const override { return introduced_.device_name(); }

  // After an error every later order fails, too: without its driver a keeper can only end.
  internal::DriverAnswer Execute(const internal::DriverOrder& order,
                                 std::vector<FileDescriptor> descriptors = {},
                                 std::vector<FileDescriptor>* received = nullptr) override;

 protected:
  std::vector<internal::DriverNews> TakeNews() override;

 private:
  RemoteDriver(FileDescriptor orders, FileDescriptor news)
      : orders_(std::move(orders)), news_(std::move(news)) {}

  MessageChannel orders_, news_;
  std::unique_ptr<arena::Arena> arena_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_REMOTE_DRIVER_H_
