#include "supervisor/keeper/worker_requests.h"

#include <boost/asio/post.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/status_macros.h"
#include "lib/verbs/port_owner.h"

namespace baton::keeper {
namespace {

constexpr uint64_t kBetweenOwnerSearchesNs = 1'000'000'000;

}  // namespace

// Checks a request for a new listener. On the engine's thread.
absl::Status WorkerRequests::CheckListen(uint64_t worker_id, const verbs::Address& address) const {
  const size_t existing = engine_.listeners().size();
  if (existing >= config_.service().max_listeners()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the service has ", existing, " listeners: raise max_listeners"));
  }
  return policies_.admission().CheckListen(worker_id, address, existing,
                                           !engine_.device_info().gid.empty());
}

absl::Status WorkerRequests::Listen(uint64_t worker_id, const internal::ListenRequest& request,
                                    internal::Listening* listening) {
  if (request.port() > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("port: ", request.port(), ", at most 65535"));
  }
  const verbs::Address asked = {request.host(), static_cast<uint16_t>(request.port())};
  absl::StatusOr<verbs::Address> address;
  engine_.Run([&] {
    const bool is_new = !engine_.IsListening(asked);
    if (is_new) {
      if (absl::Status may = CheckListen(worker_id, asked); !may.ok()) {
        address = std::move(may);
        return;
      }
    }
    address = engine_.Listen(asked);
    if (is_new && address.ok()) policies_.admission().NoteListener(worker_id);
  });
  if (!address.ok()) return NameOwnerNowAndThen(address.status());
  listening->set_port(address->port);
  return absl::OkStatus();
}

// Here, and not where the queues are driven: it takes its time. Whoever asks again and again is not
// to keep everybody else's requests waiting with it.
absl::Status WorkerRequests::NameOwnerNowAndThen(const absl::Status& refused) {
  const uint64_t now = MonotonicNanoseconds();
  if (now < next_owner_search_ns_) return refused;
  absl::Status named = verbs::NamePortOwner(refused);
  next_owner_search_ns_ = MonotonicNanoseconds() + kBetweenOwnerSearchesNs;
  return named;
}

absl::Status WorkerRequests::Connect(uint64_t worker_id, const internal::ConnectRequest& request,
                                     internal::Connecting* connecting) {
  if (request.shard() >= arena_.shape().shards || request.port() > 65535) {
    return absl::InvalidArgumentError("shard, port: out of range");
  }
  absl::StatusOr<uint32_t> connection;
  engine_.Run([&] {
    if (engine_.owner(request.shard()).worker_id != worker_id) {
      connection = absl::FailedPreconditionError(
          absl::StrCat("shard: ", request.shard(), " is not owned by this worker"));
      return;
    }
    const absl::Status may = policies_.admission().CheckConnect(
        request.port(), engine_.connection_count(), ConnectionsOf(worker_id));
    if (!may.ok()) {
      connection = may;
      return;
    }
    connection =
        engine_.Connect(request.shard(), {request.host(), static_cast<uint16_t>(request.port())},
                        request.private_data(), request.tag());
    if (connection.ok()) {
      connecting->set_generation(arena_.connection(*connection).generation);
    }
  });
  BATON_RETURN_IF_ERROR(connection.status());
  connecting->set_connection(*connection);
  return absl::OkStatus();
}

// On the engine's thread.
uint32_t WorkerRequests::ConnectionsOf(uint64_t worker_id) const {
  uint32_t count = 0;
  for (uint32_t shard = 0; shard < arena_.shape().shards; ++shard) {
    if (engine_.owner(shard).worker_id == worker_id) count += engine_.connections_of(shard);
  }
  return count;
}

// Its place is counted from the reservation on.
void WorkerRequests::Grant(uint64_t worker_id, const internal::GrantRequest& request,
                           Granted done) {
  const uint32_t access =
      (request.remote_read() ? verbs::kRemoteRead : 0u) |
      (request.remote_write() ? verbs::kRemoteWrite | verbs::kLocalWrite : 0u) |
      (request.remote_atomic() ? verbs::kRemoteAtomic | verbs::kLocalWrite : 0u);
  const auto finish = [this, offset = request.offset(),
                       done = std::move(done)](const absl::StatusOr<uint32_t>& grant) {
    boost::asio::post(loop_, [this, grant, offset, done] {
      if (!grant.ok()) return done(grant.status());
      internal::Granted granted;
      granted.set_grant(*grant);
      granted.set_rkey(arena_.grant(*grant).rkey);
      granted.set_remote_address(reinterpret_cast<uint64_t>(arena_.buffers()) + offset);
      done(std::move(granted));
    });
  };
  engine_.Run([&] {
    Admission& admission = policies_.admission();
    const absl::Status may = admission.CheckGrant(worker_id, request.length());
    if (!may.ok()) return finish(may);
    const absl::StatusOr<uint32_t> grant =
        engine_.ReserveGrant(request.offset(), request.length(), access);
    if (!grant.ok()) return finish(grant);
    admission.NoteGrant(*grant, worker_id, request.length());
    engine_.RegisterGrant(*grant, [this, grant = *grant, finish](const absl::Status& registered) {
      if (registered.ok()) return finish(grant);
      policies_.admission().NoteRevoked(grant);
      finish(registered);
    });
  });
}

void WorkerRequests::Revoke(uint32_t grant, std::function<void(absl::Status)> done) {
  engine_.Run([&] {
    engine_.RevokeGrant(grant, [this, grant, done](const absl::Status& revoked) {
      if (revoked.ok()) policies_.admission().NoteRevoked(grant);
      boost::asio::post(loop_, [revoked, done] { done(revoked); });
    });
  });
}

}  // namespace baton::keeper
