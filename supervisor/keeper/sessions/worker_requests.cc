#include "supervisor/keeper/sessions/worker_requests.h"

#include <boost/asio/post.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"

namespace baton::keeper {
absl::Status WorkerRequests::Listen(const Asker& asker, const internal::ListenRequest& request,
                                    internal::Listening* listening) {
  if (request.port() > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("port: ", request.port(), ", at most 65535"));
  }
  const verbs::Address asked = {request.host(), static_cast<uint16_t>(request.port())};
  BATON_ASSIGN_OR_RETURN(*listening,
                         driver_.ListenFor(asker, asked, config_.service().max_listeners()));
  return absl::OkStatus();
}

absl::Status WorkerRequests::Connect(const Asker& asker, const internal::ConnectRequest& request,
                                     internal::Connecting* connecting) {
  if (request.shard() >= driver_.arena().shape().shards || request.port() > 65535) {
    return absl::InvalidArgumentError("shard, port: out of range");
  }
  BATON_ASSIGN_OR_RETURN(*connecting, driver_.ConnectFor(asker, request));
  return absl::OkStatus();
}

void WorkerRequests::Grant(const Asker& asker, const internal::GrantRequest& request,
                           Granted done) {
  const absl::Status asked = driver_.GrantFor(asker, request, done);
  if (asked.ok()) return;
  boost::asio::post(loop_, [asked, done = std::move(done)] { done(asked); });
}

void WorkerRequests::Revoke(const Asker& asker, uint32_t grant,
                            std::function<void(absl::Status)> done) {
  driver_.Revoke(asker, grant, std::move(done));
}

}  // namespace baton::keeper
