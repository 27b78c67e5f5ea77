#ifndef SUPERVISOR_CONTROL_EVENT_STREAMS_H_
#define SUPERVISOR_CONTROL_EVENT_STREAMS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/support/server_callback.h"
#include "proto/baton/v1/operator.pb.h"
#include "supervisor/control/keepers.h"

namespace baton {

class EventStream final : public grpc::ServerWriteReactor<v1::WatchEventsResponse>,
                          public std::enable_shared_from_this<EventStream> {
 public:
  // Whether its caller may still follow it. Null: always.
  using Judge = std::function<absl::Status()>;

  // `open_streams` is counted down at the end of this one.
  EventStream(Keepers* keepers, const v1::WatchEventsRequest& request, Judge judge,
              std::atomic<int>* open_streams);
  ~EventStream() override { --*open_streams_; }

  // Events of `clients`, once what they have logged so far is here.
  void Begin(const std::vector<KeeperClient*>& clients);

  // Ends it if its caller may not follow it any more.
  void JudgeAgain();

  void OnWriteDone(bool ok) override;
  void OnCancel() override { End(absl::CancelledError("cancelled")); }
  void OnDone() override { self_.reset(); }

 private:
  void End(const absl::Status& why);
  void Pump();  // Writes the next event, or finishes, or waits.

  Keepers* const keepers_;
  const EventFilter filter_;
  const bool follow_;
  const Judge judge_;
  std::atomic<int>* const open_streams_;
  std::shared_ptr<EventStream> self_;  // until OnDone
  v1::WatchEventsResponse response_;   // while writing_

  std::mutex mutex_;  // guards what follows; gRPC is called outside of it
  std::shared_ptr<EventFollower> follower_;
  absl::Status end_;        // told after the last event when the stream is not followed
  absl::Status cancelled_;  // why it ends before that; OK: it does not
  bool writing_ = false;
  bool finished_ = false;
};

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
