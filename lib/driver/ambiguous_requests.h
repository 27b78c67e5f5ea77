// Resolves ambiguous requests: those that a dead driver may have posted, or that a provider has
// refused (layout.md, "When a driver dies"). Asks the device what is queued. For a device that
// cannot say, posts a marker, or a spare receive, whose completion resolves them.
//
// An error says why it cannot be known which requests were posted. ConnectionTeardown then fails
// the connection. DriverParts owns this part. Thread-compatible: the driver's thread.
#ifndef LIB_DRIVER_AMBIGUOUS_REQUESTS_H_
#define LIB_DRIVER_AMBIGUOUS_REQUESTS_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/driver/driver_state.h"

namespace baton::driver {

// Returns the bytes in the request's buffers.
uint64_t LengthOf(const arena::WorkRequest& request);

class AmbiguousRequests {
 public:
  explicit AmbiguousRequests(DriverState& state) : state_(state), arena_(state.arena) {}

  // Resolves the queue's ambiguous requests: asks the device, or posts a marker or spare unless one
  // is outstanding.
  absl::Status Resolve(uint32_t connection, bool receive);
  // Everything posted to the queue so far has completed: other requests were never posted.
  void SettleCompleted(uint32_t connection, bool receive);
  // Settles both queues of an abandoned connection, of which nothing more completes.
  void SettleAbandoned(uint32_t connection);

  const arena::SpareRecord* LastSpare(uint32_t connection) const;  // not completed; or null
  uint32_t CountSpares(uint32_t connection) const;
  void FreeSpare(uint32_t shard, arena::SpareRecord& spare);
  // Frees the connection's spares up to `last` in their order, which have completed or never were
  // posted. `filled_too`: also spares whose message was not delivered.
  void FreeSpares(uint32_t connection, bool filled_too, uint32_t last);

 private:
  absl::Status AskDevice(uint32_t connection, bool receive);
  absl::StatusOr<uint64_t> EndOfQueued(uint32_t connection, bool receive,
                                       std::optional<uint64_t> last) const;
  absl::Status PostMarker(uint32_t connection, bool receive);
  absl::Status PostSpare(uint32_t connection);
  void Settle(uint32_t connection, bool receive, uint64_t end);

  DriverState& state_;
  arena::Arena* const arena_;
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_AMBIGUOUS_REQUESTS_H_
