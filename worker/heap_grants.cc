#include "worker/heap_grants.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "lib/arena/atomic_access.h"
#include "lib/base/status.h"
#include "worker/heap.h"
#include "worker/worker_shards.h"

namespace baton {
namespace {

bool IsIn(const arena::GrantRecord& grant, const Buffer& memory) {
  return grant.length != 0 && grant.offset >= memory.offset &&
         grant.offset - memory.offset < memory.length;
}

// A dead owner's order to revoke the grant may be under way, and nobody may answer now. Then the
// grant still holds its memory, freed or not, and is revoked once the keeper answers.
absl::Status RevokeOnce(Worker& worker, uint32_t grant) {
  const absl::Status revoked = worker.RevokeGrant(grant);
  const bool is_left = absl::IsNotFound(revoked) || absl::IsUnavailable(revoked) ||
                       absl::IsDeadlineExceeded(revoked);
  return is_left ? absl::OkStatus() : revoked;
}

}  // namespace

bool HeapGrants::IsInHeap(const Shard& shard, const Buffer& memory) {
  const arena::Shape& shape = shard.shards_->arena().shape();
  const uint64_t begin = arena::HeapOffset(shape, shard.index());
  const uint64_t bytes = arena::HeapBytes(shape);
  return memory.offset >= begin && memory.offset - begin <= bytes &&
         memory.length <= bytes - (memory.offset - begin);
}

absl::StatusOr<HeapGrants::Granted> HeapGrants::Allocate(Shard& shard, uint64_t bytes,
                                                         uint32_t alignment, uint32_t access) {
  if (shard.worker().capacity().shard_heap_bytes == 0) {
    return absl::FailedPreconditionError(
        "the service has no heaps, where memory for peers is: set its shard_heap_bytes");
  }
  Heap& heap = shard.heap();
  Granted granted;
  BATON_ASSIGN_OR_RETURN(granted.memory, heap.Allocate(bytes, alignment));
  std::memset(heap.At(granted.memory), 0, bytes);
  absl::StatusOr<Worker::Grant> grant =
      shard.worker().GrantRemoteAccess(granted.memory.offset, bytes, access);
  // If the grant may still be made, the heap holds the memory until it is certain that it is not.
  if (!grant.ok()) {
    BATON_RETURN_IF_ERROR(heap.Free(granted.memory));
    return grant.status();
  }
  granted.grant = *grant;
  return granted;
}

absl::Status HeapGrants::Revoke(Shard& shard, const Buffer& memory, uint32_t grant) {
  if (grant >= arena::kGrants) return absl::OkStatus();
  const arena::GrantRecord record = arena::CopyOnce(shard.shards_->arena().grant(grant));
  return IsIn(record, memory) ? RevokeOnce(shard.worker(), grant) : absl::OkStatus();
}

absl::Status HeapGrants::RevokeLost(Shard& shard) {
  if (shard.worker().capacity().shard_heap_bytes == 0) return absl::OkStatus();
  const arena::Arena& arena = shard.shards_->arena();
  std::vector<Buffer> allocated;  // in the order of addresses
  BATON_RETURN_IF_ERROR(shard.heap().ForEachAllocated(
      [&](const Buffer& buffer, bool /*kept*/) { allocated.push_back(buffer); }));
  for (uint32_t i = 0; i < arena::kGrants; ++i) {
    const arena::GrantRecord grant = arena::CopyOnce(arena.grant(i));
    if (grant.length == 0 || !IsInHeap(shard, {grant.offset, 1})) continue;
    const auto behind = std::upper_bound(
        allocated.begin(), allocated.end(), grant.offset,
        [](uint64_t offset, const Buffer& buffer) { return offset < buffer.offset; });
    const bool known = behind != allocated.begin() && IsIn(grant, behind[-1]);
    if (!known) BATON_RETURN_IF_ERROR(RevokeOnce(shard.worker(), i));
  }
  return absl::OkStatus();
}

absl::Status HeapGrants::FreeLost(Shard& shard, absl::FunctionRef<bool(const Buffer&)> is_known) {
  if (shard.worker().capacity().shard_heap_bytes == 0) return absl::OkStatus();
  std::vector<Buffer> lost;
  BATON_RETURN_IF_ERROR(shard.heap().ForEachAllocated([&](const Buffer& buffer, bool is_kept) {
    if (is_kept && !is_known(buffer)) lost.push_back(buffer);
  }));
  for (const Buffer& buffer : lost) {
    const absl::Status freed = shard.heap().Free(buffer);
    if (absl::IsResourceExhausted(freed)) break;
    BATON_RETURN_IF_ERROR(freed);
  }
  return RevokeLost(shard);
}

}  // namespace baton
