// Leases in the C interface, and what an owner does about memory that was lost.
#include "worker/leases.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/heap_grants.h"
#include "worker/kit/c_layer.h"
#include "worker/kit/include/baton/baton.h"

namespace {

using baton::Lease;
using baton::Leases;
using baton::kit::CheckSize;
using baton::kit::CopyOf;
using baton::kit::CopyTo;
using baton::kit::Hand;
using baton::kit::Of;
using baton::kit::Report;
using baton::kit::ToC;

static_assert(BATON_LEASES_BYTES(Leases::kMostLeases) == Leases::BytesFor(Leases::kMostLeases));

Leases* Of(baton_leases* leases) { return reinterpret_cast<Leases*>(leases); }
const Leases* Of(const baton_leases* leases) { return reinterpret_cast<const Leases*>(leases); }

baton_lease LeaseOf(const Lease& lease) {
  return {sizeof(baton_lease), lease.request, lease.offset, lease.remote_address, lease.ends_ns,
          lease.duration_ns,   lease.id,      lease.bytes,  lease.access,         lease.rkey};
}

int Give(const absl::StatusOr<Lease>& result, baton_lease* lease) {
  if (result.ok()) CopyTo(LeaseOf(*result), lease);
  return Report(result.status());
}

}  // namespace

extern "C" {

uint64_t baton_lease_clock(void) { return Leases::Now(); }

int baton_load_leases(baton_connection* connection, const void* state, size_t length, uint32_t most,
                      baton_leases** leases) {
  absl::StatusOr<Leases> loaded = Leases::Load(*Of(connection), baton::kit::BytesOf(state, length),
                                               most == 0 ? Leases::kMostLeases : most);
  if (!loaded.ok()) return Report(loaded.status());
  return Hand(std::make_unique<Leases>(*std::move(loaded)), leases);
}
void baton_forget_leases(baton_leases* leases) { delete Of(leases); }
const uint8_t* baton_leases_state(const baton_leases* leases, size_t* length) {
  return baton::kit::Give(Of(leases)->state(), length);
}

int baton_allocate_lease(baton_leases* leases, const baton_lease_request* request, uint64_t now_ns,
                         baton_lease* lease) {
  if (const int code = CheckSize(request, "request")) return code;
  if (const int code = CheckSize(lease, "lease")) return code;
  const baton_lease_request given = CopyOf(*request);
  return Give(Of(leases)->Allocate({.request = given.request,
                                    .bytes = given.bytes,
                                    .access = given.access,
                                    .duration_ns = given.duration_ns},
                                   now_ns),
              lease);
}
int baton_free_lease(baton_leases* leases, uint32_t id) { return Report(Of(leases)->Free(id)); }
int baton_renew_lease(baton_leases* leases, uint32_t id, uint64_t duration_ns, uint64_t now_ns,
                      baton_lease* lease) {
  if (const int code = CheckSize(lease, "lease")) return code;
  return Give(Of(leases)->Renew(id, duration_ns, now_ns), lease);
}
int baton_free_overdue_leases(baton_leases* leases, uint64_t now_ns) {
  return Report(Of(leases)->FreeOverdue(now_ns));
}
int baton_free_all_leases(baton_leases* leases) { return Report(Of(leases)->FreeAll()); }

uint64_t baton_leases_next_end(const baton_leases* leases) {
  return Of(leases)->next_end().value_or(0);
}
void baton_for_each_lease(const baton_leases* leases,
                          void (*visit)(void* context, const baton_lease* lease), void* context) {
  for (const Lease& one : Of(leases)->all()) {
    const baton_lease lease = LeaseOf(one);
    visit(context, &lease);
  }
}

int baton_free_lost(baton_shard* shard, bool (*is_known)(void* context, const baton_buffer* buffer),
                    void* context) {
  if (is_known == nullptr) return baton::kit::Wrong("is_known", "is NULL");
  const absl::Status has_heap = baton::kit::CheckHeap(*Of(shard));
  if (!has_heap.ok()) return Report(has_heap);
  return Report(baton::HeapGrants::FreeLost(*Of(shard), [&](const baton::Buffer& buffer) {
    const baton_buffer range = ToC(buffer);
    return is_known(context, &range);
  }));
}
int baton_revoke_lost(baton_shard* shard) {
  const absl::Status has_heap = baton::kit::CheckHeap(*Of(shard));
  return Report(has_heap.ok() ? baton::HeapGrants::RevokeLost(*Of(shard)) : has_heap);
}

}  // extern "C"
