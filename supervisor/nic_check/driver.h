#ifndef SUPERVISOR_NIC_CHECK_DRIVER_H_
#define SUPERVISOR_NIC_CHECK_DRIVER_H_

#include "lib/verbs/mlx5/completion_queue.h"
#include "lib/verbs/mlx5/library_objects.h"
#include "lib/verbs/mlx5/receive_queue.h"
#include "lib/verbs/mlx5/register_doorbell.h"
#include "lib/verbs/mlx5/send_queue.h"

namespace baton::nic_check {

// Our driver of a queue pair that libmlx5 made, in one process.
class Driver {
 public:
  // `made` outlives it.
  explicit Driver(const verbs::mlx5::LibraryQueuePair& made)
      : bell_(made.send_register(), made.arm_register()),
        sends_(made.sends(), made.number(), made.limits(), &bell_),
        receives_(made.receives()),
        completions_(made.completion_queue(), made.completion_queue_number(), &bell_) {
    completions_.Add(made.completing());
  }

  // Called by a driver that follows another one.
  void TakeOver() {
    completions_.Resume();
    sends_.RingAgain();
  }

  verbs::mlx5::SendQueue& sends() { return sends_; }
  verbs::mlx5::ReceiveQueue& receives() { return receives_; }
  verbs::mlx5::CompletionQueue& completions() { return completions_; }

 private:
  verbs::mlx5::RegisterDoorbell bell_;
  verbs::mlx5::SendQueue sends_;
  verbs::mlx5::ReceiveQueue receives_;
  verbs::mlx5::CompletionQueue completions_;
};

// Rings nothing.
class SilentDoorbell final : public verbs::mlx5::Doorbell {
 public:
  void Ring(uint64_t) override {}
  void Arm(uint64_t) override {}
  void ReceivesPosted(uint32_t, const uint32_t&) override {}
};

}  // namespace baton::nic_check

#endif  // SUPERVISOR_NIC_CHECK_DRIVER_H_
