#ifndef LIB_VERBS_MLX5_RECEIVE_QUEUE_H_
#define LIB_VERBS_MLX5_RECEIVE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/verbs/mlx5/format.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::mlx5 {

// CheckBuffers returns kInvalidArgument if there are more than `most` buffers, or one is too long.
// WriteBuffers writes the segments of a receive's buffers to its slot, from `at` on. If they do not
// reach `end`, it ends the list with WriteListEnd.
absl::Status CheckBuffers(absl::Span<const ScatterGather> sges, uint32_t most);
void WriteBuffers(absl::Span<const ScatterGather> sges, uint8_t* at, const uint8_t* end);
inline void WriteListEnd(uint8_t* at) {
  const mlx5_wqe_data_seg none = {0, htobe32(MLX5_INVALID_LKEY), 0};
  std::memcpy(at, &none, sizeof(none));
}

// Where the receive queue of a queue pair lies. The device reads slots and record. All of the
// memory outlives the driver.
struct ReceiveQueueMemory {
  uint8_t* slots = nullptr;    // `slot_count` times `slot_bytes`, aligned to kSegmentBytes
  __be32* record = nullptr;    // MLX5_RCV_DBR of the queue pair: receives posted so far, 16 bits
  uint64_t* wr_ids = nullptr;  // one for each slot
  QueueCursors* cursors = nullptr;
  uint32_t slot_count = 0;  // a power of two, at most kMaxSlots
  uint32_t slot_bytes = 0;  // a power of two, at least kSegmentBytes: one segment for each buffer
};

// Posts to a receive queue. The store to its record is the doorbell, so a queued receive is posted.
// Thread-compatible; one process at a time.
class ReceiveQueue {
 public:
  explicit ReceiveQueue(const ReceiveQueueMemory& memory) : memory_(memory) {}

  // Does what QueuePair::PostReceive does. One store posts all accepted receives.
  absl::Status Post(absl::Span<const ReceiveRequest> requests, size_t* posted);

  // Do the same in steps: see SendQueue. AddPlain takes a receive of one buffer, which is not empty
  // and has less than kInlineSegment bytes; it is defined in posting.h.
  struct Batch {
    uint16_t counter = 0;   // behind the last receive that was added
    uint16_t received = 0;  // receives that have completed
  };
  Batch Begin() const { return {queued(), memory_.cursors->received}; }
  bool Add(const ReceiveRequest& request, Batch* batch);
  bool AddPlain(uint64_t wr_id, const ScatterGather& sge, Batch* batch);
  void Queue(const Batch& batch) { StoreRecord(memory_.record, batch.counter); }

  uint16_t queued() const { return static_cast<uint16_t>(LoadRecord(memory_.record)); }

  // See verbs::QueuePair::LastQueued. Requires that CompletionQueue::TakeOver has brought the
  // cursor up to date.
  absl::StatusOr<std::optional<uint64_t>> LastQueued() const;

 private:
  const ReceiveQueueMemory memory_;
};

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_RECEIVE_QUEUE_H_
