#include "lib/verbs/mlx5/send_queue.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"

namespace baton::verbs::mlx5 {
namespace {

uint64_t InlineBytes(const SendRequest& request) {
  uint64_t bytes = 0;
  for (const ScatterGather& sge : request.sges) bytes += sge.length;
  return bytes;
}

uint32_t SegmentsFor(uint64_t inline_bytes) {
  if (inline_bytes == 0) return 0;
  return static_cast<uint32_t>((sizeof(mlx5_wqe_inl_data_seg) + inline_bytes + kSegmentBytes - 1) /
                               kSegmentBytes);
}

constexpr uint32_t SlotsFor(uint32_t segments) {
  return (segments + kSegmentsPerSlot - 1) / kSegmentsPerSlot;
}

// An opcode tells this of the beginning of its requests.
struct Beginning {
  uint8_t code = 0;        // MLX5_OPCODE_*
  uint8_t segments = 0;    // before those of its data
  bool immediate = false;  // it carries one
  bool invalidate = false;
};

constexpr std::array<Beginning, kOpcodeCount> kBeginnings = [] {
  std::array<Beginning, kOpcodeCount> all;
  for (uint8_t i = 0; i < kOpcodeCount; ++i) {
    const auto opcode = static_cast<Opcode>(i);
    all[i].code = CodeOf(opcode);
    all[i].segments =
        static_cast<uint8_t>(1 + (HasRemoteAddress(opcode) ? 1 : 0) + (IsAtomic(opcode) ? 1 : 0));
    all[i].immediate =
        opcode == Opcode::kSendWithImmediate || opcode == Opcode::kWriteWithImmediate;
    all[i].invalidate = opcode == Opcode::kSendWithInvalidate;
  }
  return all;
}();

const Beginning& BeginningOf(const SendRequest& request) {
  return kBeginnings[static_cast<uint8_t>(request.opcode)];
}

uint32_t ImmediateOf(const SendRequest& request) {
  const Beginning& beginning = BeginningOf(request);
  if (beginning.immediate) return htobe32(request.immediate);
  return beginning.invalidate ? htobe32(request.invalidate_rkey) : 0;
}

// A segment of 16 bytes, by two words as they lie in memory.
void WriteSegment(uint8_t* at, uint64_t first, uint64_t second) {
  const uint64_t words[] = {first, second};
  static_assert(sizeof(words) == kSegmentBytes);
  std::memcpy(at, words, sizeof(words));
}

mlx5_wqe_atomic_seg AtomicOf(const SendRequest& request) {
  if (request.opcode == Opcode::kCompareAndSwap) {
    return {htobe64(request.swap), htobe64(request.compare_add)};
  }
  return {htobe64(request.compare_add), 0};
}

}  // namespace

uint32_t MostSlotsOf(const SendQueueLimits& limits) {
  constexpr uint32_t kControlAndAddress = 2;
  const uint32_t data = std::max({limits.scatter_gather, SegmentsFor(limits.inline_bytes),
                                  2u /* an atomic's operands and its buffer */});
  return SlotsFor(kControlAndAddress + data);
}

// Its control segment among them. A buffer without bytes has none. 0: Check says why the request is
// refused.
[[gnu::always_inline]] inline uint32_t SendQueue::SegmentsOf(const SendRequest& request) const {
  if (static_cast<uint8_t>(request.opcode) >= kOpcodeCount) return 0;
  uint32_t segments = BeginningOf(request).segments;
  if (request.inline_data) {
    return Check(request).ok() ? segments + SegmentsFor(InlineBytes(request)) : 0;
  }
  if (request.sges.size() > limits_.scatter_gather) return 0;
  for (const ScatterGather& sge : request.sges) {
    if (sge.length >= kInlineSegment) return 0;
    if (sge.length != 0) ++segments;
  }
  return IsAtomic(request.opcode) && !Check(request).ok() ? 0 : segments;
}

absl::Status SendQueue::Check(const SendRequest& request) const {
  if (static_cast<uint8_t>(request.opcode) >= kOpcodeCount) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown opcode ", static_cast<int>(request.opcode)));
  }
  if (request.inline_data) return CheckInline(request, limits_.inline_bytes);
  if (request.sges.size() > limits_.scatter_gather) {
    return absl::InvalidArgumentError(
        absl::StrCat("sges: ", request.sges.size(), ", at most ", limits_.scatter_gather));
  }
  for (const ScatterGather& sge : request.sges) BATON_RETURN_IF_ERROR(CheckLength(sge));
  if (IsAtomic(request.opcode) &&
      (request.sges.size() != 1 || request.sges[0].length != kAtomicBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(OpcodeName(request.opcode)), " without one buffer of 8 bytes"));
  }
  return absl::OkStatus();
}

