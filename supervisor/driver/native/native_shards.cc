#include "supervisor/driver/native/native_shards.h"

#include <utility>

#include "lib/base/crash_point.h"

namespace baton::driver_process {

NativeShards::NativeShards(arena::Arena* arena, std::function<void(uint32_t slot)> wake)
    : wake_(std::move(wake)) {
  for (uint32_t i = 0; i < arena->shape().shards; ++i) ownerships_.emplace_back(arena, i);
}

// The heir begins to watch the owner, and looks whether it can claim the shard already.
void NativeShards::OnHeir(uint32_t shard, uint32_t slot) {
  ownerships_[shard].Announce();
  if (slot != arena::kNobody) wake_(slot);
}

std::string NativeShards::Give(uint32_t shard, uint32_t slot) {
  driver::Ownership& ownership = ownerships_[shard];
  const uint64_t word = ownership.word();
  BATON_CRASH_POINT("native-before-giving");
  if (arena::OwnershipSlot(word) == arena::kNobody && ownership.Claim(word, slot)) wake_(slot);
  return "";
}

// Shards that nobody has claimed are given to another worker next, so that no ownership word names
// the slot any more.
void NativeShards::OnDead(uint32_t slot) {
  for (driver::Ownership& ownership : ownerships_) {
    const uint64_t word = ownership.word();
    BATON_CRASH_POINT("native-before-vacating");
    if (arena::ClaimantOrOwner(arena::OwnershipSlot(word)) == slot) ownership.Vacate(word);
  }
}

}  // namespace baton::driver_process
