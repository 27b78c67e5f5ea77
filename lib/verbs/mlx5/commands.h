#ifndef LIB_VERBS_MLX5_COMMANDS_H_
#define LIB_VERBS_MLX5_COMMANDS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::mlx5 {

// Commands to the device about a queue pair or a shared receive queue that do not go through its
// queues. Hardware takes system calls, the soft NIC takes messages.
class Commands {
 public:
  virtual ~Commands() = default;
  // `state` is kReset, kInit or kError.
  virtual absl::Status Modify(uint32_t qp_number, QueuePairState state) = 0;
  virtual absl::StatusOr<QueuePairState> Query(uint32_t qp_number) = 0;
  // Does nothing in a forked process, because the queue pair belongs to the opener.
  virtual void DestroyQueuePair(uint32_t qp_number) = 0;
  // Does what verbs::SharedReceiveQueue::ArmLimit does. kUnimplemented: the device makes no such
  // events.
  virtual absl::Status ArmLimit([[maybe_unused]] uint32_t srq_number,
                                [[maybe_unused]] uint32_t limit) {
    return absl::UnimplementedError("this device arms no limit of a shared receive queue");
  }
};

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_COMMANDS_H_
