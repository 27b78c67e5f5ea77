// Where our driver puts queue pairs, completion queues and shared receive queues in a file that it
// shares with the device. The device is given each place (lib/nic/control.md), so it does not
// depend on the layout. Drivers that follow each other do, also of different releases: a change is
// another BATON_INHERITED_VERSION (lib/verbs/inherited.h). The file outlives the driver, and begins
// as zeros.
#ifndef LIB_VERBS_MLX5_QUEUE_LAYOUT_H_
#define LIB_VERBS_MLX5_QUEUE_LAYOUT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "lib/verbs/mlx5/completion_queue.h"
#include "lib/verbs/mlx5/format.h"
#include "lib/verbs/mlx5/receive_queue.h"
#include "lib/verbs/mlx5/send_queue.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::mlx5 {

inline constexpr uint64_t kLineBytes = 64;
constexpr uint64_t WholeLines(uint64_t bytes) {
  return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

struct QueuePairMemory {
  SendQueueMemory sends;
  ReceiveQueueMemory receives;       // without slots: receives come from a shared queue
  __be32* records = nullptr;         // of both queues
  const uint32_t* failed = nullptr;  // the device stores 1 in the error state
};

// Offsets from a beginning that is a multiple of kLineBytes:
//   0x000  two records, big-endian: receives posted, slots of sends written
//   0x008  `failed`: the device stores 1 when the queue pair enters the error state, 0 when it
//          leaves it. Hardware leaves it alone
//   0x040  QueueCursors, of the driver alone
//   0x080  slots of sends, of 64 bytes
//   then, each at a multiple of 64: slots of receives; a SendNote for each slot of sends; a wr_id
//   for each slot of receives. The last two are of the driver alone.
struct QueuePairLayout {
  static constexpr uint64_t kRecords = 0x000;
  static constexpr uint64_t kFailed = 0x008;
  static constexpr uint64_t kCursors = 0x040;
  static constexpr uint64_t kSends = 0x080;

  uint32_t send_slots = 0;     // a power of two, at most kMaxSlots
  uint32_t receive_slots = 0;  // likewise; 0 with a shared receive queue
  uint32_t receive_bytes = 0;  // of a slot: a power of two, at least kSegmentBytes

  constexpr uint64_t receives() const { return kSends + uint64_t{send_slots} * kSlotBytes; }
  constexpr uint64_t notes() const {
    return receives() + WholeLines(uint64_t{receive_slots} * receive_bytes);
  }
  constexpr uint64_t wr_ids() const {
    return notes() + WholeLines(uint64_t{send_slots} * sizeof(SendNote));
  }
  constexpr uint64_t bytes() const {
    return wr_ids() + WholeLines(uint64_t{receive_slots} * sizeof(uint64_t));
  }

  SendQueueMemory SendsAt(uint8_t* begin) const;
  ReceiveQueueMemory ReceivesAt(uint8_t* begin) const;
  QueuePairMemory MemoryAt(uint8_t* begin) const;
  static const uint32_t* FailedAt(const uint8_t* begin) {
    return reinterpret_cast<const uint32_t*>(begin + kFailed);
  }
  CompletingQueuePair CompletingAt(uint8_t* begin, uint32_t number, uint16_t place) const;
};

// Returns a layout with room for what `options` asks. kInvalidArgument: mlx5's format does not have
// so many slots, or such long requests.
absl::StatusOr<QueuePairLayout> LayOut(const QueuePairOptions& options);
SendQueueLimits LimitsOf(const QueuePairOptions& options);

// Offsets from a beginning that is a multiple of kLineBytes:
//   0x000  two records, big-endian: completions consumed; how it was armed
//   0x008  `failed`: the device stores 1 when the queue is overrun. Hardware leaves it alone
//   0x040  `taken` (8 bytes), `arming` (4) and `former` (4), of the driver alone
//   0x080  entries
struct CompletionQueueLayout {
  static constexpr uint64_t kRecords = 0x000;
  static constexpr uint64_t kFailed = 0x008;
  static constexpr uint64_t kTaken = 0x040;
  static constexpr uint64_t kArming = 0x048;
  static constexpr uint64_t kFormer = 0x04c;
  static constexpr uint64_t kEntries = 0x080;

  uint32_t entry_count = 0;  // a power of two, at most kMaxEntries; 64 bytes each

  constexpr uint64_t bytes() const { return kEntries + uint64_t{entry_count} * sizeof(mlx5_cqe64); }

  CompletionQueueMemory At(uint8_t* begin) const;
};

// Offsets from a beginning that is a multiple of kLineBytes:
//   0x000  a record, big-endian: receives posted. A record of hardware is 8 bytes long
//   0x040  `freed`, of the driver alone
//   0x080  slots
//   then, each at a multiple of 64: a wr_id for each slot; an entry of `order` for each slot. Both
//   are of the driver alone.
struct SharedReceiveQueueLayout {
  static constexpr uint64_t kRecord = 0x000;
  static constexpr uint64_t kFreed = 0x040;
  static constexpr uint64_t kSlots = 0x080;

  uint32_t slot_count = 0;  // a power of two, at least 2, at most kMaxSlots
  uint32_t slot_bytes = 0;  // a power of two, at least two segments

  constexpr uint64_t wr_ids() const {
    return kSlots + WholeLines(uint64_t{slot_count} * slot_bytes);
  }
  constexpr uint64_t order() const {
    return wr_ids() + WholeLines(uint64_t{slot_count} * sizeof(uint64_t));
  }
  constexpr uint64_t bytes() const {
    return order() + WholeLines(uint64_t{slot_count} * sizeof(uint16_t));
  }

  SharedReceiveQueueMemory At(uint8_t* begin) const;
};

// Returns a layout with room for `entries` receives. kInvalidArgument: mlx5's format does not have
// so many, or such long ones.
absl::StatusOr<SharedReceiveQueueLayout> LayOutShared(uint32_t entries,
                                                      uint32_t max_scatter_gather);

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_QUEUE_LAYOUT_H_
