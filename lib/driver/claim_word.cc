#include "lib/driver/claim_word.h"

#include <atomic>

namespace baton::driver {

bool ClaimWord::Swap(uint64_t seen, uint64_t word) {
  const bool swapped = std::atomic_ref<uint64_t>(*word_).compare_exchange_strong(seen, word);
  if (swapped) Announce();
  return swapped;
}

bool ClaimWord::Claim(uint64_t seen, uint32_t slot) {
  const bool claimed =
      Swap(seen, arena::PackOwnership(arena::OwnershipEpoch(seen), arena::kClaim | slot,
                                      arena::OwnershipSequence(seen) + 1));
  // Mailbox::PutWaiting has the other half.
  if (claimed) arena::FullFence();
  return claimed;
}

bool ClaimWord::Vacate(uint64_t seen) {
  return Swap(seen, arena::PackOwnership(arena::OwnershipEpoch(seen), arena::kNobody,
                                         arena::OwnershipSequence(seen)));
}

std::optional<uint64_t> ClaimWord::Take(uint64_t claimed) {
  const uint64_t taken = arena::PackOwnership(arena::OwnershipEpoch(claimed) + 1,
                                              arena::ClaimantOrOwner(arena::OwnershipSlot(claimed)),
                                              arena::OwnershipSequence(claimed));
  return Swap(claimed, taken) ? std::optional(taken) : std::nullopt;
}

void ClaimWord::Store(uint64_t epoch, uint32_t slot) {
  const uint32_t sequence = arena::OwnershipSequence(load());
  arena::StoreRelease(*word_, arena::PackOwnership(epoch, slot, sequence));
  Announce();
}

void ClaimWord::Announce() {
  std::atomic_ref<uint64_t>(*changes_).fetch_add(1, std::memory_order_release);
}

}  // namespace baton::driver
