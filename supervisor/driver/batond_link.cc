#include "supervisor/driver/batond_link.h"

#include <fcntl.h>
#include <signal.h>

#include <cerrno>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/program_start.h"
#include "lib/base/status.h"
#include "lib/base/version.h"
#include "proto/baton/internal/batond.pb.h"
#include "spdlog/spdlog.h"
#include "supervisor/batond/spawn.h"
#include "supervisor/config/state_files.h"

namespace baton::driver_process {

BatondLink::BatondLink(const internal::KeeperConfig& config, int lock, int stay)
    : config_(config),
      lock_(lock),
      next_(RejoinSocketPath(config.state_dir()), lock, FileDescriptor(stay)) {}

BatondLink BatondLink::OfEnvironment(const internal::KeeperConfig& config) {
  return BatondLink(config, GivenDescriptor(kLockVariable).Release(),
                    GivenDescriptor(kStayVariable).Release());
}

// The descriptor is for reading only.
absl::Status BatondLink::NameThisProcess() const {
  if (lock_ < 0) return absl::OkStatus();
  const std::string path = absl::StrCat("/proc/self/fd/", lock_);
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file && WriteProcessNumber(file.get())) return absl::OkStatus();
  return ErrnoStatus(errno, "the lock's file cannot be written");
}

std::chrono::milliseconds BatondLink::Beat(AfterLastSign then) {
  if (!alone_ && !ShowLife(then, keeper_hangs_) && lock_ >= 0) {
    alone_ = true;
    spdlog::warn("batond is gone: the service goes on, and waits for the next batond");
  }
  if (alone_ && WillBeAlone()) {
    (void)raise(SIGTERM);
  } else if (alone_) {
    LookForBatond();
    // From now on batond knows what the policy wants if this process hangs.
    if (!alone_) (void)ShowLife(then, keeper_hangs_);
  }
  return alone_ ? NextBatond::kLookInterval : kHeartbeat;
}

bool BatondLink::WillBeAlone() const {
  const absl::Status may_come = next_.CheckOneMayCome();
  if (may_come.ok()) return false;
  const bool stopped = absl::IsCancelled(may_come);
  spdlog::log(stopped ? spdlog::level::info : spdlog::level::err, "{}: the service ends",
              MessageOf(may_come));
  return true;
}

void BatondLink::LookForBatond() {
  internal::RejoinRequest request;
  *request.mutable_config() = config_;
  request.set_release(std::string(kRelease));
  absl::StatusOr<std::optional<NextBatond::Welcome>> found = next_.Look(request);
  if (!found.ok()) {
    return spdlog::warn("the next batond does not take this driver in: {}",
                        MessageOf(found.status()));
  }
  if (!*found) return;
  alone_ = false;
  SetHeart((*found)->heart.Release());
  spdlog::info("another batond has taken this driver in");
}

}  // namespace baton::driver_process
