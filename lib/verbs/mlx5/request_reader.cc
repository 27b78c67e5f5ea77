#include "lib/verbs/mlx5/request_reader.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"

namespace baton::verbs::mlx5 {
namespace {

constexpr uint32_t kMaxSlotsOfSend = SlotsFor(kMaxSegments);

using Bytes = std::array<uint8_t, kMaxSlotsOfSend * kSlotBytes>;

std::optional<Opcode> OpcodeFor(uint8_t code) {
  for (uint8_t opcode = 0; opcode < kOpcodeCount; ++opcode) {
    if (CodeOf(static_cast<Opcode>(opcode)) == code) return static_cast<Opcode>(opcode);
  }
  return std::nullopt;
}

template <typename Segment>
Segment SegmentAt(const Bytes& bytes, size_t at) {
  static_assert(sizeof(Segment) <= kSegmentBytes);
  Segment segment;
  std::memcpy(&segment, bytes.data() + at, sizeof(segment));
  return segment;
}

// Copies `length` bytes of the queue from the slot of `counter` on, around its end.
void Copy(const FoundSendQueue& queue, uint16_t counter, size_t length, Bytes* to) {
  const size_t all = size_t{queue.slot_count} * kSlotBytes;
  const size_t begin = size_t{counter & (queue.slot_count - 1)} * kSlotBytes;
  const size_t here = std::min(length, all - begin);
  std::memcpy(to->data(), queue.slots + begin, here);
  std::memcpy(to->data() + here, queue.slots, length - here);
}

absl::Status ReadInline(const Bytes& bytes, size_t at, size_t end, FoundSend* send) {
  const uint32_t total =
      be32toh(SegmentAt<mlx5_wqe_inl_data_seg>(bytes, at).byte_count) & ~kInlineSegment;
  at += sizeof(mlx5_wqe_inl_data_seg);
  if (total > end - at) {
    return absl::InvalidArgumentError(
        absl::StrCat("inline data of ", total, " bytes, and room for ", end - at));
  }
  send->inline_data = true;
  send->inline_bytes = total;
  std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(at), total, send->bytes.begin());
  return absl::OkStatus();
}

absl::Status ReadData(const Bytes& bytes, size_t at, size_t end, FoundSend* send) {
  for (; at < end; at += kSegmentBytes) {
    const auto data = SegmentAt<mlx5_wqe_data_seg>(bytes, at);
    const uint32_t length = be32toh(data.byte_count);
    if ((length & kInlineSegment) != 0) {
      if (send->sge_count > 0) {
        return absl::InvalidArgumentError("inline data behind a buffer");
      }
      // Inline data would not bound how much of the answer is stored.
      if (IsAnswered(send->opcode)) {
        return absl::InvalidArgumentError("inline data where an answer is to be stored");
      }
      return ReadInline(bytes, at, end, send);
    }
    send->sges[send->sge_count++] = {be64toh(data.addr), length, be32toh(data.lkey)};
  }
  return absl::OkStatus();
}

// Loads the link once, so a client that writes meanwhile changes nothing between a check and a use.
uint16_t NextOf(const uint8_t* slot) {
  const auto* const link = reinterpret_cast<const mlx5_wqe_srq_next_seg*>(slot);
  return be16toh(
      std::atomic_ref(const_cast<__be16&>(link->next_wqe_index)).load(std::memory_order_relaxed));
}

}  // namespace

