// The streams that workers hold open to control. Keepers are told of them.
//
// Thread-safe.
#ifndef SUPERVISOR_CONTROL_WORKER_STREAMS_H_
#define SUPERVISOR_CONTROL_WORKER_STREAMS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "proto/baton/v1/worker.pb.h"
#include "supervisor/control/keepers.h"

namespace baton {

// One open stream. Its methods may be called from any thread, and after its end.
class WorkerStream {
 public:
  virtual ~WorkerStream() = default;
  virtual void Notify(v1::AttachResponse notice) = 0;
  virtual void Close(absl::Status reason) = 0;
  // The health that the worker reported last; healthy before its first report.
  virtual v1::WorkerHealth health() const = 0;
};

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

#endif  // SUPERVISOR_CONTROL_WORKER_STREAMS_H_
