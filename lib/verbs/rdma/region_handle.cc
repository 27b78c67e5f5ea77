#include "lib/verbs/rdma/region_handle.h"

#include <rdma/ib_user_ioctl_cmds.h>

#include <cerrno>

#include "lib/verbs/rdma/uverbs_command.h"

namespace baton::verbs::rdma {

constexpr uint32_t kMostFree = 1024;  // handles, one after the other

int QueryRegion(int uverbs, uint32_t handle, Region* region) {
  UverbsCommand<5> command(UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR);
  command.Set(0, UVERBS_ATTR_QUERY_MR_HANDLE, 0, handle);
  command.SetPlace(1, UVERBS_ATTR_QUERY_MR_RESP_LKEY, sizeof(uint32_t), &region->local_key);
  command.SetPlace(2, UVERBS_ATTR_QUERY_MR_RESP_RKEY, sizeof(uint32_t), &region->remote_key);
  command.SetPlace(3, UVERBS_ATTR_QUERY_MR_RESP_LENGTH, sizeof(uint64_t), &region->bytes);
  command.SetPlace(4, UVERBS_ATTR_QUERY_MR_RESP_IOVA, sizeof(uint64_t), &region->address);
  return command.Give(uverbs);
}

int DestroyRegion(int uverbs, uint32_t handle) {
  UverbsCommand<1> command(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY);
  command.Set(0, UVERBS_ATTR_DESTROY_MR_HANDLE, 0, handle);
  return command.Give(uverbs);
}

std::optional<uint32_t> FindRegion(int uverbs, uint32_t remote_key) {
  uint32_t free = 0;
  for (uint32_t handle = 0; free < kMostFree; ++handle) {
    Region region;
    const int error = QueryRegion(uverbs, handle, &region);
    if (error == 0 && region.remote_key == remote_key) return handle;
    free = error == ENOENT ? free + 1 : 0;
  }
  return std::nullopt;
}

}  // namespace baton::verbs::rdma
