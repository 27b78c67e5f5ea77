#include "supervisor/driver/batond_link.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include <string>
#include <utility>

#include "lib/base/program_start.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "lib/channel/carried_status.h"
#include "proto/baton/internal/batond.pb.h"
#include "spdlog/spdlog.h"
#include "supervisor/config/state_files.h"

namespace baton::driver_process {

BatondLink::BatondLink(const internal::KeeperConfig& config, int lock, int stay)
    : config_(config), lock_(lock), stay_(stay) {}

BatondLink BatondLink::OfEnvironment(const internal::KeeperConfig& config) {
  return BatondLink(config, GivenDescriptor(kLockVariable).Release(),
                    GivenDescriptor(kStayVariable).Release());
}

std::chrono::milliseconds BatondLink::Beat(AfterLastSign then) {
  if (asked_) TakeAnswer();
  if (!alone_ && !ShowLife(then, keeper_hangs_) && lock_ >= 0) {
    alone_ = true;
    spdlog::warn("batond is gone: the service goes on, and waits for the next batond");
  }
  if (alone_ && WillBeAlone()) {
    (void)raise(SIGTERM);
  } else if (alone_ && !asked_) {
    LookForBatond();
  }
  return alone_ ? kLookInterval : kHeartbeat;
}

// The pipe ends when batond has ended and the service manager does not keep it for the next batond.
bool BatondLink::WillBeAlone() const {
  pollfd stay = {stay_.get(), POLLIN, 0};
  if (stay_ && poll(&stay, 1, /*timeout=*/0) > 0) {
    spdlog::info("batond was stopped: the service ends");
    return true;
  }
  struct stat lock = {};
  if (fstat(lock_, &lock) != 0 || lock.st_nlink != 0) return false;
  spdlog::error(
      "the state directory {} was removed while no batond ran, so the next one could not find this "
      "process: the service ends",
      config_.state_dir());
  return true;
}

// Usually no batond listens yet, so a failure is not logged.
void BatondLink::LookForBatond() {
  absl::StatusOr<FileDescriptor> socket =
      ConnectUnix(RejoinSocketPath(config_.state_dir()), /*timeout_ms=*/0);
  if (!socket.ok()) return;
  MessageChannel channel(*std::move(socket));
  internal::RejoinRequest request;
  *request.mutable_config() = config_;
  request.set_release(std::string(kRelease));
  // Does not wait: a new socket takes this message at once.
  if (!channel.Enqueue(request, {lock_}).ok() || channel.pending()) return;
  asked_.emplace(std::move(channel));
  asked_at_ = std::chrono::steady_clock::now();
}

void BatondLink::TakeAnswer() {
  internal::RejoinReply reply;
  std::vector<FileDescriptor> descriptors;
  absl::Status status = asked_->Receive(&reply, /*timeout_ms=*/0, &descriptors);
  const bool waits = absl::IsDeadlineExceeded(status) &&
                     std::chrono::steady_clock::now() - asked_at_ < kAnswerTimeout;
  if (waits) return;
  asked_.reset();
  if (status.ok()) status = StatusIn(reply);
  if (status.ok() && descriptors.size() < 2) {
    status = absl::InternalError("its answer does not have the two descriptors of a driver");
  }
  if (status.ok()) return Welcome(std::move(descriptors));
  spdlog::warn("the next batond does not take this driver in: {}", MessageOf(status));
}

void BatondLink::Welcome(std::vector<FileDescriptor> descriptors) {
  alone_ = false;
  SetHeart(descriptors[0].Release());
  stay_ = descriptors.size() > 2 ? std::move(descriptors[2]) : FileDescriptor();
  spdlog::info("another batond has taken this driver in");
}

}  // namespace baton::driver_process
