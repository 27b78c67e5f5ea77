// Posts committed requests through the device's interface (verbs::QueuePair), now or as soon as
// they can be posted. A receive whose place a spare has taken gets the spare's message instead.
// CommitApplier posts what was written to a device's queues directly.
//
// DriverParts owns this part. Thread-compatible: the driver's thread.
#ifndef LIB_DRIVER_REQUEST_POSTER_H_
#define LIB_DRIVER_REQUEST_POSTER_H_

#include <cstdint>

#include "absl/types/span.h"
#include "lib/arena/arena.h"
#include "lib/driver/ambiguous_requests.h"
#include "lib/driver/connection_teardown.h"
#include "lib/driver/driver_state.h"
#include "lib/driver/request_list.h"

namespace baton::driver {

class RequestPoster {
 public:
  RequestPoster(DriverState& state, AmbiguousRequests& ambiguous, ConnectionTeardown& teardown);

  // Commits and posts the requests from `committed` on. `Request`: verbs::ReceiveRequest or
  // verbs::SendRequest.
  template <typename Request>
  void PostCommitted(uint32_t connection, absl::Span<const Request> requests);
  // Posts requests that were committed before they could be posted.
  void PostDeferred(uint32_t connection, bool receive);
  void PostAllDeferred(uint32_t connection);
  // Messages that came into spares become the completions of the receives that the spares stand
  // for, as soon as those receives are committed.
  void DeliverSpares(uint32_t connection);

 private:
  bool MarkCommitted(uint32_t connection, bool receive, uint64_t count);
  // Posts the requests from `posted` on.
  template <typename Request>
  void PostRequests(uint32_t connection, absl::Span<const Request> requests);
  void DeliverSpare(uint32_t connection, uint32_t spare);

  DriverState& state_;
  arena::Arena* const arena_;
  AmbiguousRequests& ambiguous_;
  ConnectionTeardown& teardown_;
  RequestList one_request_;  // scratch
};

}  // namespace baton::driver

#endif  // LIB_DRIVER_REQUEST_POSTER_H_
