#ifndef LIB_VERBS_MLX5_RECEIVE_QUEUE_H_
#define LIB_VERBS_MLX5_RECEIVE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/verbs/mlx5/commands.h"
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

// Where a shared receive queue lies. The device reads slots and record. All of the memory outlives
// the driver, and begins as zeros.
struct SharedReceiveQueueMemory {
  uint8_t* slots = nullptr;    // `slot_count` times `slot_bytes`, aligned to kSegmentBytes
  __be32* record = nullptr;    // receives posted so far, 16 bits
  uint64_t* freed = nullptr;   // the driver's: slots freed so far, see FreedWord
  uint64_t* wr_ids = nullptr;  // the driver's: one for each slot
  uint16_t* order = nullptr;   // the driver's: one for each slot, see SharedReceiveQueue
  uint32_t slot_count = 0;     // a power of two, at least 2, at most kMaxSlots
  uint32_t slot_bytes = 0;     // a power of two: a segment for the next slot, and one per buffer
};

// The word `freed`:
//   bits  0-15  slots freed so far
//        16-31  completions consumed, its low bits
//        32-55  number of a completion queue
//        63     1: a free is pending: one slot more is free if that queue has consumed so many
struct FreedWord {
  uint16_t freed = 0;
  uint16_t consumed = 0;
  uint32_t completion_queue = 0;
  bool pending = false;
};
constexpr uint64_t Pack(const FreedWord& word) {
  return word.freed | uint64_t{word.consumed} << 16 | uint64_t{word.completion_queue} << 32 |
         uint64_t{word.pending} << 63;
}
constexpr FreedWord UnpackFreed(uint64_t word) {
  return {static_cast<uint16_t>(word), static_cast<uint16_t>(word >> 16),
          static_cast<uint32_t>(word >> 32 & kNumberMask), word >> 63 != 0};
}

// A shared receive queue of mlx5's format, made by its device.
//
// All uses of slots form one sequence: 0, 1, ..., slot_count - 1, and then each slot as it is
// freed, so the sequence is slot_count + `freed` long. Receive c, counted from 0, lies in the slot
// at position c and names the slot at position c + 1 as the next. Therefore one slot is always left
// unposted. `order` has the positions from the record on, modulo slot_count. An entry is the slot
// XOR its place in `order`: zeros are the first positions.
//
// A kill after any instruction loses no slot and posts none twice, because the state of all slots
// follows from two records, and each changes by one store:
// - The store to the record posts. Before it, the device reads nothing that PostReceive has
//   written.
// - The store to the completion queue's record consumes a completion, and it frees the slot, too.
//   Before it, BeginFree has written the slot behind the end of the sequence, and has made `freed`
//   depend on that record. After it, Settle stores the resulting number.
// A list in the slots, which libmlx5 keeps, or a state for each slot would need a further store
// beside the one that consumes. A successor would have to find out between which of them the kill
// was.
//
// Thread-compatible; one process at a time. The successor of a killed driver calls TakeOver() after
// CompletionQueue::TakeOver() of all queues where its queue pairs complete, and before it posts or
// polls any of them.
class SharedReceiveQueue final : public verbs::SharedReceiveQueue {
 public:
  // `number` is the device's. `commands` outlives the queue.
  SharedReceiveQueue(const SharedReceiveQueueMemory& memory, uint32_t number, Commands* commands)
      : memory_(memory), number_(number), commands_(commands) {}

  uint32_t number() const { return number_; }

  // One store posts all accepted receives.
  absl::Status PostReceive(absl::Span<const ReceiveRequest> requests, size_t* posted) override;
  absl::Status ArmLimit(uint32_t limit) override { return commands_->ArmLimit(number_, limit); }

  void TakeOver();
  absl::StatusOr<bool> IsQueued(uint64_t wr_id) const override;
  // Returns how many receives were posted so far, modulo 2^16.
  uint16_t receives_queued() const { return static_cast<uint16_t>(LoadRecord(memory_.record)); }

  // CompletionQueue calls the rest, when a receive of this queue completes.

  // Returns whether a receive may be outstanding in `slot`.
  bool MayComplete(uint32_t slot) const;
  uint64_t wr_id(uint32_t slot) const { return memory_.wr_ids[slot]; }
  // Frees `slot` as soon as the record of the completion queue of this number is `consumed`.
  // Requires that all earlier frees are settled.
  void BeginFree(uint32_t slot, uint32_t completion_queue, uint32_t consumed);
  // Settles a pending free that depends on this completion queue, whose record is now `consumed`.
  void Settle(uint32_t completion_queue, uint32_t consumed);

 private:
  FreedWord Freed() const;
  void StoreFreed(const FreedWord& word);
  uint32_t Place(uint16_t position) const { return position & (memory_.slot_count - 1); }
  uint32_t SlotAt(uint16_t position) const;
  void Write(const ReceiveRequest& request, uint32_t slot, uint32_t next);

  const SharedReceiveQueueMemory memory_;
  const uint32_t number_;
  Commands* const commands_;
};

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_RECEIVE_QUEUE_H_
