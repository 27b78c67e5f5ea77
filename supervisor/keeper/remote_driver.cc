#include "supervisor/keeper/remote_driver.h"

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "lib/channel/carried_status.h"

namespace baton::keeper {
namespace {

constexpr size_t kArenaDescriptors = 3;
constexpr int kTimeoutMs = std::chrono::milliseconds(RemoteDriver::kAnswerTimeout).count();

}  // namespace

absl::StatusOr<std::unique_ptr<RemoteDriver>> RemoteDriver::Meet(FileDescriptor orders,
                                                                 FileDescriptor news) {
  std::unique_ptr<RemoteDriver> driver(new RemoteDriver(std::move(orders), std::move(news)));
  internal::DriverOrder order;
  order.mutable_introduce();
  std::vector<FileDescriptor> received;
  const internal::DriverAnswer answer = driver->Execute(order, {}, &received);
  BATON_RETURN_IF_ERROR(StatusIn(answer));
  BATON_RETURN_IF_ERROR(CheckArrived(kArenaDescriptors, received.size()));
  driver->introduced_ = answer.introduced();
  BATON_ASSIGN_OR_RETURN(
      arena::Arena arena,
      arena::Arena::Attach(std::move(received[0]), std::move(received[1]), std::move(received[2])));
  driver->arena_ = std::make_unique<arena::Arena>(std::move(arena));
  return driver;
}

internal::DriverAnswer RemoteDriver::Execute(const internal::DriverOrder& order,
                                             std::vector<FileDescriptor> descriptors,
                                             std::vector<FileDescriptor>* received) {
  internal::DriverAnswer answer;
  if (lost_.ok()) {
    std::vector<int> sent;
    for (const FileDescriptor& descriptor : descriptors) sent.push_back(descriptor.get());
    absl::Status asked = orders_.Send(order, sent, kTimeoutMs);
    if (asked.ok()) asked = orders_.Receive(&answer, kTimeoutMs, received);
    if (asked.ok()) return answer;
    NoteLost(asked);
  }
  answer.Clear();
  SetStatus(lost_, &answer);
  return answer;
}

std::vector<internal::DriverNews> RemoteDriver::TakeNews() {
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
  SetStatus(
      absl::Status(status.code(), absl::StrCat("the service's driver is gone: ", status.message())),
      taken.emplace_back().mutable_device_lost());
  return taken;
}

}  // namespace baton::keeper
