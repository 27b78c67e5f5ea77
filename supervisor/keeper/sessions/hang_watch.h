// Finds workers that hang, does what the service's policy says of them, and finds the processes
// that hold the locks of dead ones.
#ifndef SUPERVISOR_KEEPER_SESSIONS_HANG_WATCH_H_
#define SUPERVISOR_KEEPER_SESSIONS_HANG_WATCH_H_

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/internal/driver.pb.h"
#include "supervisor/keeper/programs/program_output.h"
#include "supervisor/keeper/sessions/worker_places.h"
#include "supervisor/keeper/sessions/worker_session.h"

namespace baton::keeper {

struct LockHolder {
  pid_t pid = -1;
  pid_t thread = -1;  // of the process; its first one may have ended
  FileDescriptor pidfd;
};

// Finds the process that holds a native worker's lock when the worker's own process is dead. The
// worker forked that process, which has mapped the arena itself. Thread-compatible: the management
// loop's thread.
class LockHolders {
 public:
  using Found = std::function<void(std::optional<LockHolder>)>;

  static constexpr std::chrono::milliseconds kPause{100};
  static constexpr size_t kMostLooks = 32;  // without a pause

  // `loop` and `arena` outlive it.
  LockHolders(boost::asio::io_context& loop, const std::string& launcher, const arena::Arena& arena)
      : loop_(loop), arena_(arena), reader_(loop, launcher) {}

  // Finds the process whose number a held lock of the slot names. The worker wrote that number, so
  // the process counts only if it maps this arena. Where its mappings are hidden from this process,
  // it counts if it runs as `uid`, the worker's user, and the keeper does not: the worker could
  // have sent it any signal. A process of `others` never counts. Calls `found` once, at once or
  // from the loop, and not after this object's end. It gets nothing if no lock names a process that
  // counts. As long as a process cannot be looked at (no memory, no descriptors, too many readings
  // that hang), this tries again.
  void Find(uint32_t slot, uid_t uid, const std::vector<pid_t>& others, Found found);

 private:
  struct Search;

  std::optional<LockHolder> NextNamed(const Search& search) const;
  void LookAtNext(const std::shared_ptr<Search>& search);
  void OnLooked(const std::shared_ptr<Search>& search, LockHolder named,
                const absl::StatusOr<bool>& maps_arena);
  void LookAgain(const std::shared_ptr<Search>& search);

  boost::asio::io_context& loop_;
  const arena::Arena& arena_;
  ProgramReader reader_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

// Returns the number of looks in vain after which a worker counts as hung: at least
// `hang_timeout_ms` of silence, and at least two heartbeats, since a worker that beats in time is
// not killed.
uint32_t LooksUntilHung(uint32_t heartbeat_ms, uint32_t hang_timeout_ms, uint32_t between_looks_ms);

// A worker hangs if it owns shards and has not counted a beat for LooksUntilHung() looks.
//
// Thread-compatible: the management loop's thread.
class HangWatch {
 public:
  using Kill = std::function<void(uint64_t worker_id, std::string_view cause)>;

  // Looks at the attached workers each heartbeat_ms or more often.
  HangWatch(const SessionParts& parts, Kill kill);
  uint32_t heartbeat_ms() const { return heartbeat_ms_; }

 private:
  void LookAt(WorkerSession& session);
  uint32_t looks() const;  // in vain, until a worker counts as hung
  bool OwnsShards(uint64_t worker_id);
  void OnHang(WorkerSession& session);

  const SessionParts parts_;
  const uint32_t heartbeat_ms_, between_looks_ms_;
  boost::asio::steady_timer timer_;
  const Kill kill_;
  std::optional<internal::ShardsSeen> shards_;  // as the driver saw them in this round of looks
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_SESSIONS_HANG_WATCH_H_
