// Inside the worker library: what wakes a worker that sleeps, and whether a keeper has it still.
#ifndef WORKER_KEEPER_WATCH_H_
#define WORKER_KEEPER_WATCH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "lib/base/file_descriptor.h"
#include "worker/keeper_session.h"
#include "worker/native_host.h"
#include "worker/worker_notices.h"

namespace baton {

// Watches the session with the keeper and the socket to the driver's engine, and resumes the
// session with the keeper that follows.
//
// Thread-compatible: the worker's thread.
class KeeperWatch {
 public:
  // Call it once, before Check. `keeper`, `native` and `notices` must outlive this object. `wake`:
  // a byte either way wakes the other side. `native`: null if the driver is `baton-driver`.
  absl::Status Open(FileDescriptor wake, KeeperSession* keeper, const NativeHost* native,
                    WorkerNotices* notices);

  // Readable when Check or the driver has something to do.
  int event_fd() const { return event_fd_.get(); }
  // Takes the events that have come.
  void Check();

  // Returns whether `baton-driver` is gone, or the keeper is and no other follows.
  bool gone() const { return gone_; }
  // For a simulation, in which the worker's process is dead.
  void Die() { gone_ = true; }

 private:
  absl::Status WatchSession();
  void BeginResumption();
  void ContinueResumption();
  void SetResumptionTimer(long period_ns);
  void LoseKeeper();

  KeeperSession* keeper_ = nullptr;
  const NativeHost* native_ = nullptr;
  WorkerNotices* notices_ = nullptr;
  FileDescriptor wake_;
  FileDescriptor event_fd_;
  // Armed while the keeper is gone and another may follow it.
  FileDescriptor resumption_timer_;
  bool resuming_ = false;
  bool gone_ = false;
  int watched_socket_ = -1;             // the session's socket in event_fd_
  uint32_t watched_socket_number_ = 0;  // KeeperSession::sockets_used() when it was added
};

}  // namespace baton

#endif  // WORKER_KEEPER_WATCH_H_
