// Inside the worker library: what wakes a worker that sleeps, and whether a keeper has it still.
#ifndef WORKER_KEEPER_WATCH_H_
#define WORKER_KEEPER_WATCH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "worker/keeper_session.h"
#include "worker/native_host.h"
#include "worker/watches.h"
#include "worker/worker_notices.h"

namespace baton {

// Watches the session with the keeper and the socket to the driver's engine, and resumes the
// session with the keeper that follows.
//
// Thread-compatible: the worker's thread.
class KeeperWatch {
 public:
  // Call it once, before all others. `keeper`, `native`, `notices` and `watches` must outlive this
  // object. `wake`: a byte either way wakes the other side. `native`: null if the driver is
  // `baton-driver`.
  absl::Status Open(FileDescriptor wake, KeeperSession* keeper, const NativeHost* native,
                    WorkerNotices* notices, Watches* watches);
  // Makes event_fd() readable each `heartbeat_ms` milliseconds, so that a worker that sleeps shows
  // a sign of life in time. Costs nothing while event_fd() is not waited for.
  absl::Status WakeEach(uint32_t heartbeat_ms);

  // Readable when Check or the driver has something to do, and when a sign of life is due.
  int event_fd() const { return event_fd_.get(); }
  // Returns whether Check has something to do now. Only a new event makes event_fd() readable for
  // an edge-triggered loop, so such a loop must not sleep on what is there already.
  bool HasNews();
  // Sleeps until event_fd() is readable or `timeout_ms` milliseconds are over (-1: no limit).
  // Returns whether anything came besides the time for a sign of life.
  absl::StatusOr<bool> Sleep(int timeout_ms) const;
  // Returns whether a descriptor of the application is readable, which Check notes.
  bool SeesWatched() const;
  // Takes the events that have come.
  void Check();

  // Returns whether `baton-driver` is gone, or the keeper is and no other follows.
  bool gone() const { return gone_; }
  // For a simulation, in which the worker's process is dead.
  void Die() { gone_ = true; }

 private:
  absl::Status WatchSession();
  void UnwatchSession();
  void BeginResumption();
  void ContinueResumption();
  void SetResumptionTimer(long period_ns);
  void LoseKeeper();

  KeeperSession* keeper_ = nullptr;
  const NativeHost* native_ = nullptr;
  WorkerNotices* notices_ = nullptr;
  Watches* watches_ = nullptr;
  FileDescriptor wake_;
  FileDescriptor event_fd_;
  FileDescriptor beat_timer_;
  // Armed while the keeper is gone and another may follow it.
  FileDescriptor resumption_timer_;
  bool resuming_ = false;
  bool gone_ = false;
  int watched_socket_ = -1;             // the session's socket in event_fd_
  uint32_t watched_socket_number_ = 0;  // KeeperSession::sockets_used() when it was added
};

}  // namespace baton

#endif  // WORKER_KEEPER_WATCH_H_
