// Memory regions by their handles in a uverbs file. A process that holds the file can use them
// whoever has registered the memory. libibverbs has no such calls.
#ifndef LIB_VERBS_RDMA_REGION_HANDLE_H_
#define LIB_VERBS_RDMA_REGION_HANDLE_H_

#include <cstdint>
#include <optional>

namespace baton::verbs::rdma {

struct Region {
  uint32_t handle = 0;
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
  uint64_t address = 0;  // by which work requests name its first byte
  uint64_t bytes = 0;
};
// Fills all but the handle. Returns 0 or an errno. ENOENT: the handle is free. EINVAL: it is
// another kind of object's.
int QueryRegion(int uverbs, uint32_t handle, Region* region);
int DestroyRegion(int uverbs, uint32_t handle);

// Returns the handle of the region that has the key. The kernel gives the lowest free number to an
// object, so it looks no further than a long run of free ones.
std::optional<uint32_t> FindRegion(int uverbs, uint32_t remote_key);

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_REGION_HANDLE_H_
