#include "lib/driver/request_list.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/status_macros.h"

namespace baton::driver {
namespace {

// A scatter-gather list is one message: its length travels in 31 bits.
constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 31;

// Out of the way of what is right, which is most of what comes.
template <typename... Args>
[[gnu::cold, gnu::noinline]] absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

absl::string_view NameOf(verbs::Opcode opcode) {
  const std::string_view name = verbs::OpcodeName(opcode);
  return {name.data(), name.size()};
}

}  // namespace

RequestLimits LimitsOf(const arena::Arena& arena) {
  const arena::DriverMemoryHeader& header = arena.header();
  return {arena.shape().buffer_bytes, header.max_message_bytes, header.missing_opcodes};
}

absl::Status CheckRequest(const arena::WorkRequest& request, bool receive,
                          const RequestLimits& limits) {
  if (request.opcode >= verbs::kOpcodeCount || (receive && request.opcode != 0)) {
    return Invalid("opcode: ", static_cast<int>(request.opcode), " is not one of this queue");
  }
  const auto opcode = verbs::Opcode(request.opcode);
  if (!receive && (limits.missing_opcodes >> request.opcode & 1) != 0) {
    return Invalid("opcode: the device has no ", NameOf(opcode));
  }
  if ((request.flags & ~arena::kRequestFlags) != 0) {
    return Invalid("flags: ", static_cast<int>(request.flags), " has unknown bits");
  }
  if (request.sge_count > arena::kMaxSges) {
    return Invalid("sge_count: ", static_cast<int>(request.sge_count), ", at most ",
                   arena::kMaxSges);
  }
  const uint64_t buffer_bytes = limits.buffer_bytes;
  uint64_t length = 0;
  for (int i = 0; i < request.sge_count; ++i) {
    const arena::BufferRange& range = request.sges[i];
    if (range.offset > buffer_bytes || range.length > buffer_bytes - range.offset) {
      return Invalid("sges[", i, "]: ", range.length, " bytes at ", range.offset,
                     " are not within the ", buffer_bytes, " bytes of the buffers");
    }
    length += range.length;
  }
  if (length > kMaxMessageBytes) return Invalid("sges: ", length, " bytes in one message");
  if (!receive && limits.max_message_bytes != 0 && length > limits.max_message_bytes) {
    return Invalid("sges: ", length, " bytes in one message, the device sends at most ",
                   limits.max_message_bytes);
  }
  if (!receive && IsAtomic(opcode)) {
    if (length != 8 || request.sge_count != 1)
      return Invalid("sges: an atomic needs one of 8 bytes");
    if (request.remote_address % 8 != 0) {
      return Invalid("remote_address: ", request.remote_address, " of an atomic is not aligned");
    }
  }
  return absl::OkStatus();
}

RequestList::RequestList(const arena::Arena& arena, uint32_t lkey, size_t capacity)
    : limits_(LimitsOf(arena)),
      base_(reinterpret_cast<uint64_t>(arena.buffers())),
      lkey_(lkey),
      max_inline_bytes_(arena.shape().max_inline_bytes),
      sends_(capacity),
      receives_(capacity),
      sges_(capacity * arena::kMaxSges) {}

absl::Span<const verbs::ScatterGather> RequestList::AddSges(const arena::WorkRequest& request,
                                                            uint64_t* length) {
  verbs::ScatterGather* const list = sges_.data() + sge_count_;
  for (int i = 0; i < request.sge_count; ++i) {
    list[i] = {base_ + request.sges[i].offset, request.sges[i].length, lkey_};
    *length += request.sges[i].length;
  }
  sge_count_ += request.sge_count;
  return {list, request.sge_count};
}

absl::Status RequestList::AddSend(const arena::WorkRequest& shared, uint64_t wr_id) {
  arena::WorkRequest from;
  arena::CopyOnce(shared, &from);
  BATON_RETURN_IF_ERROR(CheckRequest(from, /*receive=*/false, limits_));
  const auto opcode = verbs::Opcode(from.opcode);
  uint64_t length = 0;
  verbs::SendRequest& to = sends_[send_count_++];
  to.wr_id = wr_id;
  to.opcode = opcode;
  to.fence = (from.flags & arena::kRequestFence) != 0;
  to.solicited = (from.flags & arena::kRequestSolicited) != 0;
  to.immediate = from.immediate;
  to.invalidate_rkey = from.invalidate_rkey;
  to.remote_address = from.remote_address;
  to.rkey = from.rkey;
  to.compare_add = from.compare_add;
  to.swap = from.swap;
  to.sges = AddSges(from, &length);
  to.inline_data =
      max_inline_bytes_ > 0 && length <= max_inline_bytes_ && !verbs::IsAnswered(opcode);
  return absl::OkStatus();
}

absl::Status RequestList::AddReceive(const arena::WorkRequest& shared, uint64_t wr_id) {
  arena::WorkRequest from;
  arena::CopyOnce(shared, &from);
  BATON_RETURN_IF_ERROR(CheckRequest(from, /*receive=*/true, limits_));
  uint64_t length = 0;
  receives_[receive_count_++] = {wr_id, AddSges(from, &length)};
  return absl::OkStatus();
}

}  // namespace baton::driver
