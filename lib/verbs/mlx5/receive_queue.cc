#include "lib/verbs/mlx5/receive_queue.h"

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "lib/verbs/mlx5/posting.h"

namespace baton::verbs::mlx5 {
absl::Status CheckBuffers(absl::Span<const ScatterGather> sges, uint32_t most) {
  if (sges.size() > most) {
    return absl::InvalidArgumentError(absl::StrCat("sges: ", sges.size(), ", at most ", most));
  }
  for (const ScatterGather& sge : sges) BATON_RETURN_IF_ERROR(CheckLength(sge));
  return absl::OkStatus();
}

// A list that is shorter than its slot ends with a key that no region has. A buffer without bytes
// has no segment.
void WriteBuffers(absl::Span<const ScatterGather> sges, uint8_t* at, const uint8_t* end) {
  for (const ScatterGather& sge : sges) {
    if (sge.length == 0) continue;
    WriteData(at, sge);
    at += kSegmentBytes;
  }
  if (at != end) WriteListEnd(at);
}

bool ReceiveQueue::Add(const ReceiveRequest& request, Batch* batch) {
  if (static_cast<uint16_t>(batch->counter - batch->received) >= memory_.slot_count ||
      !CheckBuffers(request.sges, memory_.slot_bytes / kSegmentBytes).ok()) {
    return false;
  }
  const uint32_t slot = batch->counter & (memory_.slot_count - 1);
  memory_.wr_ids[slot] = request.wr_id;
  uint8_t* const at = memory_.slots + size_t{slot} * memory_.slot_bytes;
  WriteBuffers(request.sges, at, at + memory_.slot_bytes);
  ++batch->counter;
  return true;
}

absl::Status ReceiveQueue::Post(absl::Span<const ReceiveRequest> requests, size_t* posted) {
  Batch batch = Begin();
  *posted = 0;
  absl::Status status;
  for (const ReceiveRequest& request : requests) {
    if (!Add(request, &batch)) [[unlikely]] {
      status = CheckBuffers(request.sges, memory_.slot_bytes / kSegmentBytes);
      if (status.ok()) {
        status = absl::ResourceExhaustedError(
            absl::StrCat("receive queue full: ", memory_.slot_count, " requests are outstanding"));
      }
      break;
    }
    ++*posted;
  }
  if (*posted > 0) Queue(batch);
  return status;
}

}  // namespace baton::verbs::mlx5
