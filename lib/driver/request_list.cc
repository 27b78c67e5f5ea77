#include "lib/driver/request_list.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/arena/atomic_access.h"
#include "lib/arena/fetch.h"
#include "lib/arena/store_pair.h"
#include "lib/base/status_macros.h"

namespace baton::driver {
namespace {

using verbs::ScatterGather;
using verbs::SendRequest;

// A scatter-gather list is one message: its length travels in 31 bits.
constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 31;

// Out of the way of what is right, which is most of what comes.
template <typename... Args>
[[gnu::cold, gnu::noinline]] absl::Status Invalid(Args... args) {
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

namespace {

// These are in the way of every request. `request`: a WorkRequest, or the Head of one.
template <typename Request>
[[gnu::always_inline]] inline absl::Status CheckHead(const Request& request, bool receive,
                                                     const RequestLimits& limits) {
  if (request.opcode >= verbs::kOpcodeCount || (receive && request.opcode != 0)) {
    return Invalid("opcode: ", static_cast<int>(request.opcode), " is not one of this queue");
  }
  if (!receive && (limits.missing_opcodes >> request.opcode & 1) != 0) {
    return Invalid("opcode: the device has no ", NameOf(verbs::Opcode(request.opcode)));
  }
  if ((request.flags & ~arena::kRequestFlags) != 0) {
    return Invalid("flags: ", static_cast<int>(request.flags), " has unknown bits");
  }
  if (request.sge_count > arena::kMaxSges) {
    return Invalid("sge_count: ", static_cast<int>(request.sge_count), ", at most ",
                   arena::kMaxSges);
  }
  if (request.one_line != 0 && (request.one_line != 1 || request.sge_count != 1)) {
    return Invalid("one_line: ", static_cast<int>(request.one_line), " of a request with ",
                   static_cast<int>(request.sge_count), " buffers");
  }
  return absl::OkStatus();
}

[[gnu::always_inline]] inline absl::Status CheckRange(const arena::BufferRange& range, int i,
                                                      uint64_t buffer_bytes) {
  if (range.offset > buffer_bytes || range.length > buffer_bytes - range.offset) {
    return Invalid("sges[", i, "]: ", range.length, " bytes at ", range.offset,
                   " are not within the ", buffer_bytes, " bytes of the buffers");
  }
  return absl::OkStatus();
}

// `length`: of all ranges.
[[gnu::always_inline]] inline absl::Status CheckLength(uint64_t length, bool receive,
                                                       const RequestLimits& limits) {
  if (length > kMaxMessageBytes) return Invalid("sges: ", length, " bytes in one message");
  if (!receive && limits.max_message_bytes != 0 && length > limits.max_message_bytes) {
    return Invalid("sges: ", length, " bytes in one message, the device sends at most ",
                   limits.max_message_bytes);
  }
  return absl::OkStatus();
}

absl::Status CheckAtomic(uint8_t sge_count, uint64_t length, uint64_t remote_address) {
  if (length != 8 || sge_count != 1) return Invalid("sges: an atomic needs one of 8 bytes");
  if (remote_address % 8 != 0) {
    return Invalid("remote_address: ", remote_address, " of an atomic is not aligned");
  }
  return absl::OkStatus();
}

// Requests come out of another processor's cache: some of them on the way at once. To write, though
// they are read: what nobody shares with its worker, that one has back at once for the next
// request.
constexpr uint64_t kFetchAhead = 4;
void FetchRequest(const arena::WorkRequest& request, bool both_lines) {
  arena::FetchToWrite(&request);
  if (both_lines) arena::FetchToWrite(&request.sges);
}

arena::BufferRange Copy(const arena::BufferRange& shared) {
  return {arena::LoadRelaxed(shared.offset), arena::LoadRelaxed(shared.length), 0};
}

}  // namespace

// What all requests begin with. Each field is one read.
struct RequestList::Head {
  explicit Head(const arena::WorkRequest& shared)
      : opcode(arena::LoadRelaxed(shared.opcode)),
        flags(arena::LoadRelaxed(shared.flags)),
        sge_count(arena::LoadRelaxed(shared.sge_count)),
        one_line(arena::LoadRelaxed(shared.one_line)) {}

  uint8_t opcode;
  uint8_t flags;
  uint8_t sge_count;
  uint8_t one_line;
};

absl::Status CheckRequest(const arena::WorkRequest& request, bool receive,
                          const RequestLimits& limits) {
  BATON_RETURN_IF_ERROR(CheckHead(request, receive, limits));
  uint64_t length = 0;
  for (int i = 0; i < request.sge_count; ++i) {
    const arena::BufferRange& range = arena::RangeOf(request, static_cast<uint32_t>(i));
    BATON_RETURN_IF_ERROR(CheckRange(range, i, limits.buffer_bytes));
    length += range.length;
  }
  BATON_RETURN_IF_ERROR(CheckLength(length, receive, limits));
  if (receive || !IsAtomic(verbs::Opcode(request.opcode))) return absl::OkStatus();
  return CheckAtomic(request.sge_count, length, request.remote_address);
}

RequestList::RequestList(const arena::Arena& arena, uint32_t lkey, size_t capacity)
    : arena_(&arena),
      limits_(LimitsOf(arena)),
      base_(reinterpret_cast<uint64_t>(arena.buffers())),
      lkey_(lkey),
      max_inline_bytes_(arena.shape().max_inline_bytes),
      sends_(capacity),
      receives_(capacity),
      sges_(capacity * arena::kMaxSges) {}

[[gnu::always_inline]] inline absl::Status RequestList::CopyRange(const arena::BufferRange& shared,
                                                                  int i, uint64_t* length) {
  const arena::BufferRange range = Copy(shared);
  BATON_RETURN_IF_ERROR(CheckRange(range, i, limits_.buffer_bytes));
  static_assert(offsetof(ScatterGather, length) == 8 && offsetof(ScatterGather, lkey) == 12);
  arena::StorePair<offsetof(ScatterGather, address)>(sges_[sge_count_ + static_cast<size_t>(i)],
                                                     base_ + range.offset,
                                                     arena::TwoFields(range.length, lkey_));
  *length += range.length;
  return absl::OkStatus();
}

[[gnu::always_inline]] inline absl::Status RequestList::CopyRanges(const arena::WorkRequest& shared,
                                                                   const Head& head,
                                                                   uint64_t* length) {
  if (head.one_line != 0) return CopyRange(shared.only, 0, length);
  for (int i = 0; i < head.sge_count; ++i) {
    BATON_RETURN_IF_ERROR(CopyRange(shared.sges[i], i, length));
  }
  return absl::OkStatus();
}

[[gnu::always_inline]] inline absl::Status RequestList::CopySend(const arena::WorkRequest& shared,
                                                                 uint64_t wr_id) {
  const Head head(shared);
  BATON_RETURN_IF_ERROR(CheckHead(head, /*receive=*/false, limits_));
  uint64_t length = 0;
  BATON_RETURN_IF_ERROR(CopyRanges(shared, head, &length));
  BATON_RETURN_IF_ERROR(CheckLength(length, /*receive=*/false, limits_));
  const auto opcode = verbs::Opcode(head.opcode);
  const bool fence = (head.flags & arena::kRequestFence) != 0;
  const bool solicited = (head.flags & arena::kRequestSolicited) != 0;
  const bool inline_data =
      max_inline_bytes_ > 0 && length <= max_inline_bytes_ && !verbs::IsAnswered(opcode);
  const uint64_t remote_address = arena::LoadRelaxed(shared.remote_address);
  SendRequest& to = sends_[send_count_];
  static_assert(offsetof(SendRequest, opcode) == 8 && offsetof(SendRequest, fence) == 9 &&
                offsetof(SendRequest, solicited) == 10 && offsetof(SendRequest, inline_data) == 11);
  arena::StorePair<offsetof(SendRequest, wr_id)>(
      to, wr_id,
      arena::TwoFields(arena::FourBytes(head.opcode, fence, solicited, inline_data),
                       arena::LoadRelaxed(shared.immediate)));
  arena::StorePair<offsetof(SendRequest, remote_address)>(
      to, remote_address,
      arena::TwoFields(arena::LoadRelaxed(shared.rkey),
                       arena::LoadRelaxed(shared.invalidate_rkey)));
  to.sges = {sges_.data() + sge_count_, head.sge_count};
  if (IsAtomic(opcode)) {
    BATON_RETURN_IF_ERROR(CheckAtomic(head.sge_count, length, remote_address));
    to.compare_add = arena::LoadRelaxed(shared.compare_add);
    to.swap = arena::LoadRelaxed(shared.swap);
  }
  sge_count_ += head.sge_count;
  send_bytes_ += length;
  ++send_count_;
  return absl::OkStatus();
}

[[gnu::always_inline]] inline absl::Status RequestList::CopyReceive(
    const arena::WorkRequest& shared, uint64_t wr_id) {
  const Head head(shared);
  BATON_RETURN_IF_ERROR(CheckHead(head, /*receive=*/true, limits_));
  uint64_t length = 0;
  BATON_RETURN_IF_ERROR(CopyRanges(shared, head, &length));
  BATON_RETURN_IF_ERROR(CheckLength(length, /*receive=*/true, limits_));
  receives_[receive_count_++] = {wr_id, {sges_.data() + sge_count_, head.sge_count}};
  sge_count_ += head.sge_count;
  return absl::OkStatus();
}

absl::Status RequestList::AddSend(const arena::WorkRequest& shared, uint64_t wr_id) {
  return CopySend(shared, wr_id);
}

absl::Status RequestList::AddReceive(const arena::WorkRequest& shared, uint64_t wr_id) {
  return CopyReceive(shared, wr_id);
}

template <bool kReceive>
[[gnu::always_inline]] inline absl::Status RequestList::AddFromLog(uint32_t connection,
                                                                   uint32_t generation,
                                                                   uint64_t from, uint64_t to) {
  constexpr auto kDirection = kReceive ? arena::Direction::kReceive : arena::Direction::kSend;
  const uint64_t queue = arena::PackWrId(connection, generation, kDirection, 0);
  const auto request = [&](uint64_t sequence) -> const arena::WorkRequest& {
    return kReceive ? arena_->receive_request(connection, sequence)
                    : arena_->send_request(connection, sequence);
  };
  for (uint64_t sequence = from; sequence < std::min(to, from + kFetchAhead); ++sequence) {
    FetchRequest(request(sequence), /*both_lines=*/false);
  }
  size_t buffers = 0;
  for (uint64_t sequence = from; sequence < to; ++sequence) {
    // The next are most often like the last.
    if (sequence + kFetchAhead < to) FetchRequest(request(sequence + kFetchAhead), buffers > 1);
    const size_t buffers_before = sge_count_;
    const uint64_t wr_id = queue | arena::WrIdSequence(sequence);
    const absl::Status copied =
        kReceive ? CopyReceive(request(sequence), wr_id) : CopySend(request(sequence), wr_id);
    if (!copied.ok()) [[unlikely]] {
      return Invalid("connection ", connection, kReceive ? " receive " : " send ", sequence, ": ",
                     copied.message());
    }
    buffers = sge_count_ - buffers_before;
  }
  return absl::OkStatus();
}

absl::Status RequestList::AddSends(uint32_t connection, uint32_t generation, uint64_t from,
                                   uint64_t to) {
  return AddFromLog<false>(connection, generation, from, to);
}

absl::Status RequestList::AddReceives(uint32_t connection, uint32_t generation, uint64_t from,
                                      uint64_t to) {
  return AddFromLog<true>(connection, generation, from, to);
}

}  // namespace baton::driver
