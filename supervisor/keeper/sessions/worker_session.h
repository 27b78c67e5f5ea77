// One worker of a service, as its keeper sees it.
#ifndef SUPERVISOR_KEEPER_SESSIONS_WORKER_SESSION_H_
#define SUPERVISOR_KEEPER_SESSIONS_WORKER_SESSION_H_

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "lib/arena/arena.h"
#include "lib/channel/framed_socket.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/keeper/driver_client.h"

namespace baton::keeper {

internal::WorkerPlace PlaceOf(uint32_t slot, uint64_t worker_id);

struct WorkerInfo {
  uint64_t id = 0;
  uint32_t slot = 0;
  pid_t pid = 0;
  bool ready = false;   // and not retired
  bool healthy = true;  // by its own word
  bool hangs = false;   // it owns shards and has shown no sign of life for the service's time
  std::string version;
  StateVersions state_versions;
  std::string name;
  uint32_t uid = 0;
};

// Returns the worker with this number, or in this process; null: it is not among `workers`.
const WorkerInfo* FindWorker(const std::vector<WorkerInfo>& workers, uint64_t id);
const WorkerInfo* FindProcess(const std::vector<WorkerInfo>& workers, pid_t pid);

// Counts how long a worker has been silent, in looks and not in time: when a machine that was
// suspended wakes, all its workers are overdue, and none of them hangs.
class Heartbeat {
 public:
  // `beat`: the worker's count. It is silent after `patience` looks that found nothing new.
  void Look(uint64_t beat, uint32_t patience);
  // Counts from now on, because the worker may have done something else for long.
  void Restart();
  bool IsSilent(uint32_t patience) const { return silent_looks_ >= patience; }
  uint64_t seen_ns() const { return seen_ns_; }

 private:
  uint64_t beat_ = 0;
  uint64_t seen_ns_ = 0;
  uint32_t silent_looks_ = 0;
};

// All of a session except what it is connected to.
struct SessionFacts {
  uint64_t id = 0;  // 0: has no place yet; a child has a reserved one
  uint32_t slot = 0;
  bool attached = false;
  // The pidfd is known to be the worker's. Until then no signal is sent to it, and the worker gets
  // nothing that only a signal could take away.
  bool process_certain = false;
  PeerCredentials peer;
  bool distrusted = false;  // as AttachingPeer's
  internal::AttachArena attached_with;
  v1::WorkerState state = v1::WORKER_STATE_ATTACHED;
  uint64_t attached_ns = 0;
  Heartbeat heartbeat;
  uint32_t silent_owner_looks = 0;       // that found it silent, and an owner of shards
  bool hangs = false;                    // as WorkerInfo's
  const void* control_stream = nullptr;  // what reported that it is open; null: it is not
  std::string kill_cause;                // as WorkerObserver's
  bool thread_ended = false;             // with its lock held
  bool detached = false;
  bool retired = false;  // it is to end, and is given no shard
  // The worker attached to the former keeper, and has not resumed its session yet.
  bool awaits_resumption = false;
  uint64_t beat_at_restore = 0;  // the worker's count then
  std::string key;               // by which it resumes its session
};

// Thread-compatible: the management loop's thread.
struct WorkerSession : SessionFacts {
  explicit WorkerSession(boost::asio::io_context& loop) : process(loop) {}

  internal::WorkerPlace Place() const { return PlaceOf(slot, id); }
  // Returns what the next keeper needs to go on with the session, except the process's descriptor.
  internal::HeldWorker ToHeld() const;
  // Goes on with a session that the former keeper held. REQUIRES: this session is new.
  void GoOnFrom(const internal::HeldWorker& held, FileDescriptor pidfd);

  WorkerInfo Info(const arena::Arena& arena) const;
  v1::Worker Describe(const arena::Arena& arena) const;
  // Returns OK also if the process is dead already. kFailedPrecondition: not `process_certain` yet.
  absl::Status Signal(int number);
  bool IsProcessDead();  // or no longer the session's
  // Returns true if the process is about to be dead, or cannot be looked at. A process closes its
  // sockets before it is dead.
  bool IsProcessEnding();
  // Only the first cause is kept, because what follows from the kill may look like another.
  void NoteKillCause(std::string_view cause) {
    if (kill_cause.empty()) kill_cause = std::string(cause);
  }

  std::weak_ptr<FramedSocket> socket;             // whose callbacks hold the session
  boost::asio::posix::stream_descriptor process;  // pidfd
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_SESSIONS_WORKER_SESSION_H_
