#ifndef LIB_VERBS_MLX5_SEEN_SLOTS_H_
#define LIB_VERBS_MLX5_SEEN_SLOTS_H_

#include <array>
#include <cstdint>
#include <memory>

#include "lib/verbs/mlx5/format.h"

namespace baton::verbs::mlx5 {

// The slots of a client's send queue that its device has found queued and not executed yet, as they
// were then. A client may not change them any more: hardware may have fetched them.
//
// At most kMost are kept of a queue. One whose requests are all executed when they are rung has no
// memory for them.
// Thread-compatible.
class SeenSlots {
 public:
  static constexpr uint16_t kMost = 16;

  // Keeps slots of [next, queued) that it has not kept yet. `slots` has `slot_count` of them, a
  // power of two. What was executed is forgotten.
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

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_SEEN_SLOTS_H_
