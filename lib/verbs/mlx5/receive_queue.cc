#include "lib/verbs/mlx5/receive_queue.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"

namespace baton::verbs::mlx5 {
namespace {

// False: CheckBuffers says why not.
bool AreFine(absl::Span<const ScatterGather> sges, uint32_t most) {
  if (sges.size() > most) return false;
  for (const ScatterGather& sge : sges) {
    if (sge.length >= kInlineSegment) return false;
  }
  return true;
}

}  // namespace

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
    const mlx5_wqe_data_seg data = {htobe32(sge.length), htobe32(sge.lkey), htobe64(sge.address)};
    std::memcpy(at, &data, sizeof(data));
    at += kSegmentBytes;
  }
  if (at == end) return;
  const mlx5_wqe_data_seg none = {0, htobe32(MLX5_INVALID_LKEY), 0};
  std::memcpy(at, &none, sizeof(none));
}

absl::Status ReceiveQueue::Post(absl::Span<const ReceiveRequest> requests, size_t* posted) {
  *posted = 0;
  absl::Status status;
  uint16_t counter = queued();
  const uint16_t received = memory_.cursors->received;
  for (const ReceiveRequest& request : requests) {
    if (!AreFine(request.sges, memory_.slot_bytes / kSegmentBytes)) [[unlikely]] {
      status = CheckBuffers(request.sges, memory_.slot_bytes / kSegmentBytes);
      break;
    }
    if (static_cast<uint16_t>(counter - received) >= memory_.slot_count) [[unlikely]] {
      status = IsFull();
      break;
    }
    Write(request, counter & (memory_.slot_count - 1));
    ++counter;
    ++*posted;
  }
  if (*posted > 0) StoreRecord(memory_.record, counter);
  return status;
}

absl::Status ReceiveQueue::IsFull() const {
  return absl::ResourceExhaustedError(
      absl::StrCat("receive queue full: ", memory_.slot_count, " requests are outstanding"));
}

void ReceiveQueue::Write(const ReceiveRequest& request, uint32_t slot) {
  memory_.wr_ids[slot] = request.wr_id;
  uint8_t* const at = memory_.slots + size_t{slot} * memory_.slot_bytes;
  WriteBuffers(request.sges, at, at + memory_.slot_bytes);
}

}  // namespace baton::verbs::mlx5
