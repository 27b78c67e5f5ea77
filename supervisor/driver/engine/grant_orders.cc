#include "supervisor/driver/engine/grant_orders.h"

#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"
#include "lib/channel/carried_status.h"
#include "lib/driver/regions.h"
#include "lib/verbs/verbs.h"

namespace baton::driver_process {
namespace {

absl::Status AskerHasEnded() {
  return absl::AbortedError("the worker that asked for it has ended, or is fenced");
}

}  // namespace

// The grant counts against quotas from its reservation on.
absl::Status GrantOrders::Grant(const internal::ReserveGrant& order) {
  if (RepeatsGrant(order)) return absl::OkStatus();
  if (HasEnded(order.worker_id())) return AskerHasEnded();
  const uint64_t length = order.request().length();
  BATON_RETURN_IF_ERROR(admission_.CheckGrant(order.worker_id(), length));
  BATON_ASSIGN_OR_RETURN(const uint32_t grant, Reserve(order.request()));
  admission_.NoteGrant(grant, order.worker_id(), length);
  if (order.number() != 0) last_[order.worker_id()] = {order.number(), {}, false};
  engine_.RegisterGrant(grant, [this, grant, order](const absl::Status& registered) {
    if (!registered.ok()) {
      admission_.NoteRevoked(grant);
      return ReportGrant(order, registered);
    }
    const bool is_gone = order.number() != 0 && !last_.contains(order.worker_id());
    if (is_gone || HasEnded(order.worker_id())) return Withdraw(order, grant);
    ReportGrant(order, registered, Describe(grant, order.request()));
  });
  return absl::OkStatus();
}

// Its shards may have their next owner already, though its keeper does not know that it is dead.
bool GrantOrders::HasEnded(uint64_t worker_id) const {
  const Roster& roster = engine_.succession().roster();
  for (uint32_t slot = 0; slot < engine_.arena().shape().workers; ++slot) {
    if (worker_id != 0 && roster[slot].id == worker_id) return roster[slot].ended;
  }
  return false;
}

// Revokes the grant of a worker that has ended. The keeper that gave the order may be gone, too,
// and no other knows of it.
void GrantOrders::Withdraw(const internal::ReserveGrant& order, uint32_t grant) {
  engine_.RevokeGrant(grant, [this, order, grant](const absl::Status& revoked) {
    if (revoked.ok()) admission_.NoteRevoked(grant);
    ReportGrant(order, AskerHasEnded());
  });
}

absl::StatusOr<uint32_t> GrantOrders::Reserve(const internal::GrantRequest& request) {
  const uint32_t access =
      (request.remote_read() ? verbs::kRemoteRead : 0u) |
      (request.remote_write() ? verbs::kRemoteWrite | verbs::kLocalWrite : 0u) |
      (request.remote_atomic() ? verbs::kRemoteAtomic | verbs::kLocalWrite : 0u);
  if (request.memfd() == 0) {
    return engine_.ReserveGrant(request.offset(), request.length(), access);
  }
  const int held = held_.Find(request.memfd());
  if (held < 0) {
    return absl::NotFoundError(absl::StrCat("descriptor: ", request.memfd(), " is not held"));
  }
  BATON_RETURN_IF_ERROR(driver::CheckMemfd(held, request.memfd()));
  // It may be dropped before another thread maps it.
  FileDescriptor copy = CopyOf(held);
  if (!copy) return ErrnoStatus(errno, "a held descriptor's copy (see the driver's RLIMIT_NOFILE)");
  return engine_.ReserveRegion({.offset = request.offset(),
                                .length = request.length(),
                                .access = access,
                                .descriptor = request.memfd(),
                                .memfd = std::make_shared<const FileDescriptor>(std::move(copy))});
}

internal::Granted GrantOrders::Describe(uint32_t grant,
                                        const internal::GrantRequest& request) const {
  const arena::Arena& arena = engine_.arena();
  internal::Granted granted;
  granted.set_grant(grant);
  if (const uint32_t region = arena::RegionOfGrant(grant); region != 0) {
    granted.set_rkey(arena.region(region).rkey);
    granted.set_remote_address(arena.region(region).address);
  } else {
    granted.set_rkey(arena.grant(grant).rkey);
    granted.set_remote_address(reinterpret_cast<uint64_t>(arena.buffers()) + request.offset());
  }
  return granted;
}

// A former owner's order may come late: the next one may have staged requests that name the region,
// or given the grant's key to a peer.
void GrantOrders::Revoke(const internal::RevokeGrant& order) {
  if (RepeatsGrant(order)) return;
  if (HasEnded(order.worker_id())) return ReportGrant(order, AskerHasEnded());
  if (order.number() != 0) last_[order.worker_id()] = {order.number(), {}, false};
  engine_.RevokeGrant(order.grant(), [this, order](const absl::Status& revoked) {
    if (revoked.ok()) admission_.NoteRevoked(order.grant());
    ReportGrant(order, revoked);
  });
}

// Returns true if a keeper that died gave the same order. Its end is then reported to the keeper
// that asks now.
template <typename Order>
bool GrantOrders::RepeatsGrant(const Order& order) {
  const auto last = last_.find(order.worker_id());
  if (order.number() == 0 || last == last_.end() || last->second.number != order.number()) {
    return false;
  }
  internal::GrantChanged& changed = last->second.changed;
  changed.set_call(order.call());
  if (last->second.is_over) {
    internal::DriverNews news;
    *news.mutable_grant_changed() = changed;
    news_.Push(std::move(news));
  }
  return true;
}

template <typename Order>
void GrantOrders::ReportGrant(const Order& order, const absl::Status& status,
                              const internal::Granted& granted) {
  internal::DriverNews news;
  internal::GrantChanged& changed = *news.mutable_grant_changed();
  changed.set_call(order.call());
  SetStatus(status, &changed);
  if (status.ok()) *changed.mutable_granted() = granted;
  const auto last = last_.find(order.worker_id());
  if (last != last_.end() && last->second.number == order.number()) {
    // Another keeper may have repeated the order, with a number of its own.
    if (last->second.changed.call() != 0) changed.set_call(last->second.changed.call());
    last->second.changed = changed;
    last->second.is_over = true;
  }
  news_.Push(std::move(news));
}

}  // namespace baton::driver_process
