// Inside the worker library: work requests in the form in which the driver reads them.
//
// Inline, since they are filled in for every message.
#ifndef WORKER_WORK_REQUESTS_H_
#define WORKER_WORK_REQUESTS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/arena/arena.h"
#include "lib/arena/store_pair.h"
#include "lib/base/status_macros.h"
#include "lib/verbs/verbs.h"
#include "worker/worker.h"

namespace baton {

// Out of the way of what is right, which is most of what comes.
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

// `length`: of all of them.
[[gnu::always_inline]] inline absl::Status FillBuffers(absl::Span<const Buffer> buffers,
                                                       uint64_t buffer_bytes,
                                                       arena::WorkRequest* request,
                                                       uint64_t* length) {
  if (buffers.size() > arena::kMaxSges) {
    return Invalid("buffers: ", buffers.size(), ", at most ", arena::kMaxSges);
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& buffer = buffers[i];
    if (buffer.offset > buffer_bytes || buffer.length > buffer_bytes - buffer.offset) {
      return Invalid("buffers[", i, "]: ", buffer.length, " bytes at ", buffer.offset,
                     " are not within the service's ", buffer_bytes);
    }
    StoreRange(buffer, &request->sges[i]);
    *length += buffer.length;
  }
  // Workers of version 1 look for it in `sges`.
  if (buffers.size() == 1) StoreRange(buffers[0], &request->only);
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
                                                       uint64_t tag, uint64_t buffer_bytes,
                                                       arena::WorkRequest* request) {
  FillHead(/*opcode=*/0, /*flags=*/0, buffers, /*immediate=*/0, tag, request);
  uint64_t length = 0;
  return FillBuffers(buffers, buffer_bytes, request, &length);
}

// What the service's device does not do. An older driver does not tell. `length`: of the message.
[[gnu::always_inline]] inline absl::Status CheckDevice(const SendWork& work, uint64_t length,
                                                       const arena::DriverMemoryHeader& header) {
  if ((header.missing_opcodes >> static_cast<uint32_t>(work.opcode) & 1) != 0) {
    return CannotDo(work.opcode);
  }
  if (header.max_message_bytes == 0 || length <= header.max_message_bytes) return absl::OkStatus();
  return Invalid("buffers: ", length, " bytes in one message, the service's device sends at most ",
                 header.max_message_bytes);
}

[[gnu::always_inline]] inline absl::Status FillSend(const SendWork& work, const arena::Arena& arena,
                                                    arena::WorkRequest* request) {
  uint64_t length = 0;
  BATON_RETURN_IF_ERROR(FillBuffers(work.buffers, arena.shape().buffer_bytes, request, &length));
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
  arena::StorePair<offsetof(arena::WorkRequest, remote_address)>(
      *request, work.remote_address, arena::TwoFields(work.rkey, work.invalidate_rkey));
  arena::StorePair<offsetof(arena::WorkRequest, compare_add)>(*request, work.compare_add,
                                                              work.swap);
  return absl::OkStatus();
}

}  // namespace baton

#endif  // WORKER_WORK_REQUESTS_H_
