#include "supervisor/keeper/worker_requests.h"

#include <boost/asio/post.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"

namespace baton::keeper {
absl::Status WorkerRequests::Listen(uint64_t worker_id, const internal::ListenRequest& request,
                                    internal::Listening* listening) {
  if (request.port() > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("port: ", request.port(), ", at most 65535"));
  }
  const verbs::Address asked = {request.host(), static_cast<uint16_t>(request.port())};
  BATON_ASSIGN_OR_RETURN(*listening,
                         driver_.ListenFor(worker_id, asked, config_.service().max_listeners()));
  return absl::OkStatus();
}

absl::Status WorkerRequests::Connect(uint64_t worker_id, const internal::ConnectRequest& request,
                                     internal::Connecting* connecting) {
  if (request.shard() >= driver_.arena().shape().shards || request.port() > 65535) {
    return absl::InvalidArgumentError("shard, port: out of range");
  }
  BATON_ASSIGN_OR_RETURN(*connecting, driver_.ConnectFor(worker_id, request));
  return absl::OkStatus();
}

void WorkerRequests::Grant(uint64_t worker_id, const internal::GrantRequest& request,
                           Granted done) {
  const absl::Status asked = driver_.GrantFor(worker_id, request, done);
  if (asked.ok()) return;
  boost::asio::post(loop_, [asked, done = std::move(done)] { done(asked); });
}

void WorkerRequests::Revoke(uint32_t grant, std::function<void(absl::Status)> done) {
  driver_.Revoke(grant, std::move(done));
}

}  // namespace baton::keeper
