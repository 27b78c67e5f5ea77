// A completion on which owners die again and again is taken out of its shard's log, and its
// connection is failed: layout.md, "Poison". Whom to blame is decided elsewhere.
#ifndef LIB_DRIVER_POISON_H_
#define LIB_DRIVER_POISON_H_

#include "lib/arena/layout.h"

namespace baton::driver {

// The mildest level that makes sure that no owner is given `blamed` again as it was. What a
// connection that fails by itself looks like comes first, because applications expect that.
arena::PoisonLevel LevelFor(const arena::CompletionEntry& blamed);

// Makes of an entry of a poisoned connection what its level says. Idempotent.
void Spoil(arena::PoisonLevel level, arena::CompletionEntry* entry);

}  // namespace baton::driver

#endif  // LIB_DRIVER_POISON_H_
