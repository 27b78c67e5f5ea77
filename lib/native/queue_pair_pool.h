// Queue pairs of a native service, made before its owners are forked: a process cannot use one that
// was made after it.
#ifndef LIB_NATIVE_QUEUE_PAIR_POOL_H_
#define LIB_NATIVE_QUEUE_PAIR_POOL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/verbs/verbs.h"

namespace baton::native {

// By shard, whose completion queue they have. Every process has its own copy of these objects for
// the same queue pairs of the device; who may use which one is in the arena (PooledQueuePair).
struct QueuePairPool {
  std::vector<std::vector<std::unique_ptr<verbs::QueuePair>>> shards;

  // Its place in the shard's pool; -1: it is not of the pool.
  int Find(const arena::Arena& arena, uint32_t shard, uint32_t number) const {
    for (uint32_t i = 0; number != 0 && i < shards[shard].size(); ++i) {
      if (arena.pooled(shard, i).number == number) return static_cast<int>(i);
    }
    return -1;
  }
};

}  // namespace baton::native

#endif  // LIB_NATIVE_QUEUE_PAIR_POOL_H_
