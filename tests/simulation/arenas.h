// Arenas for schedules. Mapping and sealing memory takes longer than a schedule, so they are used
// again.
#ifndef TESTS_SIMULATION_ARENAS_H_
#define TESTS_SIMULATION_ARENAS_H_

#include <memory>

#include "lib/arena/arena.h"

namespace baton::simulation {

struct ArenaPair {
  std::unique_ptr<arena::Arena> driver;
  std::shared_ptr<const arena::Arena> worker;  // mapped as workers map it
};

// As Arena::Create leaves it.
ArenaPair& FreshArena(const arena::Shape& shape);

// For the child of a fork, which has none of its parent's mappings.
void ForgetArenas();

}  // namespace baton::simulation

#endif  // TESTS_SIMULATION_ARENAS_H_
