// Keeps a service's driver in touch with batond. If batond dies, the driver goes on serving, and
// introduces itself to the next batond (proto/baton/internal/batond.proto).
#ifndef SUPERVISOR_DRIVER_BATOND_LINK_H_
#define SUPERVISOR_DRIVER_BATOND_LINK_H_

#include <chrono>

#include "absl/status/status.h"
#include "lib/base/heartbeat.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/config/next_batond.h"

namespace baton::driver_process {

// Thread-compatible. No call blocks.
class BatondLink {
 public:
  // `lock`: the descriptor of the driver's lock (kLockVariable), which the caller keeps open; -1:
  // no batond can be rejoined. `stay`: the descriptor of kStayVariable, or -1; this object closes
  // it.
  BatondLink(const internal::KeeperConfig& config, int lock, int stay);

  // Takes the descriptors that the environment names.
  static BatondLink OfEnvironment(const internal::KeeperConfig& config);

  // Sets the configuration that the driver reports to the next batond.
  void SetConfig(const internal::KeeperConfig& config) { config_ = config; }

  // Sets whether batond is told with each Beat that the keeper hangs.
  void SetKeeperHangs(bool hangs) { keeper_hangs_ = hangs; }

  // This process follows a dead one, which batond knew: it has to introduce itself.
  void Introduce() {
    alone_ = lock_ >= 0;
    next_.ForgetQuestion();
  }
  // Writes into the lock's file that this process has it now, for the next batond.
  absl::Status NameThisProcess() const;

  // Shows batond that this process lives. When batond is gone, looks for the next one. Sends this
  // process SIGTERM if there will be none (batond was stopped), or if none can find this process
  // any more (its lock file was removed). Returns the time until the next call.
  std::chrono::milliseconds Beat(AfterLastSign then = AfterLastSign::kAsBefore);

 private:
  bool WillBeAlone() const;
  void LookForBatond();

  internal::KeeperConfig config_;
  int lock_;
  NextBatond next_;
  bool keeper_hangs_ = false;
  bool alone_ = false;  // batond is gone, and no other has taken this driver in
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_BATOND_LINK_H_
