// Rewrites the log entries of a connection on whose completion owner after owner dies (layout.md,
// "Poison"). The caller decides which completion to blame.
#ifndef LIB_DRIVER_POISON_H_
#define LIB_DRIVER_POISON_H_

#include "lib/arena/layout.h"

namespace baton::driver {

// Returns the mildest level that keeps `blamed` from every later owner. The mildest levels look
// like an ordinary failure of the connection, which applications expect.
arena::PoisonLevel LevelFor(const arena::CompletionEntry& blamed);

// Rewrites an entry of a poisoned connection as its level requires. Idempotent.
void Spoil(arena::PoisonLevel level, arena::CompletionEntry* entry);

}  // namespace baton::driver

#endif  // LIB_DRIVER_POISON_H_
