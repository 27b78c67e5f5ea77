#include "lib/verbs/mlx5/seen_slots.h"

#include <algorithm>
#include <cstring>

namespace baton::verbs::mlx5 {

void SeenSlots::See(const uint8_t* slots, uint32_t slot_count, uint16_t next, uint16_t queued) {
  const uint16_t ahead = static_cast<uint16_t>(queued - next);
  if (kept_ == nullptr) {
    if (ahead == 0 || ahead > slot_count) return;
    kept_ = std::make_unique<Kept>();
    kept_->begin = kept_->end = next;
  }
  uint16_t count = static_cast<uint16_t>(kept_->end - next);
  if (count > kMost) {  // all of it was executed
    count = 0;
    kept_->end = next;
  }
  kept_->begin = next;
  if (ahead > slot_count) return;
  for (; count < std::min(ahead, kMost); ++count, ++kept_->end) {
    const uint8_t* const slot = slots + size_t{kept_->end & (slot_count - 1)} * kSlotBytes;
    std::memcpy(kept_->slots[kept_->end % kMost].data(), slot, kSlotBytes);
  }
}

bool SeenSlots::IsUnchanged(uint16_t counter, const uint8_t* now) const {
  if (kept_ == nullptr) return true;
  const uint16_t at = static_cast<uint16_t>(counter - kept_->begin);
  if (at >= static_cast<uint16_t>(kept_->end - kept_->begin)) return true;
  return std::memcmp(kept_->slots[counter % kMost].data(), now, kSlotBytes) == 0;
}

}  // namespace baton::verbs::mlx5
