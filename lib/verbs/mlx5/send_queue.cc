#include "lib/verbs/mlx5/send_queue.h"

#include <algorithm>
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

// Its control segment among them. A buffer without bytes has none.
uint32_t SegmentsOf(const SendRequest& request) {
  const uint32_t fixed =
      1 + (HasRemoteAddress(request.opcode) ? 1 : 0) + (IsAtomic(request.opcode) ? 1 : 0);
  if (request.inline_data) return fixed + SegmentsFor(InlineBytes(request));
  return fixed + static_cast<uint32_t>(
                     std::count_if(request.sges.begin(), request.sges.end(),
                                   [](const ScatterGather& sge) { return sge.length != 0; }));
}

constexpr uint32_t SlotsFor(uint32_t segments) {
  return (segments + kSegmentsPerSlot - 1) / kSegmentsPerSlot;
}

__be32 ImmediateOf(const SendRequest& request) {
  switch (request.opcode) {
    case Opcode::kSendWithImmediate:
    case Opcode::kWriteWithImmediate:
      return htobe32(request.immediate);
    case Opcode::kSendWithInvalidate:
      return htobe32(request.invalidate_rkey);
    default:
      return 0;
  }
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
  for (const SendRequest& request : requests) {
    if (status = Check(request); !status.ok()) break;
    const uint32_t segments = SegmentsOf(request);
    const uint32_t slots = SlotsFor(segments);
    const uint16_t taken = static_cast<uint16_t>(counter - memory_.cursors->sent);
    if (taken + slots > memory_.slot_count) {
      status = absl::ResourceExhaustedError(absl::StrCat(
          "send queue full: ", taken, " of ", memory_.slot_count, " slots are outstanding"));
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

// The producer index with an empty opcode: where the last request began is nowhere.
void SendQueue::RingAgain() {
  const __be32 words[] = {htobe32(uint32_t{queued()} << 8), htobe32(qp_number_ << 8)};
  uint64_t bytes;
  static_assert(sizeof(words) == sizeof(bytes));
  std::memcpy(&bytes, words, sizeof(bytes));
  doorbell_->Ring(bytes);
}

void SendQueue::Write(const SendRequest& request, uint16_t counter, uint32_t segments) {
  const uint32_t slot = counter & (memory_.slot_count - 1);
  memory_.notes[slot] = {request.wr_id, static_cast<uint16_t>(counter + SlotsFor(segments)), 0};

  size_t at = size_t{slot} * kSlotBytes;
  auto* const control = reinterpret_cast<mlx5_wqe_ctrl_seg*>(SegmentAt(at));
  *control = {};
  control->opmod_idx_opcode = htobe32(uint32_t{counter} << 8 | CodeOf(request.opcode));
  control->qpn_ds = htobe32(qp_number_ << 8 | segments);
  control->fm_ce_se =
      static_cast<uint8_t>(MLX5_WQE_CTRL_CQ_UPDATE | (request.fence ? MLX5_WQE_CTRL_FENCE : 0) |
                           (request.solicited ? MLX5_WQE_CTRL_SOLICITED : 0));
  control->imm = ImmediateOf(request);
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
    const mlx5_wqe_data_seg data = {htobe32(sge.length), htobe32(sge.lkey), htobe64(sge.address)};
    std::memcpy(SegmentAt(at), &data, sizeof(data));
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
