// A device reads the requests of its clients' queues with these functions. They refuse what no
// correct client writes.
#ifndef LIB_VERBS_MLX5_REQUEST_READER_H_
#define LIB_VERBS_MLX5_REQUEST_READER_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/verbs/mlx5/format.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::mlx5 {

// Copies of the slots of a client's send queue that its device has found queued and not executed
// yet. The client may no longer change these slots, because hardware may have fetched them.
//
// Keeps at most kMost slots of a queue. A queue whose requests are always executed as soon as they
// are rung takes no memory. Thread-compatible.
class SeenSlots {
 public:
  static constexpr uint16_t kMost = 16;

  // Keeps the slots of [next, queued) that it has not kept yet, and forgets those before `next`,
  // which were executed. `slot_count`, the number of slots at `slots`, is a power of two.
  void See(const uint8_t* slots, uint32_t slot_count, uint16_t next, uint16_t queued);

  // Returns false if the slot of `counter` was seen with other bytes than the kSlotBytes at `now`.
  bool IsUnchanged(uint16_t counter, const uint8_t* now) const;

 private:
  struct Kept {
    std::array<uint8_t, kSlotBytes> slots[kMost];
    uint16_t begin;  // counters of what is kept
    uint16_t end;
  };
  std::unique_ptr<Kept> kept_;
};

inline void SeenSlots::See(const uint8_t* slots, uint32_t slot_count, uint16_t next,
                           uint16_t queued) {
  const uint16_t ahead = static_cast<uint16_t>(queued - next);
  if (kept_ == nullptr) {
    if (ahead == 0 || ahead > slot_count) return;
    kept_ = std::make_unique<Kept>();
    kept_->begin = kept_->end = next;
  }
  uint16_t count = static_cast<uint16_t>(kept_->end - next);
  if (count > kMost) {  // all of it was executed
    count = 0;
    kept_->end = next;
  }
  kept_->begin = next;
  if (ahead > slot_count) return;
  for (; count < std::min(ahead, kMost); ++count, ++kept_->end) {
    const uint8_t* const slot = slots + size_t{kept_->end & (slot_count - 1)} * kSlotBytes;
    std::memcpy(kept_->slots[kept_->end % kMost].data(), slot, kSlotBytes);
  }
}

inline bool SeenSlots::IsUnchanged(uint16_t counter, const uint8_t* now) const {
  if (kept_ == nullptr) return true;
  const uint16_t at = static_cast<uint16_t>(counter - kept_->begin);
  if (at >= static_cast<uint16_t>(kept_->end - kept_->begin)) return true;
  return std::memcmp(kept_->slots[counter % kMost].data(), now, kSlotBytes) == 0;
}

// A send as a device finds it, without its buffers.
struct FoundRequest {
  Opcode opcode = Opcode::kSend;
  bool fence = false;
  bool solicited = false;
  bool signalled = false;
  bool inline_data = false;
  uint32_t immediate = 0;  // host order; or the rkey to invalidate
  uint32_t rkey = 0;
  uint64_t remote_address = 0;
  uint64_t compare_add = 0;
  uint64_t swap = 0;
  uint32_t slots = 0;         // that the request takes
  uint32_t sge_count = 0;     // of `sges`
  uint32_t inline_bytes = 0;  // of `bytes`
};

// A copy of a send that a device finds in a queue, so that later writes of the client change
// nothing. Only the first sge_count elements of `sges` and the first inline_bytes of `bytes` are
// valid.
struct FoundSend : FoundRequest {
  std::array<ScatterGather, kMaxSegments> sges;
  std::array<uint8_t, kMaxSegments * kSegmentBytes> bytes;
};

// A client's send queue as its device sees it.
struct FoundSendQueue {
  const uint8_t* slots = nullptr;
  uint32_t slot_count = 0;
  uint32_t qp_number = 0;
};

// A client's receive queue as its device sees it.
struct FoundReceiveQueue {
  const uint8_t* slots = nullptr;
  uint32_t slot_count = 0;
  uint32_t slot_bytes = 0;  // at least kSegmentBytes, at most kMaxSegments of these
};

// Copies and checks the request that begins at `counter`; `queued` is the record. kInvalidArgument:
// the record is further ahead than the queue is long, or the request names another counter or queue
// pair, has an opcode that is none of verbs.h, has segments beyond `queued` or fewer than its
// opcode needs, has inline data that it cannot have, or was changed since `seen` saw it.
// send->slots then says how many slots the request takes, or is 0 if that is unknown.
absl::Status ReadSend(const FoundSendQueue& queue, uint16_t counter, uint16_t queued,
                      const SeenSlots& seen, FoundSend* send);

// Copies the buffers of the receive in the slot at `slot`, which has room for one per segment, to
// `sges`. Returns how many there are.
size_t ReadReceive(const uint8_t* slot, uint32_t slot_bytes, absl::Span<ScatterGather> sges);

// A client's shared receive queue as its device sees it.
struct FoundSharedReceiveQueue {
  const uint8_t* slots = nullptr;  // aligned to kSegmentBytes
  const __be32* record = nullptr;  // receives posted so far, 16 bits
  uint32_t slot_count = 0;         // at least 2, at most kMaxSlots
  uint32_t slot_bytes = 0;         // at least two segments, at most kMaxSegments of these
};

// Takes receives from a shared queue as a device does: slot 0 is the first, and each slot names the
// next one.
//
// The client may write anything there at any time. Each value is copied once, and checked in the
// copy. If the client posts a slot twice, or makes the list a circle, its receives come several
// times. The record bounds how many are taken. Thread-compatible; one process at a time.
class SharedReceiveReader {
 public:
  struct Receive {
    uint16_t slot = 0;     // for the completion: below slot_count
    size_t sge_count = 0;  // buffers
  };

  explicit SharedReceiveReader(const FoundSharedReceiveQueue& queue) : queue_(queue) {}

  // Takes the next receive for a message that begins, and copies its buffers to `sges`, which has
  // room for slot_bytes / kSegmentBytes - 1. Returns nullopt if none is posted. kInvalidArgument:
  // the record is ahead by more than can be posted, or the list leads out of the queue. No receive
  // can be taken any more then (DeviceEventType::kSharedReceiveQueueFailed), and every later call
  // returns the same error.
  absl::StatusOr<std::optional<Receive>> Take(absl::Span<ScatterGather> sges);

  // Gives back a receive that no message has completed: the next Take returns its slot again.
  void Return(uint16_t slot) { returned_.push_back(slot); }

  // The error that Take() found.
  const absl::Status& error() const { return error_; }

  // Reads the record. Returns how many receives are posted and not taken, or 0 after an error.
  uint32_t Waiting();

 private:
  absl::Status Check(uint32_t ahead) const;
  size_t Read(uint16_t slot, absl::Span<ScatterGather> sges) const;
  uint16_t Ahead() const { return static_cast<uint16_t>(LoadRecord(queue_.record) - taken_); }

  const FoundSharedReceiveQueue queue_;
  uint16_t taken_ = 0;              // receives so far
  uint16_t next_ = 0;               // the slot that the last one has named, not checked yet
  std::vector<uint16_t> returned_;  // at most one of each queue pair
  absl::Status error_;
};

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_REQUEST_READER_H_
