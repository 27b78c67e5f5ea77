#ifndef LIB_VERBS_MLX5_SEND_QUEUE_H_
#define LIB_VERBS_MLX5_SEND_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/verbs/mlx5/doorbell.h"
#include "lib/verbs/mlx5/format.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::mlx5 {

class Beginning;

// Where a send queue lies. The device reads slots and record. All of the memory outlives the
// driver.
struct SendQueueMemory {
  uint8_t* slots = nullptr;   // `slot_count` times kSlotBytes, so aligned
  __be32* record = nullptr;   // MLX5_SND_DBR of the queue pair: slots written so far, 16 bits
  SendNote* notes = nullptr;  // one for each slot
  QueueCursors* cursors = nullptr;
  uint32_t slot_count = 0;  // a power of two, at most kMaxSlots
};

struct SendQueueLimits {
  uint32_t scatter_gather = 1;
  uint32_t inline_bytes = 0;
};

// Posts to a send queue. The record alone says what is queued, so the next driver, in any process,
// continues from it. If a driver is killed before it stores the record, its request was never
// posted. If it is killed after that store, the request is executed once, when the successor has
// called RingAgain (mlx5.md, "What a killed driver leaves"). Every send is signalled.
//
// Thread-compatible; one process at a time.
class SendQueue {
 public:
  SendQueue(const SendQueueMemory& memory, uint32_t qp_number, const SendQueueLimits& limits,
            Doorbell* doorbell)
      : memory_(memory), number_(htobe32(qp_number << 8)), limits_(limits), doorbell_(doorbell) {}

  // Does what QueuePair::PostSend does, in any state of the queue pair. One store queues all
  // accepted requests. kInvalidArgument also for an atomic without exactly one buffer of 8 bytes.
  absl::Status Post(absl::Span<const SendRequest> requests, size_t* posted);

  // Do the same in steps, for a driver that has its requests one by one. Nothing is posted before
  // Queue().
  struct Batch {
    uint16_t counter = 0;  // behind the last request that was added
    uint16_t last = 0;     // where that one begins
    uint16_t sent = 0;     // the slots that have completed
  };
  Batch Begin() const { return {queued(), queued(), memory_.cursors->sent}; }
  // Writes a request behind those of the batch. Returns false if Post would refuse it.
  bool Add(const SendRequest& request, Batch* batch);
  // Does what Add does, inlined, for a request that is no atomic, has no inline data, and has one
  // buffer of 1 to kInlineSegment - 1 bytes. `send` has functions with the names of SendRequest's
  // members. Only those that the opcode needs are called. Defined in posting.h.
  template <typename Send>
  bool AddPlain(const Send& send, const ScatterGather& sge, Batch* batch);
  // Posts a batch with one store, and rings. Requires a batch that is not empty.
  void Queue(const Batch& batch);

  // Rings for requests that a killed predecessor may have queued without ringing. The device
  // ignores the ring if there are none.
  void RingAgain();

  // Returns false if all requests have completed. Requires that CompletionQueue::TakeOver has
  // brought the cursor up to date.
  bool has_outstanding() const { return queued() != LoadCursor(memory_.cursors->sent); }
  // Returns how many slots were written so far, modulo 2^16.
  uint16_t queued() const { return static_cast<uint16_t>(LoadRecord(memory_.record)); }

  // See verbs::QueuePair::LastQueued. Requires that CompletionQueue::TakeOver has brought the
  // cursor up to date.
  absl::StatusOr<std::optional<uint64_t>> LastQueued() const;

 private:
  // Returns a request's segments, including its control segment. 0: the request is refused;
  // WhyNot() returns the reason.
  uint32_t SegmentsOf(const SendRequest& request) const;
  absl::Status Check(const SendRequest& request) const;
  absl::Status WhyNot(const SendRequest& request, const Batch& batch) const;
  void Write(const SendRequest& request, uint16_t counter, uint32_t segments);
  void WriteControl(Beginning beginning, uint32_t how, uint32_t immediate, uint16_t counter,
                    uint32_t segments, uint8_t* at) const;
  void WriteInline(const SendRequest& request, size_t at);
  uint8_t* SegmentAt(size_t at) { return memory_.slots + (at & (Bytes() - 1)); }
  size_t Bytes() const { return size_t{memory_.slot_count} * kSlotBytes; }

  const SendQueueMemory memory_;
  const __be32 number_;  // as a control segment has it, before the number of segments
  const SendQueueLimits limits_;
  Doorbell* const doorbell_;
};

// Returns the most slots that a request within these limits can take.
uint32_t MostSlotsOf(const SendQueueLimits& limits);

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_SEND_QUEUE_H_
