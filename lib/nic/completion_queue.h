#ifndef LIB_NIC_COMPLETION_QUEUE_H_
#define LIB_NIC_COMPLETION_QUEUE_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "lib/base/file_descriptor.h"
#include "lib/verbs/mlx5/completion_writer.h"

namespace baton::nic {

// A client's completion queue: what is told there, and the events of who armed it.
class CompletionQueue {
 public:
  // `memory` stays mapped as long as the queue lives. `arm_record` is the second of its records.
  // `channel` (may be null) is a socket that does not block.
  CompletionQueue(const verbs::mlx5::FoundCompletionQueue& memory, const __be32* arm_record,
                  std::shared_ptr<FileDescriptor> channel);

  // False: it is overrun, now or since earlier. Nothing is told any more.
  bool Write(const verbs::mlx5::Executed& executed);

  // Arms with a value of mlx5::ArmValue: an event follows when there is a completion behind those
  // that it calls consumed, perhaps at once. The value of the last event is stale: it is ignored,
  // so that a ring may come late, or twice.
  void Arm(uint32_t value);
  // Likewise, with what the arm record says.
  void ArmByRecord();

 private:
  bool HasCompletionBehind(uint32_t arm) const;
  void MakeEvent();

  verbs::mlx5::CompletionWriter writer_;
  const uint32_t entry_count_;
  const __be32* const arm_record_;
  const std::shared_ptr<FileDescriptor> channel_;
  bool armed_ = false;
  uint32_t arm_ = 0;
  std::optional<uint32_t> stale_;
};

}  // namespace baton::nic

#endif  // LIB_NIC_COMPLETION_QUEUE_H_
