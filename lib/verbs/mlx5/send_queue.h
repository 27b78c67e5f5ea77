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

// Where a send queue lies. The device reads slots and record; all of it outlives the driver.
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

// Posts to a send queue. What is queued is in the record alone, so whoever drives the queue next,
// in whichever process, goes on from there: a request of a driver that was killed before its store
// to the record was never posted, and one behind that store is executed once, when RingAgain is
// called (mlx5.md, "What a killed driver leaves"). Every send is signalled.
//
// Thread-compatible; one process at a time.
class SendQueue {
 public:
  SendQueue(const SendQueueMemory& memory, uint32_t qp_number, const SendQueueLimits& limits,
            Doorbell* doorbell)
      : memory_(memory), number_(htobe32(qp_number << 8)), limits_(limits), doorbell_(doorbell) {}

  // Does what QueuePair::PostSend does, whatever the state of the queue pair: one store queues all
  // that are taken. Refuses an atomic that has not one buffer of 8 bytes (kInvalidArgument).
  absl::Status Post(absl::Span<const SendRequest> requests, size_t* posted);

  // The same in steps, for a driver that has its requests one by one. Nothing is posted before
  // Queue().
  struct Batch {
    uint16_t counter = 0;  // behind the last request that was added
    uint16_t last = 0;     // where that one begins
    uint16_t sent = 0;     // what has completed
  };
  Batch Begin() const { return {queued(), queued(), memory_.cursors->sent}; }
  // Writes a request behind those of the batch. Returns false where Post would refuse it.
  bool Add(const SendRequest& request, Batch* batch);
  // Add, inline, of a request that is no atomic and has one buffer, which is not to be inline and
  // has 1 to kInlineSegment - 1 bytes. `send` has functions with the names of SendRequest's
  // members, which are called only for what the opcode needs. Defined in posting.h.
  template <typename Send>
  bool AddPlain(const Send& send, const ScatterGather& sge, Batch* batch);
  // Posts a batch with one store, and rings. Requires that it is not empty.
  void Queue(const Batch& batch);

  // Tells the device of requests that a killed predecessor may have queued and not rung. The device
  // ignores it where there are none.
  void RingAgain();

  // Returns how many slots were written so far, modulo 2^16.
  uint16_t queued() const { return static_cast<uint16_t>(LoadRecord(memory_.record)); }

  // See verbs::QueuePair::LastQueued. Requires that CompletionQueue::Resume has brought the cursor
  // up to date.
  absl::StatusOr<std::optional<uint64_t>> LastQueued() const;

 private:
  // Returns a request's segments, including its control segment. 0: it is refused; WhyNot() has the
  // reason.
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

// Slots that a request takes, whatever is in it, with so many buffers or so many bytes inline.
uint32_t MostSlotsOf(const SendQueueLimits& limits);

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_SEND_QUEUE_H_
