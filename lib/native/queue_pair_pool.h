// Queue pairs of a native service, made before its owners are forked: a process cannot use one that
// was made after it.
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

// By shard, whose completion queue they have. Every process has its own copy of these objects for
// the same queue pairs of the device; who may use which one is in the arena (PooledQueuePair).
struct QueuePairPool {
  std::vector<std::vector<std::unique_ptr<verbs::QueuePair>>> shards;

  // Places in them by number: an heir looks up each of its connections.
  std::vector<std::unordered_map<uint32_t, uint32_t>> places;

  void Add(uint32_t shard, std::unique_ptr<verbs::QueuePair> queue_pair) {
    places[shard][queue_pair->number()] = static_cast<uint32_t>(shards[shard].size());
    shards[shard].push_back(std::move(queue_pair));
  }

  // Its place in the shard's pool; -1: it is not of the pool.
  int Find(uint32_t shard, uint32_t number) const {
    const auto found = places[shard].find(number);
    return found == places[shard].end() ? -1 : static_cast<int>(found->second);
  }
};

// Makes a free one of the shard `as`, and returns its place: the first from `from` on. An heir may
// take one while the keeper does, for an owner that has just died. A caller that cannot use the one
// that it got asks again from the place behind it, so that it looks at each place once: another
// process may say again and again that the same one is free.
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
