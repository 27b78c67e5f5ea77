// Inside the worker library: how shards come to a worker and leave it.
#ifndef WORKER_OWNERSHIP_CHANGES_H_
#define WORKER_OWNERSHIP_CHANGES_H_

#include <cstdint>

#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"
#include "worker/worker.h"
#include "worker/worker_notices.h"
#include "worker/worker_shards.h"

namespace baton {

// Handles what the driver announces in the arena: shards that this worker gets, is to give back or
// has lost, and the request that it stops.
//
// Thread-compatible: the worker's thread.
class OwnershipChanges {
 public:
  // All arguments must outlive this object.
  OwnershipChanges(Service* service, WorkerShards* shards, WorkerNotices* notices)
      : service_(service), shards_(shards), notices_(notices) {}

  // Call it once, after `shards` was opened and before all other functions. `slot`: this worker's.
  void Open(uint32_t slot) {
    arena_ = &shards_->arena();
    slot_ = slot;
  }

  // Returns whether Handle has something to do.
  bool pending() const {
    if (arena::LoadAcquire(arena_->header().ownership_changes) != seen_changes_) return true;
    return postponed_ && IsReleaseDue();
  }
  // Returns how many changes it has handled.
  int Handle();
  // Adopts what a native worker has claimed, before it gives back all of its shards.
  void AdoptTheRest();
  void ReleaseAll();
  // The worker ends, and no driver is there to give the shards back to.
  void LoseAll();

 private:
  void NoteStopRequest();
  bool Adopt(Shard& shard, uint64_t epoch);
  bool IsAskedToRelease(const Shard& shard) const;
  bool IsReleaseDue() const;
  bool ReleaseUnlessAwaited(Shard& shard);
  void Release(Shard& shard);
  void Lose(Shard& shard);

  Service* const service_;
  WorkerShards* const shards_;
  WorkerNotices* const notices_;
  const arena::Arena* arena_ = nullptr;
  uint32_t slot_ = 0;
  uint64_t seen_changes_ = 0;
  bool postponed_ = false;  // a release waits until what moves into its shard is committed
  bool stop_request_noted_ = false;
};

}  // namespace baton

#endif  // WORKER_OWNERSHIP_CHANGES_H_
