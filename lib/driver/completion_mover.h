// Moves completions from a shard's completion queue to its completion log. Completions of markers
// and spares are not logged: they resolve ambiguous requests. An error ends its connection, and the
// last completion of an ending connection logs its end.
//
// DriverParts owns this part. Thread-compatible: the driver's thread.
#ifndef LIB_DRIVER_COMPLETION_MOVER_H_
#define LIB_DRIVER_COMPLETION_MOVER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/arena/arena.h"
#include "lib/driver/ambiguous_requests.h"
#include "lib/driver/connection_teardown.h"
#include "lib/driver/driver_state.h"
#include "lib/driver/request_poster.h"
#include "lib/driver/shared_receives.h"
#include "lib/verbs/verbs.h"

namespace baton::driver {

// LogRequest and FillEntry need only the state, and other parts call them, too.

// Logs the completion of the oldest request that has none. REQUIRES: it has that request's wr_id.
void LogRequest(DriverState& state, uint32_t shard, uint32_t connection, bool receive,
                const verbs::Completion& completion);
// Writes the fields from `kind` to `vendor_error` with one store.
void FillEntry(arena::CompletionKind kind, const verbs::Completion& completion,
               arena::CompletionEntry* entry);

class CompletionMover {
 public:
  CompletionMover(DriverState& state, AmbiguousRequests& ambiguous, ConnectionTeardown& teardown,
                  RequestPoster& poster, SharedReceives& shared);

  // See QueueDriver.
  absl::StatusOr<bool> PollCompletions(uint32_t shard);
  // Polls until the queue was found empty. REQUIRES: nothing is posted meanwhile, so this ends.
  absl::Status DrainCompletions(uint32_t shard);
  // Logs or acts on one completion.
  void LogCompletion(uint32_t shard, const verbs::Completion& completion);

 private:
  struct RequestLogs {
    const arena::WorkRequest* sends;
    const arena::WorkRequest* receives;
  };
  class BatchLogger;

  absl::StatusOr<int> TakeBatch(uint32_t shard);
  absl::StatusOr<int> TakeBatchBySlots(uint32_t shard);
  void LogUnexpected(uint32_t shard, uint32_t connection, const verbs::Completion& completion);
  void LogMarker(uint32_t connection, bool receive, const verbs::Completion& completion);
  void OnSpare(uint32_t connection, uint32_t spare, const verbs::Completion& completion);

  DriverState& state_;
  arena::Arena* const arena_;
  AmbiguousRequests& ambiguous_;
  ConnectionTeardown& teardown_;
  RequestPoster& poster_;
  SharedReceives& shared_;
  // Read for each message: copies of the state's, and addresses in the arena.
  const uint32_t connection_slots_;
  arena::ConnectionRecord* const records_;
  std::vector<RequestLogs> request_logs_;  // by connection
  const uint64_t send_log_mask_, receive_log_mask_;
  std::vector<verbs::Completion> completions_;  // scratch
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_COMPLETION_MOVER_H_
