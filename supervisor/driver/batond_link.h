// Keeps a service's driver in touch with batond. If batond dies, the driver goes on serving, and
// introduces itself to the next batond (proto/baton/internal/batond.proto).
#ifndef SUPERVISOR_DRIVER_BATOND_LINK_H_
#define SUPERVISOR_DRIVER_BATOND_LINK_H_

#include <chrono>
#include <optional>
#include <vector>

#include "lib/base/heartbeat.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton::driver_process {

// Thread-compatible. No call blocks.
class BatondLink {
 public:
  // How long a batond that the driver has asked may take for its answer.
  static constexpr std::chrono::seconds kAnswerTimeout{5};
  // How often the driver looks for the next batond.
  static constexpr std::chrono::milliseconds kLookInterval{100};

  // `lock`: the descriptor of the driver's lock (kLockVariable), which the caller keeps open; -1:
  // no batond can be rejoined. `stay`: the descriptor of kStayVariable, or -1; this object closes
  // it.
  BatondLink(const internal::KeeperConfig& config, int lock, int stay);

  // Takes the descriptors that the environment names.
  static BatondLink OfEnvironment(const internal::KeeperConfig& config);

  // Sets the configuration that the driver reports to the next batond.
  void SetService(const v1::ServiceConfig& service) { *config_.mutable_service() = service; }

  // Sets whether batond is told with each Beat that the keeper hangs.
  void SetKeeperHangs(bool hangs) { keeper_hangs_ = hangs; }

  // Shows batond that this process lives. When batond is gone, looks for the next one. Sends this
  // process SIGTERM if there will be none (batond was stopped), or if none can find this process
  // any more (its lock file was removed). Returns the time until the next call.
  std::chrono::milliseconds Beat(AfterLastSign then = AfterLastSign::kAsBefore);

 private:
  bool WillBeAlone() const;
  void LookForBatond();
  void TakeAnswer();
  void Welcome(std::vector<FileDescriptor> descriptors);

  internal::KeeperConfig config_;
  int lock_;
  FileDescriptor stay_;  // none: the driver cannot see that batond was stopped
  bool keeper_hangs_ = false;
  bool alone_ = false;                   // batond is gone, and no other has taken this driver in
  std::optional<MessageChannel> asked_;  // a batond that has not answered yet
  std::chrono::steady_clock::time_point asked_at_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_BATOND_LINK_H_
