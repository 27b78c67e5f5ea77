#ifndef LIB_VERBS_MLX5_FIFO_DOORBELL_H_
#define LIB_VERBS_MLX5_FIFO_DOORBELL_H_

#include <cstdint>

#include "lib/verbs/mlx5/doorbell.h"

namespace baton::verbs::mlx5 {

// The driver's side of a doorbell page. It stores a value in an empty place of a queue. If there is
// none, it asks the NIC to look at all records of the register, so no ring is ever lost.
//
// Thread-compatible; one process at a time. A process that follows another one calls TakeOver()
// first, and then rings for all queues of the register, because its predecessor may have been
// killed between a record and its ring.
class FifoDoorbell final : public Doorbell {
 public:
  // `page` and `wake_fd` (the eventfd that the NIC gave for this register) outlive the doorbell.
  FifoDoorbell(DoorbellPage* page, int wake_fd);

  // Forgets what this process knew about the page, because another process may have rung since.
  void TakeOver();

  void Ring(uint64_t bytes) override;
  void Arm(uint64_t bytes) override;
  void ReceivesPosted(uint32_t qp_number, const uint32_t& failed) override;

 private:
  // One of the two queues of the page.
  struct Fifo {
    uint64_t* places;
    uint32_t count;
    uint32_t* tail;
    const uint32_t* head;
    bool settled;  // `tail` is where the next value belongs
  };

  static bool Push(Fifo* fifo, uint64_t bytes);
  static bool Settle(const Fifo& fifo);
  void PushOrOverflow(Fifo* fifo, uint64_t bytes);
  void AskAttention(uint32_t bits);
  void WakeIfAsleep() const;

  DoorbellPage* const page_;
  const int wake_fd_;
  Fifo sends_;
  Fifo arms_;
};

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_FIFO_DOORBELL_H_
