// The doorbell register of a real device.
#ifndef LIB_VERBS_MLX5_REGISTER_DOORBELL_H_
#define LIB_VERBS_MLX5_REGISTER_DOORBELL_H_

#include <atomic>
#include <cstdint>

#include "lib/verbs/mlx5/doorbell.h"

namespace baton::verbs::mlx5 {

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

// Thread-compatible; one process at a time, and no queue pair of another driver may have the
// register.
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

#endif  // LIB_VERBS_MLX5_REGISTER_DOORBELL_H_
