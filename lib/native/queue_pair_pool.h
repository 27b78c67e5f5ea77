// Queue pairs of a native service, made before its owners are forked: a process cannot use one that
// was made after it.
#ifndef LIB_NATIVE_QUEUE_PAIR_POOL_H_
#define LIB_NATIVE_QUEUE_PAIR_POOL_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lib/verbs/verbs.h"

namespace baton::native {

// By shard, whose completion queue they have. Every process has its own copy of these objects for
// the same queue pairs of the device; who may use which one is in the arena (PooledQueuePair).
struct QueuePairPool {
  std::vector<std::vector<std::unique_ptr<verbs::QueuePair>>> shards;
  struct Place {
    uint32_t shard, index;
  };
  // By number, which they keep. A successor looks each of its connections' up before it serves.
  absl::flat_hash_map<uint32_t, Place> places;

  void Add(uint32_t shard, std::unique_ptr<verbs::QueuePair> queue_pair) {
    places[queue_pair->number()] = {shard, static_cast<uint32_t>(shards[shard].size())};
    shards[shard].push_back(std::move(queue_pair));
  }
  // Its place in the shard's pool; -1: it is not of that.
  int Find(uint32_t shard, uint32_t number) const {
    const auto found = places.find(number);
    return found == places.end() || found->second.shard != shard
               ? -1
               : static_cast<int>(found->second.index);
  }
};

}  // namespace baton::native

#endif  // LIB_NATIVE_QUEUE_PAIR_POOL_H_
