#include "lib/verbs/mlx5/send_queue.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/verbs/mlx5/posting.h"

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

// A buffer without bytes has no segment.
uint32_t SendQueue::SegmentsOf(const SendRequest& request) const {
  if (!Check(request).ok()) return 0;
  uint32_t segments = BeginningOf(request.opcode).segments();
  if (request.inline_data) return segments + SegmentsFor(InlineBytes(request));
  for (const ScatterGather& sge : request.sges) segments += sge.length != 0 ? 1 : 0;
  return segments;
}

bool SendQueue::Add(const SendRequest& request, Batch* batch) {
  const uint32_t segments = SegmentsOf(request);
  const uint32_t slots = SlotsFor(segments);
  const auto taken = static_cast<uint16_t>(batch->counter - batch->sent);
  if (segments == 0 || taken + slots > memory_.slot_count) return false;
  Write(request, batch->counter, segments);
  batch->last = batch->counter;
  batch->counter = static_cast<uint16_t>(batch->counter + slots);
  return true;
}

void SendQueue::Queue(const Batch& batch) {
  StoreRecord(memory_.record, batch.counter);
  uint64_t bytes;
  std::memcpy(&bytes, SegmentAt(size_t{batch.last} * kSlotBytes), sizeof(bytes));
  doorbell_->Ring(bytes);
}

absl::Status SendQueue::Post(absl::Span<const SendRequest> requests, size_t* posted) {
  Batch batch = Begin();
  *posted = 0;
  absl::Status status;
  for (const SendRequest& request : requests) {
    if (!Add(request, &batch)) [[unlikely]] {
      status = WhyNot(request, batch);
      break;
    }
    ++*posted;
  }
  if (*posted > 0) Queue(batch);
  return status;
}

absl::Status SendQueue::WhyNot(const SendRequest& request, const Batch& batch) const {
  BATON_RETURN_IF_ERROR(Check(request));
  return absl::ResourceExhaustedError(
      absl::StrCat("send queue full: ", static_cast<uint16_t>(batch.counter - batch.sent), " of ",
                   memory_.slot_count, " slots are outstanding"));
}

// Rings with the producer index and an empty opcode, because it is not known where the last request
// began.
void SendQueue::RingAgain() {
  const __be32 words[] = {htobe32(uint32_t{queued()} << 8), number_};
  uint64_t bytes;
  static_assert(sizeof(words) == sizeof(bytes));
  std::memcpy(&bytes, words, sizeof(bytes));
  doorbell_->Ring(bytes);
}

// Only the note of a request's first slot is written, so the notes are followed from the oldest
// request on. Other processes can write them meanwhile, so each word is read once.
absl::StatusOr<std::optional<uint64_t>> SendQueue::LastQueued() const {
  const uint16_t end = queued();
  uint16_t counter = LoadCursor(memory_.cursors->sent);
  if (static_cast<uint16_t>(end - counter) > memory_.slot_count) {
    return absl::DataLossError(absl::StrCat(
        "the record of the send queue says ", end, ", and ", counter, " slots have completed of ",
        memory_.slot_count, ": another process has written over one of them"));
  }
  std::optional<uint64_t> last;
  while (counter != end) {
    SendNote& note = memory_.notes[counter & (memory_.slot_count - 1)];
    const auto behind = static_cast<uint16_t>(std::atomic_ref(note.end).load());
    const auto slots = static_cast<uint16_t>(behind - counter);
    if (slots == 0 || slots > static_cast<uint16_t>(end - counter)) {
      return absl::DataLossError(
          absl::StrCat("the note of the send in slot ", counter & (memory_.slot_count - 1),
                       " says that it ends at ", behind, ", and the queue ends at ", end,
                       ": another process has written over it"));
    }
    last = std::atomic_ref(note.wr_id).load();
    counter = behind;
  }
  return last;
}

void SendQueue::Write(const SendRequest& request, uint16_t counter, uint32_t segments) {
  const uint32_t slot = counter & (memory_.slot_count - 1);
  memory_.notes[slot] = {request.wr_id, static_cast<uint16_t>(counter + SlotsFor(segments)), 0};
  size_t at = size_t{slot} * kSlotBytes;
  const Beginning beginning = BeginningOf(request.opcode);
  uint32_t immediate = 0;
  if (beginning.carries_word()) {
    immediate = beginning.immediate() ? request.immediate : request.invalidate_rkey;
  }
  WriteControl(beginning, HowOf(request.fence, request.solicited), immediate, counter, segments,
               SegmentAt(at));
  at += kSegmentBytes;
  if (HasRemoteAddress(request.opcode)) {
    WriteRemote(SegmentAt(at), request.remote_address, request.rkey);
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
    WriteData(SegmentAt(at), sge);
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
