#ifndef LIB_VERBS_MLX5_SEEN_SLOTS_H_
#define LIB_VERBS_MLX5_SEEN_SLOTS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>

#include "lib/verbs/mlx5/format.h"

namespace baton::verbs::mlx5 {

// Copies of the slots of a client's send queue that its device has found queued and not executed
// yet. The client may no longer change these slots, because hardware may have fetched them.
//
// Keeps at most kMost slots of a queue. A queue whose requests are always executed as soon as they
// are rung takes no memory. Thread-compatible.
class SeenSlots {
 public:
  static constexpr uint16_t kMost = 16;

  // Keeps the slots of [next, queued) that it has not kept yet, and forgets those before `next`,
  // which were executed. `slot_count`, the number of slots at `slots`, is a power of two.
  void See(const uint8_t* slots, uint32_t slot_count, uint16_t next, uint16_t queued);

  // Returns false if the slot of `counter` was seen with other bytes than the kSlotBytes at `now`.
  bool IsUnchanged(uint16_t counter, const uint8_t* now) const;

 private:
  struct Kept {
    std::array<uint8_t, kSlotBytes> slots[kMost];
    uint16_t begin;  // counters of what is kept
    uint16_t end;
  };
  std::unique_ptr<Kept> kept_;
};

inline void SeenSlots::See(const uint8_t* slots, uint32_t slot_count, uint16_t next,
                           uint16_t queued) {
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

inline bool SeenSlots::IsUnchanged(uint16_t counter, const uint8_t* now) const {
  if (kept_ == nullptr) return true;
  const uint16_t at = static_cast<uint16_t>(counter - kept_->begin);
  if (at >= static_cast<uint16_t>(kept_->end - kept_->begin)) return true;
  return std::memcmp(kept_->slots[counter % kMost].data(), now, kSlotBytes) == 0;
}

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_SEEN_SLOTS_H_
