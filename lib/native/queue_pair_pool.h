// Queue pairs of a native service, created before its owners are forked: a forked process cannot
// use a queue pair that was created later.
#ifndef LIB_NATIVE_QUEUE_PAIR_POOL_H_
#define LIB_NATIVE_QUEUE_PAIR_POOL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/verbs/verbs.h"

namespace baton::native {

// Queue pairs by shard; they complete in the shard's queue. Each process has its own copy of these
// objects for the same queue pairs. The arena (PooledQueuePair) has their state.
struct QueuePairPool {
  std::vector<std::vector<std::unique_ptr<verbs::QueuePair>>> shards;

  // Places in `shards` by queue pair number, for heirs, which look up all their connections.
  std::vector<std::unordered_map<uint32_t, uint32_t>> places;

  void Add(uint32_t shard, std::unique_ptr<verbs::QueuePair> queue_pair) {
    places[shard][queue_pair->number()] = static_cast<uint32_t>(shards[shard].size());
    shards[shard].push_back(std::move(queue_pair));
  }

  // Returns the queue pair's place in the shard's pool, or -1.
  int Find(uint32_t shard, uint32_t number) const {
    const auto found = places[shard].find(number);
    return found == places[shard].end() ? -1 : static_cast<int>(found->second);
  }
};

// Sets the state of the shard's first free queue pair from place `from` on to `as`, and returns its
// place. An heir and `baton-driver` may call it at the same time. A caller that cannot use the
// queue pair calls again with the next place, so it tries each place once even if another process
// keeps marking the same one as free. kResourceExhausted: none is free.
inline absl::StatusOr<uint32_t> TakeQueuePair(const arena::Arena& arena, uint32_t shard,
                                              arena::PooledState as, uint32_t from) {
  for (uint32_t place = from; place < arena.shape().pooled_queue_pairs; ++place) {
    auto state = static_cast<uint32_t>(arena::PooledState::kFree);
    if (std::atomic_ref<uint32_t>(arena.pooled(shard, place).state)
            .compare_exchange_strong(state, static_cast<uint32_t>(as))) {
      return place;
    }
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "all ", arena.shape().pooled_queue_pairs, " queue pairs of shard ", shard,
      " are in use, or wait until they may be used again: raise queue_pairs_per_shard"));
}

}  // namespace baton::native

#endif  // LIB_NATIVE_QUEUE_PAIR_POOL_H_
