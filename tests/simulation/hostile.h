// What a broken or hostile worker, and a dying one, writes into the memory that it shares.
#ifndef TESTS_SIMULATION_HOSTILE_H_
#define TESTS_SIMULATION_HOSTILE_H_

#include <cstdint>

#include "lib/arena/arena.h"
#include "tests/simulation/context.h"

namespace baton::simulation {

// Publishes an invalid transaction behind what the worker in `slot` has published to one of its
// shards. None of it may have an effect. False: it has no shard that the dice like.
bool PublishInvalid(const arena::Arena& arena, uint32_t slot, Context* context);

// Changes a request that is committed and not posted yet, of a connection of the worker in `slot`.
// Returns the connection, which is to be failed alone; kNothing: there is none.
inline constexpr uint32_t kNothing = ~0u;
uint32_t ChangeCommitted(const arena::Arena& arena, uint32_t slot, Context* context);

// Entries and tail of the bank of an epoch that is over.
void ScribbleBank(const arena::Arena& arena, uint32_t shard, uint64_t epoch, Dice* dice);

// Work requests and state that nobody has committed, of a shard that nobody owns.
void ScribbleUncommitted(const arena::Arena& arena, uint32_t shard, Dice* dice);

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_HOSTILE_H_
