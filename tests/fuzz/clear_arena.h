// An arena as new, without new memory: fuzzers need one for every input.
#ifndef TESTS_FUZZ_CLEAR_ARENA_H_
#define TESTS_FUZZ_CLEAR_ARENA_H_

#include <cstdint>
#include <cstring>

#include "lib/arena/arena.h"

namespace baton::fuzz {

inline void ClearArena(arena::Arena* arena) {
  std::memset(reinterpret_cast<uint8_t*>(&arena->worker(0)), 0,
              arena->worker_map().total - arena->worker_map().workers);
  std::memset(reinterpret_cast<uint8_t*>(&arena->shard(0)), 0,
              arena->driver_map().total - arena->driver_map().shards);
  const arena::RecoveryMemoryMap& recovery = arena->recovery_map();
  std::memset(reinterpret_cast<uint8_t*>(&arena->succession(0)), 0,
              recovery.total - recovery.shards);
  arena->header().driver_sleeping = 0;
  arena->header().ownership_changes = 0;
  arena->header().stop_requested = 0;
  for (uint32_t shard = 0; shard < arena->shape().shards; ++shard) {
    arena->shard(shard).owner.ownership = arena::PackOwnership(0, arena::kNobody);
  }
}

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_CLEAR_ARENA_H_
