#include "supervisor/control/streams.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "supervisor/control/grpc_status.h"

namespace baton {

EventStream::EventStream(Keepers* keepers, const v1::WatchEventsRequest& request, Judge judge,
                         std::atomic<int>* open_streams)
    : keepers_(keepers),
      filter_{request.service(), request.changes()},
      follow_(request.follow()),
      judge_(std::move(judge)),
      open_streams_(open_streams) {}

void EventStream::Begin(const std::vector<KeeperClient*>& clients) {
  self_ = shared_from_this();
  keepers_->SyncEvents(clients, [self = shared_from_this()](absl::Status status) {
    std::weak_ptr<EventStream> weak = self;
    auto follower = self->keepers_->events().Follow(self->filter_, [weak] {
      if (const auto stream = weak.lock()) stream->Pump();
    });
    {
      std::lock_guard<std::mutex> lock(self->mutex_);
      self->follower_ = std::move(follower);
      self->end_ = std::move(status);
    }
    self->Pump();
  });
}

void EventStream::OnWriteDone(bool ok) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    if (!ok) cancelled_.Update(absl::CancelledError("cancelled"));
  }
  Pump();
}

void EventStream::End(const absl::Status& why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_.Update(why);
  }
  Pump();
}

void EventStream::JudgeAgain() {
  const absl::Status judged = judge_ ? judge_() : absl::OkStatus();
  if (!judged.ok()) End(judged);
}

void EventStream::Pump() {
  absl::Status end;
  bool write = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // Finish has to wait for the write under way, and for the keepers' answers in Begin.
    if (writing_ || finished_ || !follower_) return;
    SharedEvent event = cancelled_.ok() ? follower_->Pop() : nullptr;
    if (event) {
      writing_ = write = true;
      *response_.mutable_event() = *event;
    } else {
      end = cancelled_;
      if (end.ok() && follower_->overflowed()) {
        end = absl::ResourceExhaustedError(
            "events came faster than this stream took them, some are left out: start it again");
      }
      if (end.ok() && follow_) return;
      if (end.ok()) end = end_;
      finished_ = true;
      follower_.reset();
    }
  }
  if (write) {
    StartWrite(&response_);
  } else {
    Finish(ToGrpc(end));
  }
}

namespace {

constexpr int kMaxEventStreams = 64;

// A stream that only reports how it ends.
class RefusedEventStream final : public EventStreams::Reactor {
 public:
  explicit RefusedEventStream(const absl::Status& status) { Finish(ToGrpc(status)); }
  void OnDone() override { delete this; }
};

constexpr uint64_t kAnnounceNs = 10'000'000'000;

}  // namespace

EventStreams::Reactor* EventStreams::Open(const v1::WatchEventsRequest& request,
                                          EventStream::Judge judge) {
  std::vector<KeeperClient*> clients;
  if (request.service().empty()) {
    clients = keepers_->All();
  } else {
    const auto client = keepers_->Find(request.service());
    if (!client.ok()) return new RefusedEventStream(client.status());
    clients.push_back(*client);
  }
  if (request.changes()) clients.clear();  // no keeper has them
  if (++open_ > kMaxEventStreams) {
    --open_;
    return new RefusedEventStream(absl::ResourceExhaustedError(
        absl::StrCat(kMaxEventStreams, " event streams are open already: close one")));
  }
  const bool judged = judge != nullptr;
  auto stream = std::make_shared<EventStream>(keepers_, request, std::move(judge), &open_);
  if (judged) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(judged_, [](const auto& former) { return former.expired(); });
    judged_.push_back(stream);
  }
  stream->Begin(clients);
  return stream.get();
}

void EventStreams::JudgeAgain() {
  std::vector<std::weak_ptr<EventStream>> all;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    all = judged_;
  }
  for (const auto& one : all) {
    if (const auto stream = one.lock()) stream->JudgeAgain();
  }
}

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
