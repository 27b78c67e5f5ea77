// Takes the place of a dead driver, or of one that has left its shards. layout.md, "When a driver
// dies", has the algorithm and why each step of it can be repeated.
//
// QueueDriver makes one for each adoption. Thread-compatible: the driver's thread.
#ifndef LIB_DRIVER_RECOVERY_H_
#define LIB_DRIVER_RECOVERY_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/arena/arena.h"
#include "lib/driver/driver_parts.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

class Recovery {
 public:
  explicit Recovery(DriverParts& parts)
      : parts_(parts), state_(parts.state), arena_(parts.state.arena) {}

  // See QueueDriver::Adopt. Reads only the connections in `candidates`.
  absl::Status Adopt(absl::Span<const uint32_t> shards, absl::Span<const uint32_t> candidates);

 private:
  uint64_t ProgressOf(uint32_t shard, uint32_t at) const;
  void CountDeath(uint32_t shard);
  void EndRecovery(uint32_t shard);
  template <typename Work>
  void DoAt(uint32_t connection, const Work& work);
  void ReplayLog(uint32_t shard, std::vector<std::pair<uint32_t, verbs::CompletionStatus>>* failed);
  void ReplayEntry(const arena::CompletionEntry& entry);
  std::vector<uint32_t> Load(absl::Span<const uint32_t> shards,
                             absl::Span<const uint32_t> candidates);
  void LoadSpares(uint32_t shard);
  void LoadSlot(uint32_t connection);
  void LoadCounters(uint32_t connection);
  absl::Status SettlePollSlots(uint32_t shard);
  void RepeatLife(uint32_t connection, bool unfinished);
  void RepeatLifeOf(uint32_t connection, bool unfinished);
  void SettleQueues(uint32_t connection);
  void SettleQueuesOf(uint32_t connection);
  void PostDeferred(uint32_t connection);
  void SettleEnding(uint32_t connection);
  void FailArriving(uint32_t connection);
  bool IsUnfinished(uint32_t shard) const;
  void ResumeTransaction(uint32_t shard);

  DriverParts& parts_;
  DriverState& state_;
  arena::Arena* const arena_;
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_RECOVERY_H_
