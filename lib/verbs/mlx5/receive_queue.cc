#include "lib/verbs/mlx5/receive_queue.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"

namespace baton::verbs::mlx5 {

absl::Status ReceiveQueue::Check(const ReceiveRequest& request) const {
  if (request.sges.size() > scatter_gather()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sges: ", request.sges.size(), ", at most ", scatter_gather()));
  }
  for (const ScatterGather& sge : request.sges) BATON_RETURN_IF_ERROR(CheckLength(sge));
  return absl::OkStatus();
}

absl::Status ReceiveQueue::Post(absl::Span<const ReceiveRequest> requests, size_t* posted) {
  *posted = 0;
  absl::Status status;
  uint16_t counter = queued();
  for (const ReceiveRequest& request : requests) {
    if (status = Check(request); !status.ok()) break;
    if (static_cast<uint16_t>(counter - memory_.cursors->received) >= memory_.slot_count) {
      status = absl::ResourceExhaustedError(
          absl::StrCat("receive queue full: ", memory_.slot_count, " requests are outstanding"));
      break;
    }
    Write(request, counter & (memory_.slot_count - 1));
    ++counter;
    ++*posted;
  }
  if (*posted > 0) StoreRecord(memory_.record, counter);
  return status;
}

// A list that is shorter than its slot ends with a key that no region has. A buffer without bytes
// has no segment.
void ReceiveQueue::Write(const ReceiveRequest& request, uint32_t slot) {
  memory_.wr_ids[slot] = request.wr_id;
  uint8_t* at = memory_.slots + size_t{slot} * memory_.slot_bytes;
  const uint8_t* const end = at + memory_.slot_bytes;
  for (const ScatterGather& sge : request.sges) {
    if (sge.length == 0) continue;
    const mlx5_wqe_data_seg data = {htobe32(sge.length), htobe32(sge.lkey), htobe64(sge.address)};
    std::memcpy(at, &data, sizeof(data));
    at += kSegmentBytes;
  }
  if (at == end) return;
  const mlx5_wqe_data_seg none = {0, htobe32(MLX5_INVALID_LKEY), 0};
  std::memcpy(at, &none, sizeof(none));
}

}  // namespace baton::verbs::mlx5
