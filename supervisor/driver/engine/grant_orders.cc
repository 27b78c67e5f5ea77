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

// Workers' numbers are checked by kind: that of a grant never names a region.
absl::StatusOr<uint32_t> PlaceOf(const internal::RevokeGrant& order) {
  const bool is_region = order.region() != 0;
  if (is_region && order.region() <= arena::kRegions) return arena::GrantOfRegion(order.region());
  if (!is_region && order.grant() < arena::kGrants) return order.grant();
  return absl::NotFoundError(is_region ? absl::StrCat("region ", order.region(), " does not exist")
                                       : absl::StrCat("grant ", order.grant(), " does not exist"));
}

}  // namespace

// The grant counts against quotas from its reservation on.
absl::Status GrantOrders::Grant(const internal::ReserveGrant& order) {
  if (RepeatsGrant(order)) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(CheckAsker(order));
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
    const absl::Status may = is_gone ? AskerHasEnded() : CheckAsker(order);
    if (!may.ok()) return Withdraw(order, grant, may);
    ReportGrant(order, registered, Describe(grant, order.request()));
  });
  return absl::OkStatus();
}

// A heap's memory is granted and revoked for its owner alone. An order that comes late, because the
// keeper was stopped, may name what the next owner uses for something else.
absl::Status GrantOrders::CheckAsker(uint64_t worker_id, uint64_t offset, uint64_t length) const {
  if (HasEnded(worker_id)) return AskerHasEnded();
  const arena::Shape& shape = engine_.arena().shape();
  if (worker_id == 0 || length == 0) return absl::OkStatus();
  for (uint32_t shard = 0; shard < shape.shards; ++shard) {
    const uint64_t begin = arena::HeapOffset(shape, shard);
    const uint64_t end = begin + arena::HeapBytes(shape);
    const bool is_before = offset < begin && length <= begin - offset;
    if (is_before || offset >= end || begin == end) continue;
    if (engine_.succession().owner(shard).worker_id == worker_id) continue;
    return absl::AbortedError(absl::StrCat("offset: the memory is in the heap of shard ", shard,
                                           ", which this worker does not own"));
  }
  return absl::OkStatus();
}

absl::Status GrantOrders::CheckAsker(const internal::ReserveGrant& order) const {
  const bool is_region = order.request().memfd() != 0;
  return CheckAsker(order.worker_id(), order.request().offset(),
                    is_region ? 0 : order.request().length());
}

// Its shards may have their next owner already, though its keeper does not know that it is dead.
bool GrantOrders::HasEnded(uint64_t worker_id) const {
  const Roster& roster = engine_.succession().roster();
  for (uint32_t slot = 0; slot < engine_.arena().shape().workers; ++slot) {
    if (worker_id != 0 && roster[slot].id == worker_id) return roster[slot].ended;
  }
  return false;
}

// Revokes the grant of a worker that may not have it any more. The keeper that gave the order may
// be gone, too, and no other knows of it.
void GrantOrders::Withdraw(const internal::ReserveGrant& order, uint32_t grant,
                           const absl::Status& why) {
  engine_.RevokeGrant(grant, [this, order, grant, why](const absl::Status& revoked) {
    if (revoked.ok()) admission_.NoteRevoked(grant);
    ReportGrant(order, why);
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
  if (const uint32_t region = arena::RegionOfGrant(grant); region != 0) {
    granted.set_region(region);
    granted.set_rkey(arena.region(region).rkey);
    granted.set_remote_address(arena.region(region).address);
  } else {
    granted.set_grant(grant);
    granted.set_rkey(arena.grant(grant).rkey);
    granted.set_remote_address(reinterpret_cast<uint64_t>(arena.buffers()) + request.offset());
  }
  return granted;
}

// A former owner's order may come late: the next one may have staged requests that name the region,
// or given the grant's key to a peer.
void GrantOrders::Revoke(const internal::RevokeGrant& order) {
  if (RepeatsGrant(order)) return;
  const absl::StatusOr<uint32_t> place = PlaceOf(order);
  if (!place.ok()) return ReportGrant(order, place.status());
  const arena::GrantRecord none = {};
  const arena::GrantRecord& record = *place < arena::kGrants ? engine_.arena().grant(*place) : none;
  const absl::Status may = CheckAsker(order.worker_id(), record.offset, record.length);
  if (!may.ok()) return ReportGrant(order, may);
  if (order.number() != 0) last_[order.worker_id()] = {order.number(), {}, false};
  engine_.RevokeGrant(*place, [this, order, place = *place](const absl::Status& revoked) {
    if (revoked.ok()) admission_.NoteRevoked(place);
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
