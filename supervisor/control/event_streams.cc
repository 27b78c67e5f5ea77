#include "supervisor/control/event_streams.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "supervisor/control/event_stream.h"
#include "supervisor/control/grpc_status.h"

namespace baton {
namespace {

constexpr int kMaxEventStreams = 64;

// A stream that says only how it ends.
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
  if (request.changes()) clients.clear();  // no keeper knows them
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
