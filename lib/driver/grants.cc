#include "lib/driver/grants.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/status_macros.h"

namespace baton::driver {

absl::StatusOr<uint32_t> GrantAccess(const arena::Arena& arena, verbs::Device* device,
                                     DeviceObjects* objects, uint64_t offset, uint64_t length,
                                     uint32_t access) {
  const uint64_t total = arena.shape().buffer_bytes;
  if (length == 0 || offset > total || length > total - offset) {
    return absl::InvalidArgumentError(absl::StrCat("offset, length: ", length, " bytes at ", offset,
                                                   " are not within the ", total,
                                                   " bytes of the buffers"));
  }
  if ((access & verbs::kRemoteAtomic) != 0 && !device->limits().atomics) {
    return absl::UnimplementedError(
        absl::StrCat("access: device ", std::string(device->name()), " has no atomics"));
  }
  auto& grants = objects->grants;
  const auto free = std::find(grants.begin(), grants.end(), nullptr);
  if (free == grants.end()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", grants.size(), " grants of the service are in use: revoke one"));
  }
  BATON_ASSIGN_OR_RETURN(*free, device->RegisterMemory(arena.buffers() + offset, length, access));
  const auto index = static_cast<uint32_t>(free - grants.begin());
  arena::GrantRecord& grant = arena.grant(index);
  grant.offset = offset;
  grant.rkey = (*free)->rkey();
  grant.access = access;
  arena::StoreRelease(grant.length, length);
  return index;
}

absl::Status RevokeAccess(const arena::Arena& arena, DeviceObjects* objects, uint32_t grant) {
  if (grant >= objects->grants.size() || !objects->grants[grant]) {
    return absl::NotFoundError(absl::StrCat("grant ", grant, " does not exist"));
  }
  objects->grants[grant].reset();
  arena::StoreRelease(arena.grant(grant).length, uint64_t{0});
  return absl::OkStatus();
}

}  // namespace baton::driver
