#include "lib/driver/device_objects.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/status.h"
#include "lib/driver/completion_log.h"
#include "lib/driver/device_needs.h"
#include "lib/driver/regions.h"

namespace baton::driver {
namespace {

// Stores the limits where workers read them and the driver checks commits against them.
void TellLimits(const verbs::DeviceLimits& limits, arena::DriverMemoryHeader* header) {
  const auto bit = [](verbs::Opcode opcode) { return 1u << static_cast<uint32_t>(opcode); };
  header->max_message_bytes = limits.max_message_bytes;
  header->missing_opcodes = 0;
  if (!limits.atomics) {
    header->missing_opcodes |=
        bit(verbs::Opcode::kCompareAndSwap) | bit(verbs::Opcode::kFetchAndAdd);
  }
  if (!limits.send_with_invalidate) {
    header->missing_opcodes |= bit(verbs::Opcode::kSendWithInvalidate);
  }
  header->tells_depths = 1;
}

void ClearLogs(const arena::Arena& arena) {
  for (uint32_t i = 0; i < arena.shape().shards; ++i) {
    CompletionLog(arena, i).Clear();
    arena::PollSlot* const slots = arena.poll_slots(i);
    for (uint32_t j = 0; j < arena::kPollSlots; ++j) slots[j].wr_id = arena::kInvalidWrId;
  }
}

std::string NameOf(uint32_t grant) {
  const uint32_t region = arena::RegionOfGrant(grant);
  return region != 0 ? absl::StrCat("region ", region) : absl::StrCat("grant ", grant);
}

constexpr int kListenBacklog = 1024;

}  // namespace

const verbs::Listener* DeviceObjects::FindListener(const verbs::Address& address) const {
  for (const Listener& one : listeners) {
    if (one.asked.host == address.host &&
        (one.asked.port == address.port || one.listener->address().port == address.port)) {
      return one.listener.get();
    }
  }
  return nullptr;
}

std::vector<verbs::Address> DeviceObjects::ListenAddresses() const {
  std::vector<verbs::Address> addresses;
  for (const Listener& one : listeners) addresses.push_back(one.listener->address());
  return addresses;
}

void DeviceObjects::StopListening(const verbs::Address& address) {
  const verbs::Listener* const listener = FindListener(address);
  const auto found = std::find_if(listeners.begin(), listeners.end(), [&](const Listener& one) {
    return one.listener.get() == listener;
  });
  if (found == listeners.end()) return;
  listeners.erase(found);
}

ObjectCounts DeviceObjects::Count() const {
  ObjectCounts counts;
  for (const Connection& one : connections) counts.queue_pairs += one.queue_pair != nullptr;
  counts.completion_queues = static_cast<uint32_t>(completion_queues.size());
  counts.shared_receive_queues = static_cast<uint32_t>(shared_receive_queues.size());
  counts.memory_regions = (buffers != nullptr) + (spares != nullptr);
  for (const Grant& grant : grants) counts.memory_regions += !grant.is_free();
  return counts;
}

uint32_t DeviceObjects::ShardOf(const verbs::SharedReceiveQueue* queue) const {
  if (queue == nullptr) return kNoShard;
  for (uint32_t i = 0; i < shared_receive_queues.size(); ++i) {
    if (shared_receive_queues[i].get() == queue) return i;
  }
  return kNoShard;
}

verbs::QueuePairOptions DeviceObjects::QueuePairOptionsOf(const arena::Shape& shape,
                                                          uint32_t shard) const {
  verbs::QueuePairOptions options =
      QueuePairOptionsFor(NeedsOf(shape), completion_queues[shard].get());
  if (arena::HasSharedReceives(shape)) {
    options.shared_receive_queue = shared_receive_queues[shard].get();
  }
  return options;
}

absl::StatusOr<verbs::Address> ListenOnce(verbs::Device* device, DeviceObjects* objects,
                                          const verbs::Address& address) {
  if (const verbs::Listener* const existing = objects->FindListener(address)) {
    return existing->address();
  }
  BATON_ASSIGN_OR_RETURN(auto listener, device->Listen(address, kListenBacklog));
  const verbs::Address bound = listener->address();
  objects->listeners.push_back({std::move(listener), address});
  return bound;
}

absl::StatusOr<std::shared_ptr<DeviceObjects>> CreateDeviceObjects(arena::Arena* arena,
                                                                   verbs::Device* device,
                                                                   bool has_forked_drivers) {
  const arena::Shape& shape = arena->shape();
  const DeviceNeeds needs = NeedsOf(shape, has_forked_drivers);
  BATON_RETURN_IF_ERROR(CheckLimits(needs, device->limits(), device->name()));
  auto objects = std::make_shared<DeviceObjects>();
  objects->has_forked_drivers = has_forked_drivers;
  BATON_RETURN_IF_ERROR(
      device->NameMemory(arena->buffers(), shape.buffer_bytes, arena->buffers_fd()));
  const arena::RecoveryMemoryMap& recovery = arena->recovery_map();
  const uint64_t spares_end = recovery.SpareBuffer(0, 0) + recovery.spare_buffers_bytes;
  BATON_RETURN_IF_ERROR(device->NameMemory(arena->spare_buffer(0, 0) - recovery.SpareBuffer(0, 0),
                                           spares_end, arena->recovery_fd()));
  BATON_ASSIGN_OR_RETURN(
      objects->buffers,
      device->RegisterMemory(arena->buffers(), shape.buffer_bytes, verbs::kLocalWrite));
  BATON_ASSIGN_OR_RETURN(
      objects->spares,
      device->RegisterMemory(arena->spare_buffer(0, 0), arena->recovery_map().spare_buffers_bytes,
                             verbs::kLocalWrite));
  for (uint32_t i = 0; i < shape.shards; ++i) {
    BATON_ASSIGN_OR_RETURN(auto queue, device->CreateCompletionQueue(
                                           static_cast<uint32_t>(needs.completion_queue_entries)));
    objects->completion_queues.push_back(std::move(queue));
    if (!arena::HasSharedReceives(shape)) continue;
    BATON_ASSIGN_OR_RETURN(
        auto shared, device->CreateSharedReceiveQueue(
                         static_cast<uint32_t>(needs.shared_receive_requests), arena::kMaxSges));
    objects->shared_receive_queues.push_back(std::move(shared));
  }
  BATON_RETURN_IF_ERROR(CheckInline(needs, device, objects->completion_queues[0].get()));
  objects->connections.resize(shape.connections);
  objects->grants.resize(arena::kGrants + arena::kRegions);
  TellLimits(device->limits(), &arena->header());
  ClearLogs(*arena);
  return objects;
}

std::optional<uint32_t> DeviceObjects::Reserve(uint32_t first, uint32_t count, uint32_t* next,
                                               const GrantRange& range) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t number = (*next + i) % count;
    Grant& place = grants[first + number];
    if (!place.is_free()) continue;
    place = {nullptr, /*is_changing=*/true, range};
    *next = (number + 1) % count;
    return first + number;
  }
  return std::nullopt;
}

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
  // A successor may do again what a dead owner did, also revoke.
  const std::optional<uint32_t> grant = objects->Reserve(
      /*first=*/0, arena::kGrants, &objects->next_grant, {offset, length, access});
  if (!grant) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", arena::kGrants, " grants of the service are in use: revoke one"));
  }
  arena::GrantRecord& record = arena.grant(*grant);
  record.offset = offset;
  record.rkey = 0;
  record.access = access;
  arena::StoreRelease(record.length, length);
  return *grant;
}

