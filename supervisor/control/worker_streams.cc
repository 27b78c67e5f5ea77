#include "supervisor/control/worker_streams.h"

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr uint64_t kAnnounceNs = 10'000'000'000;

}  // namespace

void WorkerStreams::Add(const std::string& service, uint64_t worker_id,
                        const std::shared_ptr<WorkerStream>& stream) {
  std::shared_ptr<WorkerStream> former;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    former = std::exchange(streams_[{service, worker_id}], stream);
    Announce({service, worker_id}, /*open=*/true, stream);
  }
  if (former) former->Close(absl::AbortedError("the worker has opened another stream"));
}

void WorkerStreams::Remove(const std::string& service, uint64_t worker_id,
                           const WorkerStream* stream) {
  std::shared_ptr<WorkerStream> removed;  // destroyed after the lock is released
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = streams_.find({service, worker_id});
  if (found == streams_.end() || found->second.get() != stream) return;
  removed = std::move(found->second);
  streams_.erase(found);
  Announce({service, worker_id}, /*open=*/false, {});
}

void WorkerStreams::Reannounce(const std::string& service) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [key, stream] : streams_) {
    if (key.first == service) Announce(key, /*open=*/true, stream);
  }
}

bool WorkerStreams::Notify(const std::string& service, uint64_t worker_id,
                           v1::AttachResponse notice) {
  const std::shared_ptr<WorkerStream> stream = Find({service, worker_id});
  if (stream) stream->Notify(std::move(notice));
  return stream != nullptr;
}

std::optional<v1::WorkerHealth> WorkerStreams::Health(const std::string& service,
                                                      uint64_t worker_id) {
  const std::shared_ptr<WorkerStream> stream = Find({service, worker_id});
  if (!stream) return std::nullopt;
  return stream->health();
}

std::shared_ptr<WorkerStream> WorkerStreams::Find(const Key& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = streams_.find(key);
  return found == streams_.end() ? nullptr : found->second;
}

void WorkerStreams::Announce(const Key& key, bool open, std::weak_ptr<WorkerStream> stream) {
  const absl::StatusOr<KeeperClient*> keeper = keepers_->Find(key.first);
  if (!keeper.ok()) return;
  internal::ManagementRequest request;
  request.mutable_control_stream()->set_worker_id(key.second);
  request.mutable_control_stream()->set_open(open);
  (*keeper)->Call(std::move(request), kAnnounceNs, [stream, key](const auto& reply) {
    if (!absl::IsNotFound(reply.status())) return;
    if (const auto alive = stream.lock()) {
      alive->Close(absl::AbortedError(absl::StrCat("the keeper of service \"", key.first,
                                                   "\" no longer knows worker ", key.second,
                                                   ": attach again")));
    }
  });
}

}  // namespace baton
