#include "worker/leases.h"

#include <time.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/arena/layout.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "worker/heap.h"
#include "worker/heap_grants.h"
#include "worker/work_requests.h"

namespace baton {
namespace {

constexpr uint32_t kPeerAccess = verbs::kRemoteRead | verbs::kRemoteWrite | verbs::kRemoteAtomic;
constexpr uint32_t kAtomicBytes = 8;
// The end of a lease whose grant is revoked: it is over at any time.
constexpr uint64_t kRevoked = 1;

bool IsOver(const Lease& lease, uint64_t now_ns) {
  return lease.ends_ns != 0 && lease.ends_ns <= now_ns;
}

bool IsAccess(uint32_t access) { return access != 0 && (access & ~kPeerAccess) == 0; }

absl::Status CheckDuration(uint64_t duration_ns) {
  if (duration_ns <= Leases::kMostDurationNs) return absl::OkStatus();
  return Invalid("duration_ns: ", duration_ns, ", at most ", Leases::kMostDurationNs,
                 "; 0 is as long as the connection");
}

uint64_t EndOf(uint64_t duration_ns, uint64_t now_ns) {
  return duration_ns == 0 ? 0 : now_ns + duration_ns;
}

}  // namespace

uint64_t Leases::Now() {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

Leases::Leases(Connection& connection, uint32_t most) : connection_(&connection) {
  const uint32_t state_bytes = connection.shard().worker().capacity().connection_state_bytes;
  const uint32_t room =
      state_bytes < kHeaderBytes ? 0 : (state_bytes - kHeaderBytes) / uint32_t{sizeof(Lease)};
  most_ = std::min({most, room, kMostLeases});
  state_.header.magic = kMagic;
  state_.header.version = kVersion;
}

absl::StatusOr<Leases> Leases::Load(Connection& connection, absl::Span<const uint8_t> state,
                                    uint32_t most) {
  Leases loaded(connection, most);
  if (state.empty()) return loaded;
  const auto lost = [&](std::string_view why) {
    return absl::DataLossError(
        absl::StrCat("connection ", connection.index(), ": its state of ", state.size(),
                     " bytes is not that of leases of version ", kVersion, ": ", View(why)));
  };
  Header header = {};
  if (state.size() < kHeaderBytes) return lost("it is too short");
  std::memcpy(&header, state.data(), kHeaderBytes);
  if (header.magic != kMagic || header.version != kVersion || header.reserved != 0) {
    return lost("it begins otherwise");
  }
  if (header.count > kMostLeases || state.size() < BytesFor(header.count)) {
    return lost("it has not as many leases as it says");
  }
  std::memcpy(&loaded.state_, state.data(), BytesFor(header.count));
  for (uint32_t i = 0; i < header.count; ++i) {
    if (!loaded.IsSound(i)) return lost(absl::StrCat("lease ", i, " cannot be one"));
  }
  return loaded;
}

// Returns whether Allocate can have made it, and the leases before it are others.
bool Leases::IsSound(uint32_t index) const {
  const Lease& lease = state_.leases[index];
  const bool is_own = std::none_of(state_.leases, state_.leases + index, [&](const Lease& other) {
    return other.id == lease.id || other.request == lease.request || other.offset == lease.offset;
  });
  return is_own && lease.id != 0 && lease.bytes != 0 && IsAccess(lease.access) &&
         lease.grant < arena::kGrants && lease.duration_ns <= kMostDurationNs &&
         lease.reserved == 0 && HeapGrants::IsInHeap(connection_->shard(), lease.memory());
}

absl::Status Leases::CheckRequest(const LeaseRequest& request) {
  if (!IsAccess(request.access)) {
    return Invalid("access: ", request.access,
                   " is not kRemoteRead, kRemoteWrite, kRemoteAtomic or several");
  }
  const bool has_atomics = (request.access & verbs::kRemoteAtomic) != 0;
  const uint64_t least = has_atomics ? kAtomicBytes : 1;
  if (request.bytes < least || request.bytes > UINT32_MAX) {
    return Invalid("bytes: ", request.bytes, ", ", least, " to ", UINT32_MAX);
  }
  return CheckDuration(request.duration_ns);
}

absl::StatusOr<Lease> Leases::Allocate(const LeaseRequest& request, uint64_t now_ns) {
  BATON_RETURN_IF_ERROR(CheckRequest(request));
  BATON_RETURN_IF_ERROR(FreeOverdue(now_ns));
  for (const Lease& lease : all()) {
    if (lease.request != request.request) continue;
    if (lease.bytes == request.bytes && lease.access == request.access &&
        lease.duration_ns == request.duration_ns) {
      return lease;
    }
    return absl::AlreadyExistsError(
        absl::StrCat("request: ", request.request, " has lease ", lease.id,
                     " with other parameters: choose another number, or free the lease"));
  }
  if (state_.header.count >= most_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("connection ", connection_->index(), " has ", state_.header.count,
                     " leases, and may have ", most_, ": free one, or raise the service's limit"));
  }
  BATON_ASSIGN_OR_RETURN(
      const HeapGrants::Granted granted,
      HeapGrants::Allocate(connection_->shard(), request.bytes, kAlignment, request.access));
  BATON_CRASH_POINT("lease-granted");
  Lease lease = {};
  lease.request = request.request;
  lease.offset = granted.memory.offset;
  lease.remote_address = granted.grant.remote_address;
  lease.ends_ns = EndOf(request.duration_ns, now_ns);
  lease.duration_ns = request.duration_ns;
  lease.id = NextId();
  lease.bytes = granted.memory.length;
  lease.access = request.access;
  lease.grant = granted.grant.id;
  lease.rkey = granted.grant.rkey;
  state_.leases[state_.header.count++] = lease;
  state_.header.last_id = lease.id;
  return lease;
}

// After 2^32 ids they begin again, and some of the first leases may still be there.
uint32_t Leases::NextId() const {
  uint32_t id = state_.header.last_id;
  do {
    ++id;
  } while (id == 0 || Find(id) != nullptr);
  return id;
}

// A lease that is revoked and cannot be freed now is over, so that nobody is told that it is there.
absl::Status Leases::FreeAt(uint32_t index) {
  Lease& lease = state_.leases[index];
  Shard& shard = connection_->shard();
  BATON_RETURN_IF_ERROR(HeapGrants::Revoke(shard, lease.memory(), lease.grant));
  lease.ends_ns = kRevoked;
  BATON_CRASH_POINT("lease-revoked");
  BATON_RETURN_IF_ERROR(shard.heap().Free(lease.memory()));
  Lease& last = state_.leases[--state_.header.count];
  lease = last;
  last = {};
  return absl::OkStatus();
}

absl::Status Leases::Free(uint32_t id) {
  const Lease* const lease = Find(id);
  if (lease == nullptr) return absl::OkStatus();
  return FreeAt(static_cast<uint32_t>(lease - state_.leases));
}

absl::StatusOr<Lease> Leases::Renew(uint32_t id, uint64_t duration_ns, uint64_t now_ns) {
  BATON_RETURN_IF_ERROR(CheckDuration(duration_ns));
  const Lease* const found = Find(id);
  if (found == nullptr || IsOver(*found, now_ns)) {
    return absl::NotFoundError(absl::StrCat("lease ", id, " of connection ", connection_->index(),
                                            " is over: allocate another"));
  }
  Lease& lease = state_.leases[found - state_.leases];
  lease.ends_ns = EndOf(duration_ns, now_ns);
  return lease;
}

// From the last to the first: the last takes the place of one that is freed.
absl::Status Leases::FreeOverdue(uint64_t now_ns) {
  for (uint32_t i = state_.header.count; i-- > 0;) {
    if (IsOver(state_.leases[i], now_ns)) BATON_RETURN_IF_ERROR(FreeAt(i));
  }
  return absl::OkStatus();
}

absl::Status Leases::FreeAll() {
  while (state_.header.count > 0) BATON_RETURN_IF_ERROR(FreeAt(state_.header.count - 1));
  return absl::OkStatus();
}

std::optional<uint64_t> Leases::next_end() const {
  uint64_t first = UINT64_MAX;
  for (const Lease& lease : all()) {
    if (lease.ends_ns != 0) first = std::min(first, lease.ends_ns);
  }
  return first == UINT64_MAX ? std::nullopt : std::optional(first);
}

const Lease* Leases::Find(uint32_t id) const {
  const absl::Span<const Lease> leases = all();
  const auto* const found = std::find_if(leases.begin(), leases.end(),
                                         [&](const Lease& lease) { return lease.id == id; });
  return found == leases.end() ? nullptr : found;
}

uint64_t Leases::bytes() const {
  uint64_t sum = 0;
  for (const Lease& lease : all()) sum += lease.bytes;
  return sum;
}

}  // namespace baton
