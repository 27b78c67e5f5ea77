// The tie of a service's driver to batond, which may die and be followed by another. The driver
// goes on serving, and introduces itself to the next batond (proto/baton/internal/rejoin.proto).
#ifndef SUPERVISOR_DRIVER_BATOND_LINK_H_
#define SUPERVISOR_DRIVER_BATOND_LINK_H_

#include <chrono>
#include <optional>
#include <vector>

#include "lib/base/heartbeat.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton::driver_process {

// Thread-compatible. Waits for nothing.
class BatondLink {
 public:
  // How long a batond that has been reached may take for its answer.
  static constexpr std::chrono::seconds kAnswerTimeout{5};
  // How often the next batond is looked for.
  static constexpr std::chrono::milliseconds kLookInterval{100};

  // `lock`: the descriptor of the driver's lock (kLockVariable); -1: no batond can be rejoined.
  // `stay`: that of kStayVariable, or -1.
  BatondLink(const internal::KeeperConfig& config, int lock, int stay);

  // The descriptors are those of the environment.
  static BatondLink OfEnvironment(const internal::KeeperConfig& config);

  // Sets what the next batond is told that the service runs with.
  void SetService(const v1::ServiceConfig& service) { *config_.mutable_service() = service; }

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
  FileDescriptor stay_;                  // none: nothing tells that batond was stopped
  bool alone_ = false;                   // batond is gone, and no other one has taken this in
  std::optional<MessageChannel> asked_;  // a batond that has not answered yet
  std::chrono::steady_clock::time_point asked_at_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_BATOND_LINK_H_
