#ifndef SUPERVISOR_CONTROL_EVENT_STREAMS_H_
#define SUPERVISOR_CONTROL_EVENT_STREAMS_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "grpcpp/support/server_callback.h"
#include "proto/baton/v1/operator.pb.h"
#include "supervisor/control/event_stream.h"
#include "supervisor/control/keepers.h"

namespace baton {

// The WatchEvents calls of a service, of which so many may be open. Thread-safe; outlives them.
class EventStreams {
 public:
  using Reactor = grpc::ServerWriteReactor<v1::WatchEventsResponse>;

  // `keepers` outlives it.
  explicit EventStreams(Keepers* keepers) : keepers_(keepers) {}

  // Owns itself, as gRPC wants it; one that is refused says only why.
  Reactor* Open(const v1::WatchEventsRequest& request, EventStream::Judge judge);

  // Ends those whose callers may not follow them any more.
  void JudgeAgain();

 private:
  Keepers* const keepers_;
  std::atomic<int> open_{0};
  std::mutex mutex_;
  std::vector<std::weak_ptr<EventStream>> judged_;  // guarded by mutex_; those with a judge
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_EVENT_STREAMS_H_