absl::Status SendQueue::Post(absl::Span<const SendRequest> requests, size_t* posted) {
  *posted = 0;
  absl::Status status;
  const uint16_t before = queued();
  uint16_t counter = before;
  uint16_t last = before;
  const uint16_t sent = memory_.cursors->sent;
  for (const SendRequest& request : requests) {
    const uint32_t segments = SegmentsOf(request);
    if (segments == 0) [[unlikely]] {
      status = Check(request);
      break;
    }
    const uint32_t slots = SlotsFor(segments);
    const uint16_t taken = static_cast<uint16_t>(counter - sent);
    if (taken + slots > memory_.slot_count) [[unlikely]] {
      status = IsFull(taken);
      break;
    }
    Write(request, counter, segments);
    last = counter;
    counter = static_cast<uint16_t>(counter + slots);
    ++*posted;
  }
  if (*posted == 0) return status;
  StoreRecord(memory_.record, counter);
  uint64_t bytes;
  std::memcpy(&bytes, SegmentAt(size_t{last} * kSlotBytes), sizeof(bytes));
  doorbell_->Ring(bytes);
  return status;
}

absl::Status SendQueue::IsFull(uint32_t taken) const {
  return absl::ResourceExhaustedError(absl::StrCat("send queue full: ", taken, " of ",
                                                   memory_.slot_count, " slots are outstanding"));
}

// The producer index with an empty opcode: where the last request began is nowhere.
void SendQueue::RingAgain() {
  const __be32 words[] = {htobe32(uint32_t{queued()} << 8), htobe32(qp_number_ << 8)};
  uint64_t bytes;
  static_assert(sizeof(words) == sizeof(bytes));
  std::memcpy(&bytes, words, sizeof(bytes));
  doorbell_->Ring(bytes);
}

[[gnu::always_inline]] inline void SendQueue::Write(const SendRequest& request, uint16_t counter,
                                                    uint32_t segments) {
  const uint32_t slot = counter & (memory_.slot_count - 1);
  memory_.notes[slot] = {request.wr_id, static_cast<uint16_t>(counter + SlotsFor(segments)), 0};

  size_t at = size_t{slot} * kSlotBytes;
  static_assert(offsetof(mlx5_wqe_ctrl_seg, qpn_ds) == 4 &&
                offsetof(mlx5_wqe_ctrl_seg, fm_ce_se) == 11 &&
                offsetof(mlx5_wqe_ctrl_seg, imm) == 12);
  uint32_t how = MLX5_WQE_CTRL_CQ_UPDATE;
  if (request.fence) how |= MLX5_WQE_CTRL_FENCE;
  if (request.solicited) how |= MLX5_WQE_CTRL_SOLICITED;
  const uint32_t which = uint32_t{counter} << 8 | BeginningOf(request).code;
  WriteSegment(SegmentAt(at), htobe32(which) | uint64_t{htobe32(qp_number_ << 8 | segments)} << 32,
               how << 24 | uint64_t{ImmediateOf(request)} << 32);
  at += kSegmentBytes;
  if (HasRemoteAddress(request.opcode)) {
    const mlx5_wqe_raddr_seg remote = {htobe64(request.remote_address), htobe32(request.rkey), 0};
    std::memcpy(SegmentAt(at), &remote, sizeof(remote));
    at += kSegmentBytes;
  }
  if (IsAtomic(request.opcode)) {
    const mlx5_wqe_atomic_seg operands = AtomicOf(request);
    std::memcpy(SegmentAt(at), &operands, sizeof(operands));
    at += kSegmentBytes;
  }
  if (request.inline_data) return WriteInline(request, at);
  for (const ScatterGather& sge : request.sges) {
    if (sge.length == 0) continue;
    static_assert(offsetof(mlx5_wqe_data_seg, lkey) == 4 && offsetof(mlx5_wqe_data_seg, addr) == 8);
    WriteSegment(SegmentAt(at), htobe32(sge.length) | uint64_t{htobe32(sge.lkey)} << 32,
                 htobe64(sge.address));
    at += kSegmentBytes;
  }
}

// The bytes follow each other around the end of the queue.
void SendQueue::WriteInline(const SendRequest& request, size_t at) {
  const uint64_t total = InlineBytes(request);
  if (total == 0) return;
  const mlx5_wqe_inl_data_seg header = {htobe32(static_cast<uint32_t>(total) | kInlineSegment)};
  std::memcpy(SegmentAt(at), &header, sizeof(header));
  at += sizeof(header);
  for (const ScatterGather& sge : request.sges) {
    const auto* from = reinterpret_cast<const uint8_t*>(sge.address);
    for (size_t left = sge.length; left > 0;) {
      const size_t here = std::min(left, Bytes() - (at & (Bytes() - 1)));
      std::memcpy(SegmentAt(at), from, here);
      at += here;
      from += here;
      left -= here;
    }
  }
}

}  // namespace baton::verbs::mlx5
