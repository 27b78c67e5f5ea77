// Finds the process that holds a native worker's lock when the worker's own process is dead. The
// worker forked that process, which has mapped the arena itself.
#ifndef SUPERVISOR_KEEPER_SESSIONS_LOCK_HOLDER_H_
#define SUPERVISOR_KEEPER_SESSIONS_LOCK_HOLDER_H_

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/keeper/programs/program_reader.h"

namespace baton::keeper {

struct LockHolder {
  pid_t pid = -1;
  pid_t thread = -1;  // of the process; its first one may have ended
  FileDescriptor pidfd;
};

// Thread-compatible: the management loop's thread.
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

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_SESSIONS_LOCK_HOLDER_H_
