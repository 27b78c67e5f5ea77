#include "lib/verbs/mlx5/receive_queue.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
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

absl::StatusOr<std::optional<uint64_t>> ReceiveQueue::LastQueued() const {
  const uint16_t end = queued();
  const uint16_t received = LoadCursor(memory_.cursors->received);
  const auto outstanding = static_cast<uint16_t>(end - received);
  if (outstanding > memory_.slot_count) {
    return absl::DataLossError(absl::StrCat("the record of the receive queue says ", end, ", and ",
                                            received, " have completed of a queue of ",
                                            memory_.slot_count,
                                            ": another process has written over one of them"));
  }
  if (outstanding == 0) return std::nullopt;
  const uint32_t slot = static_cast<uint16_t>(end - 1) & (memory_.slot_count - 1);
  return std::atomic_ref(memory_.wr_ids[slot]).load();
}

}  // namespace baton::verbs::mlx5
