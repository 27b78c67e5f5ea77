#include "supervisor/control/event_streams.h"

#include <memory>
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

EventStreams::Reactor* EventStreams::Open(const v1::WatchEventsRequest& request) {
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
  auto stream = std::make_shared<EventStream>(keepers_, request, &open_);
  stream->Begin(clients);
  return stream.get();
}

}  // namespace baton
