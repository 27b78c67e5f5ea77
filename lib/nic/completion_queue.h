#ifndef LIB_NIC_COMPLETION_QUEUE_H_
#define LIB_NIC_COMPLETION_QUEUE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>

#include "absl/strings/string_view.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/mlx5/completion_writer.h"

namespace baton::nic {

// A client's completion queue, and the events that its client arms it for.
class CompletionQueue final : public verbs::mlx5::CompletionWriter {
 public:
  using OnFailure = std::function<void(absl::string_view why)>;

  // `memory` stays mapped as long as the queue lives. `arm_record` is the second of its records.
  // `channel` (may be null) is a socket that does not block. `on_failure` (may be empty) is called
  // once, with the cause; it must not call the queue, or a queue pair.
  CompletionQueue(const verbs::mlx5::FoundCompletionQueue& memory, const __be32* arm_record,
                  std::shared_ptr<FileDescriptor> channel, OnFailure on_failure = {});

  bool Write(const verbs::mlx5::Executed& executed) override;

  // Arms with a value of mlx5::ArmValue. The NIC makes one event when there is a completion behind
  // those that the value calls consumed, perhaps at once. It ignores the value of the last event,
  // because a ring may come late or twice.
  void Arm(uint32_t value);
  // Fails the queue: every later Write() returns false.
  void Fail(absl::string_view why);
  // Arms with the value of the arm record.
  void ArmByRecord();

  // See NicBehaviour::owner_byte_us.
  void DelayOwnerBytes(uint32_t most_us, uint64_t seed);

 private:
  void BeforeOwnerByte() override;
  bool HasCompletionBehind(uint32_t arm) const;
  void MakeEvent();

  const uint32_t entry_count_;
  const __be32* const arm_record_;
  const std::shared_ptr<FileDescriptor> channel_;
  OnFailure on_failure_;  // empty once it was called
  bool armed_ = false;
  uint32_t arm_ = 0;
  std::optional<uint32_t> stale_;
  uint32_t most_delay_us_ = 0;
  std::minstd_rand random_;
};

}  // namespace baton::nic

#endif  // LIB_NIC_COMPLETION_QUEUE_H_
