// One doorbell register of the soft NIC: a page of memory that its driver and the NIC share.
// soft_nic.md, "Doorbells", specifies it.
#ifndef LIB_VERBS_MLX5_DOORBELL_PAGE_H_
#define LIB_VERBS_MLX5_DOORBELL_PAGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace baton::verbs::mlx5 {

inline constexpr uint32_t kSendPlaces = 256;
inline constexpr uint32_t kArmPlaces = 128;
inline constexpr uint32_t kLookPlaces = 32;
inline constexpr size_t kDoorbellPageBytes = 4096;

// Bits of DoorbellPage::attention.
inline constexpr uint32_t kOverflow = 1;  // the NIC looks at all records of the register
inline constexpr uint32_t kLook = 2;      // there is something in `looks`

// All of it is in the processor's byte order, except the values of the two queues, which are as in
// mlx5's registers. A place that is 0 is empty.
struct DoorbellPage {
  // The driver writes these: places that it has filled so far, modulo 2^32.
  uint32_t sq_tail = 0;
  uint32_t cq_tail = 0;
  uint8_t reserved_0[56] = {};
  // The NIC writes these: places that it has taken so far.
  uint32_t sq_head = 0;
  uint32_t cq_head = 0;
  uint8_t reserved_1[56] = {};
  uint32_t sleeping = 0;   // the NIC's. Not 0: the driver writes the eventfd after a ring
  uint32_t attention = 0;  // the driver sets bits, and the NIC clears them
  uint8_t reserved_2[120] = {};
  uint64_t sends[kSendPlaces] = {};
  uint64_t arms[kArmPlaces] = {};
  uint32_t looks[kLookPlaces] = {};  // numbers of queue pairs
  uint8_t reserved_3[640] = {};
};
static_assert(sizeof(DoorbellPage) == kDoorbellPageBytes);
static_assert(offsetof(DoorbellPage, sq_tail) == 0x000 && offsetof(DoorbellPage, cq_tail) == 0x004);
static_assert(offsetof(DoorbellPage, sq_head) == 0x040 && offsetof(DoorbellPage, cq_head) == 0x044);
static_assert(offsetof(DoorbellPage, sleeping) == 0x080);
static_assert(offsetof(DoorbellPage, attention) == 0x084);
static_assert(offsetof(DoorbellPage, sends) == 0x100);
static_assert(offsetof(DoorbellPage, arms) == 0x900);
static_assert(offsetof(DoorbellPage, looks) == 0xd00);
static_assert(std::atomic_ref<uint64_t>::is_always_lock_free);

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_DOORBELL_PAGE_H_
