#include "lib/verbs/mlx5/seen_slots.h"

#include <algorithm>
#include <cstring>

namespace baton::verbs::mlx5 {

void SeenSlots::See(const uint8_t* slots, uint32_t slot_count, uint16_t next, uint16_t queued) {
  const uint16_t ahead = static_cast<uint16_t>(queued - next);
  uint16_t kept = static_cast<uint16_t>(end_ - next);
  if (kept > kMost) {  // all of it was executed
    kept = 0;
    end_ = next;
  }
  begin_ = next;
  if (ahead == 0 || ahead > slot_count) return;
  if (kept_.empty()) kept_.resize(kMost);
  for (; kept < std::min(ahead, kMost); ++kept, ++end_) {
    std::memcpy(kept_[end_ % kMost].data(), slots + size_t{end_ & (slot_count - 1)} * kSlotBytes,
                kSlotBytes);
  }
}

bool SeenSlots::IsUnchanged(uint16_t counter, const uint8_t* now) const {
  const uint16_t at = static_cast<uint16_t>(counter - begin_);
  if (at >= static_cast<uint16_t>(end_ - begin_)) return true;
  return std::memcmp(kept_[counter % kMost].data(), now, kSlotBytes) == 0;
}

}  // namespace baton::verbs::mlx5
