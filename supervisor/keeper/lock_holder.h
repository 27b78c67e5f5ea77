// Finds the process that holds a native worker's lock when the worker's own process is dead. The
// worker has forked it, and it has mapped the arena itself.
#ifndef SUPERVISOR_KEEPER_LOCK_HOLDER_H_
#define SUPERVISOR_KEEPER_LOCK_HOLDER_H_

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/keeper/program_reader.h"

namespace baton::keeper {

struct LockHolder {
  pid_t pid = -1;
  FileDescriptor pidfd;
};

// Thread-compatible: the management loop's thread.
class LockHolders {
 public:
  using Found = std::function<void(std::optional<LockHolder>)>;

  // `loop` and `arena` outlive it.
  LockHolders(boost::asio::io_context& loop, const std::string& launcher, const arena::Arena& arena)
      : arena_(arena), reader_(loop, launcher) {}

  // Finds none when no lock of the slot is held, or what it says is not so. It is a worker that has
  // written the number there: the process that has it counts only if it maps this arena, or, where
  // that cannot be seen, if `uid`, the worker's own and not the keeper's, is its user's, so that
  // the worker could have sent it any signal. `others` are processes that it is none of. `found` is
  // called once, now or from the loop, unless this is destroyed before.
  void Find(uint32_t slot, uid_t uid, const std::vector<pid_t>& others, Found found);

 private:
  struct Search;

  std::vector<LockHolder> NamedIn(uint32_t slot, const std::vector<pid_t>& others) const;
  void LookAtNext(const std::shared_ptr<Search>& search);

  const arena::Arena& arena_;
  ProgramReader reader_;
};

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_LOCK_HOLDER_H_
