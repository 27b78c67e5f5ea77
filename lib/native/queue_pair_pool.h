// The queue pairs of a service's connections. They are made before its drivers are forked: a forked
// process cannot use a queue pair that was created later. If the driver is in the process that
// creates them, they are made when they are taken.
#ifndef LIB_NATIVE_QUEUE_PAIR_POOL_H_
#define LIB_NATIVE_QUEUE_PAIR_POOL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/status.h"
#include "lib/verbs/verbs.h"

namespace baton::native {

// Queue pairs by shard; they complete in the shard's queue. Each process has its own copy of these
// objects for the same queue pairs. The arena (PooledQueuePair) has their state.
class QueuePairPool {
 public:
  using Make = std::function<absl::StatusOr<std::unique_ptr<verbs::QueuePair>>(uint32_t shard)>;

  explicit QueuePairPool(uint32_t shards = 0) : shards_(shards) {}

  // Adds a queue pair that exists in advance.
  void Add(uint32_t shard, std::unique_ptr<verbs::QueuePair> queue_pair) {
    Put(shard, places(shard), std::move(queue_pair));
  }
  // Queue pairs are made with `make` from now on, when they are taken.
  void MakeOnDemand(Make make) { make_ = std::move(make); }
  bool makes() const { return make_ != nullptr; }

  // The places that have, or had, a queue pair.
  uint32_t places(uint32_t shard) const {
    return static_cast<uint32_t>(shards_[shard].queue_pairs.size());
  }
  uint32_t shards() const { return static_cast<uint32_t>(shards_.size()); }
  // Returns null if there is none in that place now.
  verbs::QueuePair* at(uint32_t shard, uint32_t place) const {
    return place < places(shard) ? shards_[shard].queue_pairs[place].get() : nullptr;
  }
  // Returns the queue pair's place in the shard's pool, or -1.
  int Find(uint32_t shard, uint32_t number) const {
    const auto& by_number = shards_[shard].by_number;
    const auto found = by_number.find(number);
    return found == by_number.end() ? -1 : static_cast<int>(found->second);
  }
  uint32_t count() const {
    size_t count = 0;
    for (const Shard& shard : shards_) count += shard.by_number.size();
    return static_cast<uint32_t>(count);
  }

  // Sets the state of the shard's first free place from `from` on to `as`, and returns the place,
  // which has a queue pair then. An heir and `baton-driver` may call it at the same time, each for
  // its own copy. A caller that cannot use the queue pair calls again with the next place, so it
  // tries each place once even if another process keeps marking the same one as free.
  // kResourceExhausted: none is free.
  absl::StatusOr<uint32_t> Take(const arena::Arena& arena, uint32_t shard, arena::PooledState as,
                                uint32_t from) {
    Shard& of = shards_[shard];
    const uint32_t count = arena::PooledQueuePairs(arena.shape());
    for (uint32_t place = std::max(from, of.first_free); place < count; ++place) {
      auto free = static_cast<uint32_t>(arena::PooledState::kFree);
      if (!std::atomic_ref<uint32_t>(arena.pooled(shard, place).state)
               .compare_exchange_strong(free, static_cast<uint32_t>(as))) {
        continue;
      }
      if (at(shard, place) == nullptr) {
        auto made = make_(shard);
        if (!made.ok()) {
          arena::StoreRelease(arena.pooled(shard, place).state, free);
          return made.status();
        }
        Put(shard, place, *std::move(made));
      }
      if (make_) of.first_free = place + 1;
      return place;
    }
    return absl::ResourceExhaustedError(absl::StrCat(
        "all ", count, " queue pairs of shard ", shard,
        " are in use, or wait until they may be used again: raise ",
        arena::IsNative(arena.shape()) ? "queue_pairs_per_shard" : "max_connections or shards"));
  }
  // The place is about to be free again. A queue pair that was made on demand is destroyed.
  void NoteFree(uint32_t shard, uint32_t place) {
    Shard& of = shards_[shard];
    of.first_free = std::min(of.first_free, place);
    if (!make_ || at(shard, place) == nullptr) return;
    of.by_number.erase(of.queue_pairs[place]->number());
    of.queue_pairs[place].reset();
  }

 private:
  struct Shard {
    std::vector<std::unique_ptr<verbs::QueuePair>> queue_pairs;
    // Places by queue pair number, for heirs, which look up all their connections.
    std::unordered_map<uint32_t, uint32_t> by_number;
    uint32_t first_free = 0;  // no place before it is
  };

  void Put(uint32_t shard, uint32_t place, std::unique_ptr<verbs::QueuePair> queue_pair) {
    Shard& of = shards_[shard];
    of.by_number[queue_pair->number()] = place;
    if (place >= of.queue_pairs.size()) of.queue_pairs.resize(place + 1);
    of.queue_pairs[place] = std::move(queue_pair);
  }

  std::vector<Shard> shards_;
  Make make_;
};

}  // namespace baton::native

#endif  // LIB_NATIVE_QUEUE_PAIR_POOL_H_