GrantRange TakeRange(DeviceObjects* objects, uint32_t grant) {
  GrantRange& range = objects->grants[grant].range;
  GrantRange taken = range;
  range.memfd = nullptr;
  return taken;
}

absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> RegisterRange(const arena::Arena& arena,
                                                                   verbs::Device* device,
                                                                   const GrantRange& range) {
  if (range.descriptor != 0) return RegisterRegion(device, range);
  return device->RegisterMemory(arena.buffers() + range.offset, range.length, range.access);
}

absl::Status FinishGrant(const arena::Arena& arena, DeviceObjects* objects, uint32_t grant,
                         absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> region) {
  DeviceObjects::Grant& reserved = objects->grants[grant];
  if (!region.ok()) {
    FinishRevoke(arena, objects, grant);
    return region.status();
  }
  reserved.is_changing = false;
  reserved.region = *std::move(region);
  if (const uint32_t number = arena::RegionOfGrant(grant); number != 0) {
    PublishRegion(arena, number, reserved);
    return absl::OkStatus();
  }
  arena.grant(grant).rkey = reserved.region->rkey();
  return absl::OkStatus();
}

absl::Status RegisterGrant(const arena::Arena& arena, verbs::Device* device, DeviceObjects* objects,
                           uint32_t grant) {
  return FinishGrant(arena, objects, grant,
                     RegisterRange(arena, device, TakeRange(objects, grant)));
}

absl::StatusOr<std::unique_ptr<verbs::MemoryRegion>> BeginRevoke(const arena::Arena& arena,
                                                                 DeviceObjects* objects,
                                                                 uint32_t grant) {
  if (grant >= objects->grants.size() || objects->grants[grant].is_free()) {
    return absl::NotFoundError(absl::StrCat(NameOf(grant), " does not exist"));
  }
  DeviceObjects::Grant& revoked = objects->grants[grant];
  if (revoked.is_changing) {
    return absl::UnavailableError(
        absl::StrCat(NameOf(grant),
                     " is being registered or revoked, and peers may have access until that is "
                     "over: try again"));
  }
  if (const uint32_t number = arena::RegionOfGrant(grant); number != 0) {
    BATON_RETURN_IF_ERROR(WithdrawRegion(arena, number));
  }
  revoked.is_changing = true;
  return std::move(revoked.region);
}

void FinishRevoke(const arena::Arena& arena, DeviceObjects* objects, uint32_t grant) {
  objects->grants[grant] = {};
  if (arena::RegionOfGrant(grant) != 0) return;  // its record was cleared first
  arena::StoreRelease(arena.grant(grant).length, uint64_t{0});
}

absl::Status RevokeGrant(const arena::Arena& arena, DeviceObjects* objects, uint32_t grant) {
  BATON_ASSIGN_OR_RETURN(auto region, BeginRevoke(arena, objects, grant));
  region.reset();
  FinishRevoke(arena, objects, grant);
  return absl::OkStatus();
}

}  // namespace baton::driver
