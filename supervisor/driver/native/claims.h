// The shards that a native worker inherits: claims those whose owner is dead or has released them,
// and decides which are taken next (lib/arena/layout.md, "Native owners").
//
// Thread-compatible: the thread of the worker's driver.
#ifndef SUPERVISOR_DRIVER_NATIVE_CLAIMS_H_
#define SUPERVISOR_DRIVER_NATIVE_CLAIMS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"

namespace baton::driver_process {

// A shard that is claimed and not taken yet.
struct Claimed {
  uint32_t shard = 0;
  std::vector<uint32_t> connections;   // all that were in it when the claim was noted, maybe more
  std::vector<uint32_t> accepts_into;  // QueueDriver::AcceptTargets
};

class Claims {
 public:
  struct Options {
    uint32_t slot = 0;                   // of the worker
    bool may_take_from_the_dead = true;  // false: only what its owner gave up
  };

  // All outlive it. `ownerships`: by shard.
  Claims(const arena::Arena* arena, std::vector<driver::Ownership>* ownerships,
         const driver::QueueDriver* driver, const Options& options)
      : arena_(*arena), ownerships_(*ownerships), driver_(*driver), options_(options) {}

  // Claims each shard that this worker is heir to and whose owner released it or is dead.
  void Inherit();
  // Finds the shards that were claimed, here or by `baton-driver`, since the last call.
  // `on_claimed` is called for each.
  void Note(const std::function<void(const driver::Ownership& shard)>& on_claimed);

  bool empty() const { return claimed_.empty(); }
  // Returns the shard to be taken next, and those that have to be taken with it. Leaves out shards
  // whose claim is gone. REQUIRES: !empty().
  std::vector<Claimed> Next();

 private:
  bool MayClaim(uint32_t shard, uint64_t word) const;
  bool IsClaimedByUs(uint32_t shard) const {
    return ownerships_[shard].owner_slot() == (arena::kClaim | options_.slot);
  }
  bool IsNoted(uint32_t shard) const;
  void FindConnections();

  const arena::Arena& arena_;
  std::vector<driver::Ownership>& ownerships_;
  const driver::QueueDriver& driver_;
  const Options options_;
  std::vector<Claimed> claimed_;  // in the order in which they are taken
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_NATIVE_CLAIMS_H_
