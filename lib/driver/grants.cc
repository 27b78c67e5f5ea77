#include "lib/driver/grants.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/status_macros.h"

namespace baton::driver {

absl::StatusOr<uint32_t> ReserveGrant(const arena::Arena& arena, const verbs::Device& device,
                                      DeviceObjects* objects, uint64_t offset, uint64_t length,
                                      uint32_t access) {
  const uint64_t total = arena.shape().buffer_bytes;
  if (length == 0 || offset > total || length > total - offset) {
    return absl::InvalidArgumentError(absl::StrCat("offset, length: ", length, " bytes at ", offset,
                                                   " are not within the ", total,
                                                   " bytes of the buffers"));
  }
  if ((access & verbs::kRemoteAtomic) != 0 && !device.limits().atomics) {
    return absl::UnimplementedError(
        absl::StrCat("access: device ", std::string(device.name()), " has no atomics"));
  }
  auto& grants = objects->grants;
  const auto free =
      std::find_if(grants.begin(), grants.end(), [](const auto& grant) { return grant.is_free(); });
  if (free == grants.end()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", grants.size(), " grants of the service are in use: revoke one"));
  }
  *free = {nullptr, /*is_changing=*/true, {offset, length, access}};
  return static_cast<uint32_t>(free - grants.begin());
}

absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> RegisterRange(const arena::Arena& arena,
                                                                   verbs::Device* device,
                                                                   const GrantRange& range) {
  return device->RegisterMemory(arena.buffers() + range.offset, range.length, range.access);
}

absl::Status FinishGrant(const arena::Arena& arena, DeviceObjects* objects, uint32_t grant,
                         absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> region) {
  DeviceObjects::Grant& reserved = objects->grants[grant];
  reserved.is_changing = false;
  BATON_ASSIGN_OR_RETURN(reserved.region, std::move(region));
  arena::GrantRecord& record = arena.grant(grant);
  record.offset = reserved.range.offset;
  record.rkey = reserved.region->rkey();
  record.access = reserved.range.access;
  arena::StoreRelease(record.length, reserved.range.length);
  return absl::OkStatus();
}

absl::Status RegisterGrant(const arena::Arena& arena, verbs::Device* device, DeviceObjects* objects,
                           uint32_t grant) {
  return FinishGrant(arena, objects, grant,
                     RegisterRange(arena, device, objects->grants[grant].range));
}

absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> BeginRevoke(DeviceObjects* objects,
                                                                 uint32_t grant) {
  if (grant >= objects->grants.size() || objects->grants[grant].is_free()) {
    return absl::NotFoundError(absl::StrCat("grant ", grant, " does not exist"));
  }
  DeviceObjects::Grant& revoked = objects->grants[grant];
  if (revoked.is_changing) {
    return absl::UnavailableError(
        absl::StrCat("grant ", grant,
                     " is being registered or revoked, and peers may have access until that is "
                     "over: try again"));
  }
  revoked.is_changing = true;
  return std::move(revoked.region);
}

void FinishRevoke(const arena::Arena& arena, DeviceObjects* objects, uint32_t grant) {
  objects->grants[grant] = {};
  arena::StoreRelease(arena.grant(grant).length, uint64_t{0});
}

absl::Status RevokeGrant(const arena::Arena& arena, DeviceObjects* objects, uint32_t grant) {
  BATON_ASSIGN_OR_RETURN(auto region, BeginRevoke(objects, grant));
  region.reset();
  FinishRevoke(arena, objects, grant);
  return absl::OkStatus();
}

}  // namespace baton::driver
