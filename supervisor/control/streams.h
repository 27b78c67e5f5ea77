#ifndef SUPERVISOR_CONTROL_STREAMS_H_
#define SUPERVISOR_CONTROL_STREAMS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/support/server_callback.h"
#include "proto/baton/v1/operator.pb.h"
#include "proto/baton/v1/worker.pb.h"
#include "supervisor/control/keepers.h"

namespace baton {

class EventStream final : public grpc::ServerWriteReactor<v1::WatchEventsResponse>,
                          public std::enable_shared_from_this<EventStream> {
 public:
  // Returns OK if the caller may still follow the stream. Null: it always may.
  using Judge = std::function<absl::Status()>;

  // `open_streams` is decremented at the end of the stream.
  EventStream(Keepers* keepers, const v1::WatchEventsRequest& request, Judge judge,
              std::atomic<int>* open_streams);
  ~EventStream() override { --*open_streams_; }

  // Begins with the events of `clients`, once those that they have logged so far are here.
  void Begin(const std::vector<KeeperClient*>& clients);

  // Ends the stream if its caller may not follow it any more.
  void JudgeAgain();

  void OnWriteDone(bool ok) override;
  void OnCancel() override { End(absl::CancelledError("cancelled")); }
  void OnDone() override { self_.reset(); }

 private:
  void End(const absl::Status& why);
  void Pump();  // Writes the next event, finishes, or waits.

  Keepers* const keepers_;
  const EventFilter filter_;
  const bool follow_;
  const Judge judge_;
  std::atomic<int>* const open_streams_;
  std::shared_ptr<EventStream> self_;  // until OnDone
  v1::WatchEventsResponse response_;   // while writing_

  std::mutex mutex_;  // guards what follows; gRPC is called outside of it
  std::shared_ptr<EventFollower> follower_;
  absl::Status end_;        // sent after the last event if the stream does not follow
  absl::Status cancelled_;  // why it ends earlier; OK: it does not
  bool writing_ = false;
  bool finished_ = false;
};

// The WatchEvents calls of a service, and their limit. Thread-safe. Must outlive the calls.
class EventStreams {
 public:
  using Reactor = grpc::ServerWriteReactor<v1::WatchEventsResponse>;

  // `keepers` must outlive it.
  explicit EventStreams(Keepers* keepers) : keepers_(keepers) {}

  // Returns a stream that deletes itself, as gRPC requires. If it is refused, the stream only
  // reports the reason.
  Reactor* Open(const v1::WatchEventsRequest& request, EventStream::Judge judge);

  // Ends the streams whose callers may not follow them any more.
  void JudgeAgain();

 private:
  Keepers* const keepers_;
  std::atomic<int> open_{0};
  std::mutex mutex_;
  std::vector<std::weak_ptr<EventStream>> judged_;  // guarded by mutex_; streams with a judge
};

// One open stream. Its methods may be called from any thread, and after its end.
class WorkerStream {
 public:
  virtual ~WorkerStream() = default;
  virtual void Notify(v1::AttachResponse notice) = 0;
  virtual void Close(absl::Status reason) = 0;
  // The health that the worker reported last; healthy before its first report.
  virtual v1::WorkerHealth health() const = 0;
};

// The streams that workers hold open to control. Keepers are told of them.
//
// Thread-safe.
class WorkerStreams {
 public:
  explicit WorkerStreams(Keepers* keepers) : keepers_(keepers) {}

  // Adds a stream, and closes a former one of the same worker.
  void Add(const std::string& service, uint64_t worker_id,
           const std::shared_ptr<WorkerStream>& stream);
  void Remove(const std::string& service, uint64_t worker_id, const WorkerStream* stream);
  // Tells a keeper that was reached again which of its workers have a stream.
  void Reannounce(const std::string& service);

  // Sends a notice, as best effort. Returns whether the worker has a stream.
  bool Notify(const std::string& service, uint64_t worker_id, v1::AttachResponse notice);

  // Returns the health that a worker reported last; nothing if the worker has no stream.
  std::optional<v1::WorkerHealth> Health(const std::string& service, uint64_t worker_id);

 private:
  using Key = std::pair<std::string, uint64_t>;

  std::shared_ptr<WorkerStream> Find(const Key& key);
  void Announce(const Key& key, bool open, std::weak_ptr<WorkerStream> stream);

  Keepers* const keepers_;
  std::mutex mutex_;  // held while announcing, so that announcements reach a keeper in order
  std::map<Key, std::shared_ptr<WorkerStream>> streams_;
};

}  // namespace baton

#endif  // SUPERVISOR_CONTROL_STREAMS_H_
