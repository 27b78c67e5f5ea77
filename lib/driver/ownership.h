// Who owns a shard: epochs, the cut, and which commit banks may be used again (P3).
//
// An epoch's owner writes the bank epoch % kCommitBanks. Ending an epoch records how many of its
// commit entries count and takes the owner out of the ownership word; what the former owner stores
// later is in a bank that nobody reads. A bank is used again only when its former writer gave the
// shard away by itself or its process is proven dead.
//
// Thread-compatible: one thread, the driver's; of native services one thread of each process.
#ifndef LIB_DRIVER_OWNERSHIP_H_
#define LIB_DRIVER_OWNERSHIP_H_

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"

namespace baton::driver {

class Ownership {
 public:
  Ownership(arena::Arena* arena, uint32_t shard) : arena_(arena), shard_(shard) {}

  uint64_t epoch() const { return arena::OwnershipEpoch(word()); }
  uint32_t owner_slot() const { return arena::OwnershipSlot(word()); }
  uint64_t owner_id() const { return arena::LoadRelaxed(record().owner_worker_id); }
  bool owned() const { return owner_slot() != arena::kNobody; }
  uint64_t heir_id() const { return arena::LoadRelaxed(record().heir_worker_id); }

  // False when every bank may still be written by a former owner whose death is not proven.
  bool CanGrant() const;

  // Begins an epoch. The shard has no owner, and CanGrant.
  void Grant(uint32_t worker_slot, uint64_t worker_id);

  // Ends the owner's epoch: the commits applied so far are the ones that count. `released`: by the
  // owner itself, which writes no more.
  void End(bool released);

  // The worker's process is gone: nothing of it can be stored any more.
  void ProveDead(uint64_t worker_id);

  // ---- Of native services, whose processes move the word themselves: it is compared and swapped.
  // A claim is the right to end the epoch in the word, and to begin the next as its owner.

  uint64_t word() const { return arena::LoadAcquire(record().ownership); }
  // False: the word is not `seen` any more, or was not in between. A keeper that tells the shard's
  // driver something and looks at the word then sees the claim, or the claimant, which looks at
  // what was told after this, sees that.
  bool Claim(uint64_t seen, uint32_t worker_slot);
  // Likewise, for a claimant or an owner that is dead and has no heir.
  bool Vacate(uint64_t seen);
  // Makes the claimant the owner, once all commits that count are applied. Returns the word as it
  // is then. kAborted: the word says, or said in the last moment, that another has claimed the
  // shard. The word is left as it is.
  absl::StatusOr<uint64_t> TakeClaimed(uint32_t worker_slot, uint64_t worker_id);
  // The owner, whose release was applied, gives the shard to nobody, and its heir claims it. `seen`
  // is the word that made it the owner. False: another has claimed the shard since.
  bool HandOver(uint64_t seen);

  void NameHeir(uint64_t worker_id);  // 0: none

  // Asks the owner of that epoch to release. Nothing happens when the epoch has ended; an owner
  // does not look at the number of another's.
  void AskRelease(uint64_t epoch);
  void WithdrawRelease();
  // Whoever watches the records looks again.
  void Announce();
  // Whether the owner of the epoch that is running is asked.
  bool release_asked() const {
    const uint64_t asked = arena::LoadRelaxed(record().release_requested);
    return asked != 0 && asked == epoch();
  }

 private:
  arena::OwnershipRecord& record() const { return arena_->shard(shard_).owner; }
  uint64_t NextEpoch() const;  // 0: none is possible
  uint64_t WordOf(uint64_t epoch, uint32_t slot) const;
  bool Move(uint64_t seen, uint64_t word);
  void PrepareEpoch(uint64_t epoch, uint64_t worker_id);
  void BeginEpoch(uint64_t epoch, uint32_t worker_slot);

  arena::Arena* arena_;
  uint32_t shard_;
  // Workers that may still write a bank; 0: nobody.
  std::array<uint64_t, arena::kCommitBanks> writers_ = {};
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_OWNERSHIP_H_
