// The format of mlx5 devices' queues, beyond what infiniband/mlx5dv.h says. Numbers in them are
// big-endian.
#ifndef LIB_VERBS_MLX5_FORMAT_H_
#define LIB_VERBS_MLX5_FORMAT_H_

#include <endian.h>
#include <infiniband/mlx5dv.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::mlx5 {

inline constexpr uint32_t kSlotBytes = MLX5_SEND_WQE_BB;  // of a send queue
inline constexpr uint32_t kSegmentBytes = 16;             // of every segment of a request
// A request counts its segments, including the control segment, in six bits.
inline constexpr uint32_t kMaxSegments = 63;
inline constexpr uint32_t kSegmentsPerSlot = kSlotBytes / kSegmentBytes;
constexpr uint32_t SlotsFor(uint32_t segments) {
  return (segments + kSegmentsPerSlot - 1) / kSegmentsPerSlot;
}

inline constexpr uint32_t kNumberMask = 0xffffff;    // of queue pairs and completion queues
inline constexpr uint32_t kConsumedMask = 0xffffff;  // of completions consumed
inline constexpr uint32_t kMaxEntries = 1u << 23;  // of a completion queue: see mlx5.md, "Cursors"
inline constexpr uint32_t kAtomicBytes = 8;        // what an atomic reads and writes
inline constexpr uint32_t kMaxSlots = 1u << 15;    // of a queue, whose counter has 16 bits
inline constexpr uint32_t kInlineSegment =
    1u << 31;  // MLX5_INLINE_SEG, unsigned; no buffer is so long

// The device shares records and owner bytes. Each is loaded and stored as a whole. A reader of the
// new value also sees all that was written before the store.
inline uint32_t LoadRecord(const __be32* record) {
  return be32toh(std::atomic_ref(*const_cast<__be32*>(record)).load(std::memory_order_acquire));
}
inline void StoreRecord(__be32* record, uint32_t value) {
  std::atomic_ref(record[0]).store(htobe32(value), std::memory_order_release);
}

// Returns the owner bit that entry `index` has once it is written. `index` counts all entries that
// were ever written.
inline uint8_t OwnerOf(uint32_t index, uint32_t entries) { return (index & entries) != 0 ? 1 : 0; }

// MLX5_OPCODE_*.
constexpr uint8_t CodeOf(Opcode opcode) {
  switch (opcode) {
    case Opcode::kSend:
      return MLX5_OPCODE_SEND;
    case Opcode::kSendWithImmediate:
      return MLX5_OPCODE_SEND_IMM;
    case Opcode::kSendWithInvalidate:
      return MLX5_OPCODE_SEND_INVAL;
    case Opcode::kWrite:
      return MLX5_OPCODE_RDMA_WRITE;
    case Opcode::kWriteWithImmediate:
      return MLX5_OPCODE_RDMA_WRITE_IMM;
    case Opcode::kRead:
      return MLX5_OPCODE_RDMA_READ;
    case Opcode::kCompareAndSwap:
      return MLX5_OPCODE_ATOMIC_CS;
    case Opcode::kFetchAndAdd:
      return MLX5_OPCODE_ATOMIC_FA;
  }
  return MLX5_OPCODE_NOP;
}

constexpr bool HasRemoteAddress(Opcode opcode) {
  return opcode == Opcode::kWrite || opcode == Opcode::kWriteWithImmediate || IsAnswered(opcode);
}

// A buffer's length has 31 bits. The bit above them marks inline data.
inline absl::Status CheckLength(const ScatterGather& sge) {
  if (sge.length < kInlineSegment) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a buffer of ", sge.length, " bytes, at most ", kInlineSegment - 1));
}

// The cursors that a queue pair's driver keeps beside its queues, in memory that outlives it.
// `sent` and `received` are stored after the completion queue's consumer index, so they are never
// ahead of it: see mlx5.md, "Ours".
struct QueueCursors {
  uint32_t use = 0;       // how often the queue pair was reset
  uint16_t sent = 0;      // counter behind the last send that completed
  uint16_t received = 0;  // receives that completed
  uint32_t known = 0;     // kMaySend and kNoReads; 0: the device has to be asked for the state
  // Completion queue entries from these indices on belong to this use: see
  // CompletionQueue::NoteReset.
  uint32_t sends_begin = 0;
  uint32_t receives_begin = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(QueueCursors) == 24 && offsetof(QueueCursors, sent) == 4 &&
              offsetof(QueueCursors, received) == 6 && offsetof(QueueCursors, known) == 8 &&
              offsetof(QueueCursors, sends_begin) == 12);
inline constexpr uint32_t kMaySend = 1;  // it was ready to send or in the error state
inline constexpr uint32_t kNoReads = 2;  // its peer answers no READs and atomics

// Loads a cursor that another process may write to.
inline uint16_t LoadCursor(uint16_t& cursor) {
  return std::atomic_ref(cursor).load(std::memory_order_relaxed);
}

// The driver's note of a send, one for each slot of the queue. The driver writes the note of a
// request's first slot before it queues the request.
struct SendNote {
  uint64_t wr_id = 0;
  uint32_t end = 0;  // the counter behind the request, 16 bits
  uint32_t reserved = 0;
};
static_assert(sizeof(SendNote) == 16 && offsetof(SendNote, end) == 8);

// Translate MLX5_CQE_SYNDROME_* to CompletionStatus, as libmlx5 does (mlx5_handle_error_cqe in its
// cq.c), and back. An unknown syndrome is kGeneralError.
CompletionStatus StatusOf(uint8_t syndrome);
uint8_t SyndromeOf(CompletionStatus status);

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_FORMAT_H_
