// This file has the doorbell registers of mlx5's queues: the soft NIC's, which is a page of memory,
// and a real device's.
#ifndef LIB_VERBS_MLX5_DOORBELL_H_
#define LIB_VERBS_MLX5_DOORBELL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace baton::verbs::mlx5 {

// A doorbell register. One process rings it at a time: the driver of the shard that it belongs to.
//
// The device sees all stores that the caller made before a ring. It sees no later store before it
// can see the ring. Values are in the byte order of the register.
class Doorbell {
 public:
  virtual ~Doorbell() = default;
  // Rings for a send queue. The caller has stored the record.
  virtual void Ring(uint64_t bytes) = 0;
  // Rings for a completion queue. The caller has stored the arm record.
  virtual void Arm(uint64_t bytes) = 0;
  // The driver calls it when it has stored the record of a receive queue. `failed` is the queue
  // pair's word of that name (QueuePairLayout). Hardware finds receives without being told. The
  // soft NIC has to be told of those that are posted in the error state.
  virtual void ReceivesPosted(uint32_t qp_number, const uint32_t& failed) = 0;
};

inline constexpr uint32_t kSendPlaces = 256;
inline constexpr uint32_t kArmPlaces = 128;
inline constexpr uint32_t kLookPlaces = 32;
inline constexpr size_t kDoorbellPageBytes = 4096;

// Bits of DoorbellPage::attention.
inline constexpr uint32_t kOverflow = 1;  // the NIC looks at all records of the register
inline constexpr uint32_t kLook = 2;      // there is something in `looks`

// One doorbell register of the soft NIC: a page of memory that its driver and the NIC share.
// soft_nic.md, "Doorbells", specifies it. All of it is in the processor's byte order, except the
// values of the two queues, which are as in mlx5's registers. A place that is 0 is empty.
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

// Makes all stores so far, to any kind of memory, visible to the device before any later one. A C++
// fence does not order stores to write-combining memory (rdma-core's util/udma_barrier.h).
inline void FlushStores() {
#if defined(__x86_64__)
  asm volatile("sfence" ::: "memory");
#else
#error \
    "nobody has looked at this driver's barriers on other processors, where records need some, too"
#endif
}

// The doorbell register of a real device. Thread-compatible; one process at a time, and no queue
// pair of another driver may have the register.
class RegisterDoorbell final : public Doorbell {
 public:
  // `sends`: mlx5dv_qp::bf.reg of a thread domain. `completions`: the place of completion queues'
  // doorbells in the page at mlx5dv_cq::cq_uar. Both outlive the doorbell.
  RegisterDoorbell(void* sends, void* completions)
      : sends_(static_cast<uint64_t*>(sends)), completions_(static_cast<uint64_t*>(completions)) {}

  void Ring(uint64_t bytes) override { Store(sends_, bytes); }
  void Arm(uint64_t bytes) override { Store(completions_, bytes); }
  void ReceivesPosted(uint32_t, const uint32_t&) override {}  // the device looks at their record

 private:
  // The second flush keeps an older value from arriving behind a newer one.
  static void Store(uint64_t* place, uint64_t bytes) {
    FlushStores();
    std::atomic_ref(place[0]).store(bytes, std::memory_order_relaxed);
    FlushStores();
  }

  uint64_t* const sends_;
  uint64_t* const completions_;
};

// The offset of the completion queues' doorbell in a page of registers (rdma-core's
// MLX5_CQ_DOORBELL).
inline constexpr uint32_t kArmOffset = 0x20;

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_DOORBELL_H_
