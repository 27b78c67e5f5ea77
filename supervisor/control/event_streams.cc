#include "supervisor/control/event_streams.h"

#include <memory>
#include <utility>
#include <vector>

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
    } else if (!cancelled_.ok()) {
      finished_ = true;
      end = cancelled_;
    } else if (follower_->overflowed()) {
      finished_ = true;
      end = absl::ResourceExhaustedError(
          "events came faster than this stream took them, some are left out: start it again");
    } else if (!follow_) {
      finished_ = true;
      end = end_;
    } else {
      return;
    }
    if (finished_) follower_.reset();
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

}  // namespace baton
