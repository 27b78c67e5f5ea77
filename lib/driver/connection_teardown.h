// Ends connections: begins to end them, logs their ends when nothing of them is outstanding, and
// frees their slots when their owners have acknowledged that.
//
// DriverParts owns this part. Thread-compatible: the driver's thread.
#ifndef LIB_DRIVER_CONNECTION_TEARDOWN_H_
#define LIB_DRIVER_CONNECTION_TEARDOWN_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "lib/arena/arena.h"
#include "lib/driver/ambiguous_requests.h"
#include "lib/driver/driver_state.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

// Why a connection ends that has no queue pair and should have one.
inline constexpr std::string_view kNoQueuePair =
    "its record says that it has a queue pair, which it has not: another process of the service "
    "has written over it";

inline constexpr std::string_view kCondemnedReason =
    "drivers died at it, one after the other: it is failed so that the others go on";

class ConnectionTeardown {
 public:
  ConnectionTeardown(DriverState& state, AmbiguousRequests& ambiguous)
      : state_(state), arena_(state.arena), ambiguous_(ambiguous) {}

  // Sets the queue pair to the error state, never to RESET: the device flushes what is outstanding,
  // and the last completion ends the connection (P4: until then the device may touch its buffers).
  // Does nothing if the connection is ending already. One whose notice is not handled yet ends when
  // it is established.
  void StartDraining(uint32_t connection, verbs::CompletionStatus status, std::string_view reason);
  // The second half of StartDraining. Idempotent: a driver may have died in this function.
  void EndConnection(uint32_t connection);
  // Logs the end of a draining connection if nothing of it is outstanding.
  void FinishDraining(uint32_t connection);
  // Ends connections of DriverState::ending. Called when a poll found the shard's completion queue
  // empty after their last completion was in it.
  void FinishEnding(uint32_t shard);

  void EndAfterError(uint32_t connection, verbs::CompletionStatus status);
  // Ends the connection if one of its requests failed before it was established. Returns whether it
  // did.
  bool EndIfFailedBefore(uint32_t connection);

  // Resolves ambiguous requests (AmbiguousRequests::Resolve). Fails the connection if it cannot be
  // known which of them were posted.
  void ResolveRequests(uint32_t connection, bool receive);
  void FailUnknown(uint32_t connection, std::string_view why);
  // Ends a connection whose queue pair does not complete even in the error state, and destroys the
  // queue pair where that is possible.
  void Abandon(uint32_t connection, std::string_view why);
  // Ends the shard's abandoned connections, once the device has had its time, and tries again to
  // stop the queue pairs whose device refused it. Called when the completion queue gives nothing
  // more.
  void FinishAbandoned(uint32_t shard);

  // Fails a connection at which drivers died. Nothing that they may have died of is looked at
  // again: its ambiguous requests and completions. Idempotent.
  void Condemn(uint32_t connection);

  // See QueueDriver.
  void EndAll(std::string_view why);
  bool AllEnded() const;
  // Stops operating the shard, and forgets its connections.
  void Leave(uint32_t shard);
  // Abandons the shard's connections that the device does not flush any more.
  void AbandonAll(uint32_t shard, std::string_view why);

  // Called when the owner has acknowledged the connection's end.
  void AcknowledgeEnd(uint32_t connection);
  void FreeSlot(uint32_t connection);

 private:
  bool AwaitsNotice(uint32_t connection) const;
  void OnNotStopped(uint32_t connection, const absl::Status& why);
  bool Drained(uint32_t connection) const;
  void ForgetSlot(uint32_t connection);
  void DropObjects(uint32_t connection);
  void ForgetQueuePair(uint32_t connection);

  DriverState& state_;
  arena::Arena* const arena_;
  AmbiguousRequests& ambiguous_;
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_CONNECTION_TEARDOWN_H_
