#ifndef LIB_VERBS_MLX5_SHARED_RECEIVE_READER_H_
#define LIB_VERBS_MLX5_SHARED_RECEIVE_READER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/verbs/mlx5/format.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::mlx5 {

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

#endif  // LIB_VERBS_MLX5_SHARED_RECEIVE_READER_H_
