// Finds the process that holds a native worker's lock when the worker's own process is dead. The
// worker has forked it, and it has mapped the arena itself.
#ifndef SUPERVISOR_KEEPER_LOCK_HOLDER_H_
#define SUPERVISOR_KEEPER_LOCK_HOLDER_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/base/file_descriptor.h"

namespace baton::keeper {

struct LockHolder {
  pid_t pid = -1;
  FileDescriptor pidfd;
};

// None: no lock of the slot is held, or what it says is not so. It is a worker that has written the
// number there: the process that has it counts only if it maps this arena, or, where this keeper
// may not see that, if `uid`, the worker's own and not the keeper's, is its user's, so that the
// worker could have sent it any signal. `others` are processes that it is none of.
std::optional<LockHolder> FindLockHolder(const arena::Arena& arena, uint32_t slot, uid_t uid,
                                         const std::vector<pid_t>& others);

}  // namespace baton::keeper

#endif  // SUPERVISOR_KEEPER_LOCK_HOLDER_H_
