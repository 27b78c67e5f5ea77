// Memory regions by their handles in a uverbs file: any process that has a descriptor of the file
// can make, find and destroy them, by ioctl(2). libibverbs has no such functions: it wants the
// process's own context and domain.
//
// Functions return 0 or an errno.
#ifndef TESTS_LIB_VERBS_RDMA_REGION_HANDLES_H_
#define TESTS_LIB_VERBS_RDMA_REGION_HANDLES_H_

#include <cstdint>

namespace baton::verbs::rdma {

struct Region {
  uint32_t handle = 0;
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
  uint64_t address = 0;  // by which work requests name its first byte
  uint64_t bytes = 0;
};

// Registers `region->bytes` from `memory` on, in the domain with this handle, to be named by
// `region->address`. Both begin at the same place of a page.
int RegisterRegion(int uverbs, uint32_t domain, const void* memory, uint32_t access,
                   Region* region);
// Fills all but the handle. ENOENT: no region has it.
int QueryRegion(int uverbs, uint32_t handle, Region* region);
int DestroyRegion(int uverbs, uint32_t handle);

}  // namespace baton::verbs::rdma

#endif  // TESTS_LIB_VERBS_RDMA_REGION_HANDLES_H_
