// A word in the arena that says whose something is, and in which epoch (arena::PackOwnership).
// Several processes compare and swap it. A claim is the right to end the epoch in the word and to
// begin the next as its owner.
//
// Thread-compatible: one thread of each process.
#ifndef LIB_DRIVER_CLAIM_WORD_H_
#define LIB_DRIVER_CLAIM_WORD_H_

#include <cstdint>
#include <optional>

#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"

namespace baton::driver {

class ClaimWord {
 public:
  // `changes` counts the changes of all such words of the arena. Both outlive this object.
  ClaimWord(uint64_t* word, uint64_t* changes) : word_(word), changes_(changes) {}

  uint64_t load() const { return arena::LoadAcquire(*word_); }
  uint64_t epoch() const { return arena::OwnershipEpoch(load()); }
  uint32_t slot() const { return arena::OwnershipSlot(load()); }

  // Claims for the process of `slot`. Returns false if the word has changed since `seen`. Ends with
  // a full fence: `baton-driver` puts a notice and then reads the word, and a claimant claims and
  // then reads the notices, so that at least one of the two sees the other.
  bool Claim(uint64_t seen, uint32_t slot);
  // Takes what is owned or claimed by a dead process that has no heir, or given up by its owner:
  // nobody has it then. Returns false as Claim() does.
  bool Vacate(uint64_t seen);
  // Makes the claimant the owner, in the next epoch. Returns the new word, or nothing if the word
  // has changed since `claimed`.
  std::optional<uint64_t> Take(uint64_t claimed);
  // Stores the word. A process that sees it sees everything stored before. REQUIRES: no other
  // process changes it.
  void Store(uint64_t epoch, uint32_t slot);

  // Makes all who watch words of the arena read them again.
  void Announce();

 private:
  bool Swap(uint64_t seen, uint64_t word);

  uint64_t* word_;
  uint64_t* changes_;
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_CLAIM_WORD_H_
