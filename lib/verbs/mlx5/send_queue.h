#ifndef LIB_VERBS_MLX5_SEND_QUEUE_H_
#define LIB_VERBS_MLX5_SEND_QUEUE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "lib/verbs/mlx5/doorbell.h"
#include "lib/verbs/mlx5/format.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::mlx5 {

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
      : memory_(memory), qp_number_(qp_number), limits_(limits), doorbell_(doorbell) {}

  // Does what QueuePair::PostSend does, whatever the state of the queue pair: one store queues all
  // that are taken. Refuses an atomic that has not one buffer of 8 bytes (kInvalidArgument).
  absl::Status Post(absl::Span<const SendRequest> requests, size_t* posted);

  // Tells the device of requests that a killed predecessor may have queued and not rung. The device
  // ignores it where there are none.
  void RingAgain();

  // Returns how many slots were written so far, modulo 2^16.
  uint16_t queued() const { return static_cast<uint16_t>(LoadRecord(memory_.record)); }

 private:
  uint32_t SegmentsOf(const SendRequest& request) const;
  absl::Status Check(const SendRequest& request) const;
  absl::Status IsFull(uint32_t taken) const;
  void Write(const SendRequest& request, uint16_t counter, uint32_t segments);
  void WriteInline(const SendRequest& request, size_t at);
  uint8_t* SegmentAt(size_t at) { return memory_.slots + (at & (Bytes() - 1)); }
  size_t Bytes() const { return size_t{memory_.slot_count} * kSlotBytes; }

  const SendQueueMemory memory_;
  const uint32_t qp_number_;
  const SendQueueLimits limits_;
  Doorbell* const doorbell_;
};

// Slots that a request takes, whatever is in it, with so many buffers or so many bytes inline.
uint32_t MostSlotsOf(const SendQueueLimits& limits);

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_SEND_QUEUE_H_