absl::Status ReadSend(const FoundSendQueue& queue, uint16_t counter, uint16_t queued,
                      const SeenSlots& seen, FoundSend* send) {
  static_cast<FoundRequest&>(*send) = FoundRequest();
  const uint16_t ahead = static_cast<uint16_t>(queued - counter);
  if (ahead > queue.slot_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("the record is ", ahead, " slots ahead, of ", queue.slot_count));
  }
  Bytes bytes;
  Copy(queue, counter, kSegmentBytes, &bytes);
  const auto control = SegmentAt<mlx5_wqe_ctrl_seg>(bytes, 0);
  const uint32_t index_and_code = be32toh(control.opmod_idx_opcode);
  const uint32_t number_and_segments = be32toh(control.qpn_ds);
  if (const uint16_t index = static_cast<uint16_t>(index_and_code >> 8); index != counter) {
    return absl::InvalidArgumentError(
        absl::StrCat("the request at counter ", counter, " says ", index));
  }
  if (number_and_segments >> 8 != queue.qp_number) {
    return absl::InvalidArgumentError(absl::StrCat("a request of queue pair ", queue.qp_number,
                                                   " names ", number_and_segments >> 8));
  }
  const uint32_t segments = number_and_segments & kMaxSegments;
  const uint32_t slots = SlotsFor(segments);
  if (segments == 0 || slots > ahead) {
    return absl::InvalidArgumentError(
        absl::StrCat("a request of ", segments, " segments where ", ahead, " slots are queued"));
  }
  send->slots = slots;
  const std::optional<Opcode> opcode = OpcodeFor(static_cast<uint8_t>(index_and_code));
  if (!opcode) {
    return absl::InvalidArgumentError(absl::StrCat("opcode ", index_and_code & 0xff));
  }

  send->opcode = *opcode;
  send->fence = (control.fm_ce_se & MLX5_WQE_CTRL_FENCE) != 0;
  send->solicited = (control.fm_ce_se & MLX5_WQE_CTRL_SOLICITED) != 0;
  send->signalled = (control.fm_ce_se & MLX5_WQE_CTRL_CQ_UPDATE) != 0;
  send->immediate = be32toh(control.imm);

  Copy(queue, counter, size_t{slots} * kSlotBytes, &bytes);
  for (uint32_t i = 0; i < slots; ++i) {
    const uint16_t slot = static_cast<uint16_t>(counter + i);
    if (seen.IsUnchanged(slot, bytes.data() + size_t{i} * kSlotBytes)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the request at counter ", counter, " was changed after it was queued"));
  }
  const size_t end = size_t{segments} * kSegmentBytes;
  const size_t data_at =
      kSegmentBytes * (1 + (HasRemoteAddress(*opcode) ? 1 : 0) + (IsAtomic(*opcode) ? 1 : 0));
  if (data_at > end) {
    return absl::InvalidArgumentError(
        absl::StrCat("a request of ", segments, " segments, fewer than its opcode has"));
  }
  if (HasRemoteAddress(*opcode)) {
    const auto remote = SegmentAt<mlx5_wqe_raddr_seg>(bytes, kSegmentBytes);
    send->remote_address = be64toh(remote.raddr);
    send->rkey = be32toh(remote.rkey);
  }
  if (IsAtomic(*opcode)) {
    const auto operands = SegmentAt<mlx5_wqe_atomic_seg>(bytes, size_t{2} * kSegmentBytes);
    const bool swaps = *opcode == Opcode::kCompareAndSwap;
    send->swap = swaps ? be64toh(operands.swap_add) : 0;
    send->compare_add = be64toh(swaps ? operands.compare : operands.swap_add);
  }
  return ReadData(bytes, data_at, end, send);
}

size_t ReadReceive(const uint8_t* slot, uint32_t slot_bytes, absl::Span<ScatterGather> sges) {
  const size_t room = std::min<size_t>(slot_bytes / kSegmentBytes, sges.size());
  size_t count = 0;
  for (; count < room; ++count) {
    mlx5_wqe_data_seg data;
    std::memcpy(&data, slot + count * kSegmentBytes, sizeof(data));
    if (data.lkey == htobe32(MLX5_INVALID_LKEY)) break;
    sges[count] = {be64toh(data.addr), be32toh(data.byte_count), be32toh(data.lkey)};
  }
  return count;
}

// One slot is always left unposted, so that the last posted one names it.
absl::Status SharedReceiveReader::Check(uint32_t ahead) const {
  if (ahead >= queue_.slot_count) {
    return absl::InvalidArgumentError(absl::StrCat("the record is ", ahead, " receives ahead, of ",
                                                   queue_.slot_count - 1, " at most"));
  }
  if (next_ >= queue_.slot_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("receive ", taken_, " is in slot ", next_, " of ", queue_.slot_count));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SharedReceiveReader::Receive>> SharedReceiveReader::Take(
    absl::Span<ScatterGather> sges) {
  BATON_RETURN_IF_ERROR(error_);
  if (!returned_.empty()) {
    const uint16_t slot = returned_.back();
    returned_.pop_back();
    return Receive{slot, Read(slot, sges)};
  }
  const uint32_t ahead = Ahead();
  if (ahead == 0) return std::nullopt;
  if (error_ = Check(ahead); !error_.ok()) return error_;
  const Receive receive = {next_, Read(next_, sges)};
  next_ = NextOf(queue_.slots + size_t{next_} * queue_.slot_bytes);
  ++taken_;
  return receive;
}

size_t SharedReceiveReader::Read(uint16_t slot, absl::Span<ScatterGather> sges) const {
  return ReadReceive(queue_.slots + size_t{slot} * queue_.slot_bytes + kSegmentBytes,
                     queue_.slot_bytes - kSegmentBytes, sges);
}

uint32_t SharedReceiveReader::Waiting() {
  const uint32_t ahead = Ahead();
  if (error_.ok() && ahead > 0) error_ = Check(ahead);
  return error_.ok() ? ahead + static_cast<uint32_t>(returned_.size()) : 0;
}

}  // namespace baton::verbs::mlx5
