#include "supervisor/driver/engine/host_engine.h"

#include <fcntl.h>
#include <sys/eventfd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/driver/regions.h"

namespace baton::driver_process {
namespace {

constexpr int kNewsPipeBytes = 1 << 20;  // a page for each line
// Each handles up to 64 events of the device.
constexpr int kTurnsOfTakeOver = 256;

}  // namespace

HostEngine::HostEngine(arena::Arena* arena, verbs::Device* device, EngineListener* listener,
                       bool outside_effects)
    : ServiceEngine(arena, device, listener),
      counters_(std::make_unique<ArenaCounters>(arena)),
      succession_(arena, listener, outside_effects) {}

absl::Status HostEngine::Open() {
  BATON_RETURN_IF_ERROR(device_->CheckForkable());
  wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) return ErrnoStatus(errno, "eventfd (see RLIMIT_NOFILE)");
  // Unlike a socket, a pipe carries no descriptors, whose close here may wait.
  BATON_ASSIGN_OR_RETURN(news_, MakePipe(O_DIRECT | O_NONBLOCK));
  (void)fcntl(news_.writing.get(), F_SETPIPE_SZ, kNewsPipeBytes);
  BATON_ASSIGN_OR_RETURN(
      manager_, native::ConnectionManager::Create(arena_, device_, this, native::Pools::kInAdvance,
                                                  [this](uint32_t shard) { WakeDriver(shard); }));
  return absl::OkStatus();
}

absl::Status HostEngine::SetFollowable(bool followable) {
  driver::SetRegionsInherited(*objects(), followable);
  BATON_RETURN_IF_ERROR(counters_->SetInherited(followable));
  BATON_RETURN_IF_ERROR(device_->SetFollowable(followable));
  return manager_->table().SetInherited(followable);
}

absl::Status HostEngine::TakeOver() {
  BATON_RETURN_IF_ERROR(device_->TakeOver());
  driver::TakeOverGrants(*arena_, device_, objects());
  BATON_RETURN_IF_ERROR(manager_->TakeOver());
  succession_.TakeOver();
  // The device gives each event to one process. This one stores them before there is another
  // follower.
  for (int i = 0; i < kTurnsOfTakeOver && manager_->Turn(); ++i) {
  }
  (void)eventfd_write(wake_.get(), 1);
  return absl::OkStatus();
}

std::vector<int> HostEngine::descriptors() const {
  return {wake_.get(), news_.reading.get(), device_->event_fd()};
}

void HostEngine::Turn() {
  eventfd_t count;
  (void)eventfd_read(wake_.get(), &count);
  // The rest waits for the next turn, which follows at once.
  if (manager_->Turn()) (void)eventfd_write(wake_.get(), 1);
  succession_.LookAtShards();
  ReadNews(news_.reading.get(), [this](const News& news) { OnNews(news); });
  succession_.wakes().WakeNotified();
}

void HostEngine::OnNews(const News& news) {
  listener_->OnEvent(news.kind, news.message, news.worker_id, news.shard, news.connection);
}

void HostEngine::OnRefusedConnection(std::string_view why) {
  TellRefused(why, MonotonicNanoseconds());
}

void HostEngine::OnDeviceEvent(const verbs::DeviceEvent& event, uint32_t connection) {
  absl::Status told = TellDeviceEvent(event, connection);
  // A forked driver does not find it out when it polls, because the device has told this process
  // alone.
  if (event.type == verbs::DeviceEventType::kCompletionQueueFailed) {
    told = absl::DataLossError(absl::StrCat("a completion queue failed: ", event.text));
  }
  if (!told.ok()) OnLost(told);
}

}  // namespace baton::driver_process
