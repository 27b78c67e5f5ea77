// Posts the receives that the connections of a shard share, and logs their completions (layout.md,
// "Shared receives"). A shard whose shared receive queue has refused a receive is broken: its
// connections end, and no others join it.
//
// DriverParts owns this part. Thread-compatible: the driver's thread.
#ifndef LIB_DRIVER_SHARED_RECEIVES_H_
#define LIB_DRIVER_SHARED_RECEIVES_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/arena/arena.h"
#include "lib/driver/connection_teardown.h"
#include "lib/driver/driver_state.h"
#include "lib/driver/request_list.h"
#include "lib/driver/transaction.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

// Returns the error for a connection that would join a broken shard.
absl::Status BrokenQueue();

class SharedReceives {
 public:
  SharedReceives(DriverState& state, ConnectionTeardown& teardown);

  // Posts the receives of a kSharedReceives part of `transaction`.
  void Post(uint32_t shard, const Transaction& transaction, const TransactionPart& part);
  // Logs a completion, unless a driver that died has logged it already. Shared receives complete in
  // any order. Each slot records whether its completion was logged.
  void Log(uint32_t shard, const verbs::Completion& completion);
  // Frees the slot of an acknowledged completion. If the completion was void, posts the receive
  // again with its buffer, because the application still regards it as posted.
  void Return(uint32_t shard, const arena::CompletionEntry& entry);
  // Breaks the shard: ends its connections for this reason.
  void Refuse(uint32_t shard, std::string_view why);
  // See QueueDriver.
  bool AllBroken() const;

  // ---- Recovery.

  // Notes that the completion is in the log, if its slot still waits for it.
  void NoteLogged(uint32_t shard, uint64_t wr_id);
  // Resolves ambiguous receives if the device can say which are queued.
  void Settle(uint32_t shard);
  // Counts the shard's receives.
  void Load(uint32_t shard);
  // Ends the connections of a broken shard.
  void RefuseBroken(uint32_t shard);

 private:
  absl::Status PostOne(uint32_t shard, uint32_t slot, absl::Span<const verbs::ScatterGather> sges);
  void ArmLimit(uint32_t shard);
  void SetSlotState(uint32_t shard, uint32_t slot, arena::SharedReceiveState state);
  void NoteCompleted(uint32_t shard, uint32_t slot, arena::SharedReceiveState next);
  bool IsOutstanding(uint32_t shard, uint64_t wr_id) const;
  bool WasTaken(uint32_t shard, uint64_t wr_id) const;

  DriverState& state_;
  arena::Arena* const arena_;
  ConnectionTeardown& teardown_;
  RequestList one_request_;  // scratch
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_SHARED_RECEIVES_H_
