// The ownership of a shard: epochs, the cut, and which commit banks may be used again (P3).
//
// The owner of an epoch writes bank epoch % kCommitBanks. Ending an epoch records how many of its
// commit entries count and removes the owner from the ownership word. Nobody reads what the former
// owner stores in its bank later. A bank is used again only after its former writer gave the shard
// away, or after its process is proven dead. All of this is in the arena, so another Ownership goes
// on where the driver of the first one died.
//
// Thread-compatible: the driver's thread; in native services one thread of each process.
#ifndef LIB_DRIVER_OWNERSHIP_H_
#define LIB_DRIVER_OWNERSHIP_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"
#include "lib/driver/claim_word.h"

namespace baton::driver {

class Ownership {
 public:
  Ownership(arena::Arena* arena, uint32_t shard)
      : arena_(arena),
        shard_(shard),
        word_(&arena->shard(shard).owner.ownership, &arena->header().ownership_changes) {}

  uint32_t shard() const { return shard_; }
  uint64_t epoch() const { return word_.epoch(); }
  uint32_t owner_slot() const { return word_.slot(); }
  uint64_t owner_id() const { return arena::LoadRelaxed(record().owner_worker_id); }
  bool owned() const { return owner_slot() != arena::kNobody; }
  uint64_t heir_id() const { return arena::LoadRelaxed(record().heir_worker_id); }

  // Returns false if former owners whose death is not proven may still write every bank.
  bool CanGive() const;

  // Begins an epoch. REQUIRES: the shard has no owner, and CanGive().
  void GiveTo(uint32_t worker_slot, uint64_t worker_id);

  // Ends the owner's epoch: only the commits applied so far count. `released`: the owner itself
  // ended it, and writes no more. If the driver dies in this call, its successor calls it again.
  void End(bool released);

  // Notes that the worker's process is dead and can store nothing any more.
  void ProveDead(uint64_t worker_id);
  // Returns true if the worker owned the shard, did not give it up, and is not proven dead.
  bool MayWrite(uint64_t worker_id) const;

  // ---- Native services: their processes claim the ownership word themselves.

  uint64_t word() const { return word_.load(); }
  // See ClaimWord.
  bool Claim(uint64_t seen, uint32_t worker_slot) { return word_.Claim(seen, worker_slot); }
  bool Vacate(uint64_t seen) { return word_.Vacate(seen); }
  // Makes the claimant the owner. REQUIRES: all commits that count are applied. Returns the new
  // word. kAborted: another worker has claimed the shard; the word is unchanged.
  absl::StatusOr<uint64_t> TakeClaimed(uint32_t worker_slot, uint64_t worker_id);
  // Called by an owner whose release was applied: leaves the shard without owner, for its heir to
  // claim. `seen` is the word that made it the owner. Returns false if another worker has claimed
  // the shard since.
  bool HandOver(uint64_t seen);

  void NameHeir(uint64_t worker_id);  // 0: none

  // Asks the owner of that epoch to release. No effect if the epoch has ended: an owner ignores the
  // number of another epoch.
  void AskRelease(uint64_t epoch);
  void WithdrawRelease();
  // Makes all watchers of the ownership records read them again.
  void Announce() { word_.Announce(); }
  // Returns whether the present owner was asked to release.
  bool release_asked() const {
    const uint64_t asked = arena::LoadRelaxed(record().release_requested);
    return asked != 0 && asked == epoch();
  }

 private:
  arena::OwnershipRecord& record() const { return arena_->shard(shard_).owner; }
  // The worker that may still write the epoch's bank; 0: none.
  uint64_t& writer(uint64_t epoch) const {
    return arena_->succession(shard_).writers[epoch % arena::kCommitBanks];
  }
  uint64_t NextEpoch() const;  // 0: no bank is free
  void PrepareEpoch(uint64_t epoch, uint64_t worker_id);

  arena::Arena* arena_;
  uint32_t shard_;
  ClaimWord word_;
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_OWNERSHIP_H_
