// Memory of a shard's heap to which peers have access. For Stream and Leases, and for services that
// grant parts of a heap themselves.
//
// The memory is part of the shard's open transaction. A grant is not: it is there, or gone, at
// once. So an owner that dies in between leaves a grant of memory that is free again. Nobody is
// given that memory while the grant is there, and the successor revokes it in OnAdopt: RevokeLost.
//
// Granting and revoking block until the keeper answers (Worker::Ready has the limits). Peers READ
// and WRITE memory that they have been granted meanwhile.
#ifndef WORKER_HEAP_GRANTS_H_
#define WORKER_HEAP_GRANTS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/worker.h"

namespace baton {

class HeapGrants {
 public:
  struct Granted {
    Buffer memory;
    Worker::Grant grant;
  };

  // Returns whether the memory lies in the shard's heap. For what comes from a state.
  static bool IsInHeap(const Shard& shard, const Buffer& memory);

  // Allocates `bytes` and clears them, so that no peer gets what another has left there. Then
  // grants them. `access`: as Worker::GrantRemoteAccess. kFailedPrecondition: the service has no
  // heaps. Otherwise the errors of Heap::Allocate and of GrantRemoteAccess. After an error nothing
  // is allocated. If the keeper may still grant the memory, nobody is given it before that is over.
  static absl::StatusOr<Granted> Allocate(Shard& shard, uint64_t bytes, uint32_t alignment,
                                          uint32_t access);
  // Ends the access of peers to `memory` by `grant`. Does nothing if the grant is of other memory
  // now, because a former owner has revoked it. OK also if it cannot be revoked now: then it is
  // revoked once the keeper answers. The memory may be freed, and nobody is given it before the
  // grant has gone.
  static absl::Status Revoke(Shard& shard, const Buffer& memory, uint32_t grant);
  // Revokes the grants of memory of this heap that is not allocated, or is freed in the open
  // transaction: their owners died, or forgot their transaction, between the grant and its commit.
  // Scratch memory is allocated until this owner frees it. CoroutineService calls this after a
  // coroutine that failed.
  static absl::Status RevokeLost(Shard& shard);
  // Frees all allocated memory of which `is_known` returns false, and then calls RevokeLost. For
  // OnAdopt: no state knows the memory of a connection that poison has ended. Buffer::length is
  // that of the size class. Scratch memory is not visited, and `is_known` must not use the heap. If
  // the transaction has no room for all, the rest is there for the next owner.
  static absl::Status FreeLost(Shard& shard, absl::FunctionRef<bool(const Buffer&)> is_known);
};

}  // namespace baton

#endif  // WORKER_HEAP_GRANTS_H_
