// Inside the worker library: work requests in the form in which the driver reads them.
//
// The functions are inline because each message needs them.
#ifndef WORKER_WORK_REQUESTS_H_
#define WORKER_WORK_REQUESTS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/arena/arena.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/status.h"
#include "lib/verbs/verbs.h"
#include "worker/worker.h"

namespace baton {

// Kept out of the hot path, because most requests are right.
template <typename... Args>
[[gnu::cold, gnu::noinline]] absl::Status Invalid(Args... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}
[[gnu::cold, gnu::noinline]] inline absl::Status CannotDo(verbs::Opcode opcode) {
  return absl::UnimplementedError(
      absl::StrCat("opcode: the service's device has no ", std::string(verbs::OpcodeName(opcode))));
}

inline void StoreRange(const Buffer& buffer, arena::BufferRange* range) {
  arena::StorePair<offsetof(arena::BufferRange, offset)>(*range, buffer.offset,
                                                         arena::TwoFields(buffer.length, 0));
}

[[gnu::always_inline]] inline bool IsWithin(const Buffer& buffer, uint64_t buffer_bytes) {
  return buffer.offset <= buffer_bytes && buffer.length <= buffer_bytes - buffer.offset;
}

[[gnu::cold, gnu::noinline]] inline absl::Status Outside(size_t i, const Buffer& buffer,
                                                         const arena::Arena& arena) {
  const uint64_t all = arena.shape().buffer_bytes;
  if (!IsWithin(buffer, all)) {
    return Invalid("buffers[", i, "]: ", buffer.length, " bytes at ", buffer.offset,
                   " are not within the service's ", all);
  }
  return Invalid("buffers[", i, "]: ", buffer.length, " bytes at ", buffer.offset,
                 " are neither within the ", arena::HeapOffset(arena.shape(), 0),
                 " that the application divides up nor within this shard's heap: a request names "
                 "the heap of no other shard");
}

// Called for a buffer that is not within the usable ones. `may_be_region`: the device only reads
// it.
[[gnu::cold, gnu::noinline]] inline absl::Status CheckRegion(size_t i, Buffer buffer,
                                                             const arena::Arena& arena,
                                                             bool may_be_region) {
  const uint32_t region = arena::RegionOf(buffer.offset);
  if (region == 0) return Outside(i, buffer, arena);
  if (!may_be_region) {
    return Invalid("buffers[", i, "]: region ", region,
                   " is for sends; what is received or read goes to the service's buffers");
  }
  if (arena.HasRegionWith({buffer.offset, buffer.length, 0})) return absl::OkStatus();
  return Invalid("buffers[", i, "]: ", buffer.length, " bytes at ",
                 buffer.offset - arena::RegionOffset(region), " are not within the ",
                 arena::LoadRelaxed(arena.region(region).length), " bytes of region ", region);
}

// `*length`, 0 before the call, becomes the bytes of all buffers. `may_be_regions`: see
// CheckRegion.
[[gnu::always_inline]] inline absl::Status FillBuffers(
    absl::Span<const Buffer> buffers, arena::UsableBuffers usable, const arena::Arena& arena,
    bool may_be_regions, arena::WorkRequest* request, uint64_t* length) {
  if (buffers.size() == 1) [[likely]] {
    const Buffer& buffer = buffers[0];
    if (!usable.Has(buffer.offset, buffer.length)) [[unlikely]] {
      BATON_RETURN_IF_ERROR(CheckRegion(0, buffer, arena, may_be_regions));
    }
    StoreRange(buffer, &request->only);
    StoreRange(buffer, &request->sges[0]);  // where workers of version 1 look for it
    *length = buffer.length;
    return absl::OkStatus();
  }
  if (buffers.size() > arena::kMaxSges) {
    return Invalid("buffers: ", buffers.size(), ", at most ", arena::kMaxSges);
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (!usable.Has(buffers[i].offset, buffers[i].length)) [[unlikely]] {
      BATON_RETURN_IF_ERROR(CheckRegion(i, buffers[i], arena, may_be_regions));
    }
    StoreRange(buffers[i], &request->sges[i]);
    *length += buffers[i].length;
  }
  return absl::OkStatus();
}

inline void FillHead(uint8_t opcode, uint8_t flags, absl::Span<const Buffer> buffers,
                     uint32_t immediate, uint64_t tag, arena::WorkRequest* request) {
  const auto count = static_cast<uint8_t>(buffers.size());
  const uint8_t one_line = count == 1 ? 1 : 0;
  static_assert(offsetof(arena::WorkRequest, tag) == 8);
  arena::StorePair<offsetof(arena::WorkRequest, opcode)>(
      *request, arena::TwoFields(arena::FourBytes(opcode, flags, count, one_line), immediate), tag);
}

[[gnu::always_inline]] inline absl::Status FillReceive(absl::Span<const Buffer> buffers,
                                                       uint64_t tag, arena::UsableBuffers usable,
                                                       const arena::Arena& arena,
                                                       arena::WorkRequest* request) {
  FillHead(/*opcode=*/0, /*flags=*/0, buffers, /*immediate=*/0, tag, request);
  uint64_t length = 0;
  return FillBuffers(buffers, usable, arena, /*may_be_regions=*/false, request, &length);
}

// Refuses requests that the service's device cannot do; an older driver does not report which.
// `length`: bytes of the message.
[[gnu::always_inline]] inline absl::Status CheckDevice(const SendWork& work, uint64_t length,
                                                       const arena::DriverMemoryHeader& header) {
  if ((header.missing_opcodes >> static_cast<uint32_t>(work.opcode) & 1) != 0) {
    return CannotDo(work.opcode);
  }
  if (header.max_message_bytes == 0 || length <= header.max_message_bytes) return absl::OkStatus();
  return Invalid("buffers: ", length, " bytes in one message, the service's device sends at most ",
                 header.max_message_bytes);
}

inline void FillRemote(const SendWork& work, arena::WorkRequest* request) {
  arena::StorePair<offsetof(arena::WorkRequest, remote_address)>(
      *request, work.remote_address, arena::TwoFields(work.rkey, work.invalidate_rkey));
  arena::StorePair<offsetof(arena::WorkRequest, compare_add)>(*request, work.compare_add,
                                                              work.swap);
}

[[gnu::always_inline]] inline absl::Status FillSend(const SendWork& work,
                                                    arena::UsableBuffers usable,
                                                    const arena::Arena& arena,
                                                    arena::WorkRequest* request) {
  uint64_t length = 0;
  const bool may_be_regions = !verbs::IsAnswered(work.opcode);
  BATON_RETURN_IF_ERROR(FillBuffers(work.buffers, usable, arena, may_be_regions, request, &length));
  if (static_cast<uint8_t>(work.opcode) >= verbs::kOpcodeCount) return Invalid("opcode: unknown");
  BATON_RETURN_IF_ERROR(CheckDevice(work, length, arena.header()));
  if (IsAtomic(work.opcode)) {
    if (work.buffers.size() != 1 || work.buffers[0].length != 8) {
      return Invalid("buffers: an atomic needs one of 8 bytes");
    }
    if (work.remote_address % 8 != 0) {
      return Invalid("remote_address: of an atomic is a multiple of 8");
    }
  }
  const uint32_t flags =
      (work.fence ? arena::kRequestFence : 0u) | (work.solicited ? arena::kRequestSolicited : 0u);
  FillHead(static_cast<uint8_t>(work.opcode), static_cast<uint8_t>(flags), work.buffers,
           work.immediate, work.tag, request);
  FillRemote(work, request);
  return absl::OkStatus();
}

// Fills in a request of one buffer, which the caller has checked. `head`: opcode, and flags in the
// next byte.
[[gnu::always_inline]] inline void FillPlain(uint32_t head, const Buffer& buffer,
                                             uint32_t immediate, uint64_t tag,
                                             arena::WorkRequest* request) {
  constexpr uint8_t kSgeCount = 1, kOneLine = 1;
  constexpr uint32_t kOneBuffer = arena::FourBytes(0, 0, kSgeCount, kOneLine);
  arena::StorePair<offsetof(arena::WorkRequest, opcode)>(
      *request, arena::TwoFields(head | kOneBuffer, immediate), tag);
  StoreRange(buffer, &request->only);
  StoreRange(buffer, &request->sges[0]);  // where workers of version 1 look for it
}

// Returns a bit for each opcode that the device has and the peer need not answer (no READ, no
// atomic).
inline uint32_t PlainOpcodes(const arena::DriverMemoryHeader& device) {
  uint32_t plain = 0;
  for (uint8_t i = 0; i < verbs::kOpcodeCount; ++i) {
    if (!verbs::IsAnswered(verbs::Opcode(i))) plain |= 1u << i;
  }
  return plain & ~device.missing_opcodes;
}

// An older driver does not report the limit.
inline uint64_t MostSendBytes(const arena::DriverMemoryHeader& device) {
  return device.max_message_bytes == 0 ? ~uint64_t{0} : device.max_message_bytes;
}

}  // namespace baton

#endif  // WORKER_WORK_REQUESTS_H_
