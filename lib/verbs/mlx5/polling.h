// The inline half of CompletionQueue, with which a driver logs completions directly from the
// queue's entries.
#ifndef LIB_VERBS_MLX5_POLLING_H_
#define LIB_VERBS_MLX5_POLLING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lib/verbs/mlx5/completion_queue.h"
#include "lib/verbs/mlx5/format.h"
#include "lib/verbs/mlx5/receive_queue.h"

namespace baton::verbs::mlx5 {

// The kind of an entry (MLX5_CQE_*) says this about its completion.
struct CompletionKind {
  bool send = false;
  bool receive = false;
  bool error = false;
  bool has_immediate = false;
  bool has_invalidate = false;
  CompletionOpcode opcode = CompletionOpcode::kReceive;  // of a receive
};

inline constexpr std::array<CompletionKind, 16> kCompletionKinds = [] {
  std::array<CompletionKind, 16> kinds;
  kinds[MLX5_CQE_REQ].send = kinds[MLX5_CQE_REQ_ERR].send = true;
  for (const uint8_t receive : {MLX5_CQE_RESP_WR_IMM, MLX5_CQE_RESP_SEND, MLX5_CQE_RESP_SEND_IMM,
                                MLX5_CQE_RESP_SEND_INV, MLX5_CQE_RESP_ERR}) {
    kinds[receive].receive = true;
  }
  kinds[MLX5_CQE_REQ_ERR].error = kinds[MLX5_CQE_RESP_ERR].error = true;
  kinds[MLX5_CQE_RESP_SEND_IMM].has_immediate = kinds[MLX5_CQE_RESP_WR_IMM].has_immediate = true;
  kinds[MLX5_CQE_RESP_SEND_INV].has_invalidate = true;
  kinds[MLX5_CQE_RESP_WR_IMM].opcode = CompletionOpcode::kReceiveWithImmediate;
  return kinds;
}();

inline const CompletionKind& KindOf(const mlx5_cqe64& entry) {
  return kCompletionKinds[entry.op_own >> 4];
}

// The opcode of a send (MLX5_OPCODE_*) says this about its completion.
constexpr CompletionOpcode CompletedBy(uint8_t code) {
  switch (code) {
    case MLX5_OPCODE_RDMA_WRITE:
    case MLX5_OPCODE_RDMA_WRITE_IMM:
      return CompletionOpcode::kWrite;
    case MLX5_OPCODE_RDMA_READ:
      return CompletionOpcode::kRead;
    case MLX5_OPCODE_ATOMIC_CS:
      return CompletionOpcode::kCompareAndSwap;
    case MLX5_OPCODE_ATOMIC_FA:
      return CompletionOpcode::kFetchAndAdd;
    default:
      return CompletionOpcode::kSend;
  }
}

// Tables for TakeEach: the PlainCompletion of each opcode of sends, and of each kind of receives.
// 0: the completion is not plain.
inline constexpr std::array<uint32_t, 256> kPlainSends = [] {
  std::array<uint32_t, 256> plain = {};
  for (const uint8_t code : {MLX5_OPCODE_SEND, MLX5_OPCODE_SEND_IMM, MLX5_OPCODE_SEND_INVAL,
                             MLX5_OPCODE_RDMA_WRITE, MLX5_OPCODE_RDMA_WRITE_IMM}) {
    plain[code] = PlainCompletion::Pack(CompletedBy(code), false, false);
  }
  return plain;
}();
inline constexpr std::array<uint32_t, 16> kPlainReceives = [] {
  std::array<uint32_t, 16> plain = {};
  for (size_t i = 0; i < plain.size(); ++i) {
    const CompletionKind& kind = kCompletionKinds[i];
    if (!kind.receive || kind.error) continue;
    plain[i] = PlainCompletion::Pack(kind.opcode, kind.has_immediate, kind.has_invalidate);
  }
  return plain;
}();

inline const mlx5_cqe64& CompletionQueue::Entry(uint32_t index) const {
  const uint8_t* const slot =
      memory_.entries + size_t{index & (memory_.entry_count - 1)} * memory_.entry_bytes;
  return *reinterpret_cast<const mlx5_cqe64*>(slot + memory_.entry_bytes - sizeof(mlx5_cqe64));
}

inline bool CompletionQueue::IsThere(const mlx5_cqe64& entry, uint32_t index) const {
  const uint8_t owner =
      std::atomic_ref(const_cast<uint8_t&>(entry.op_own)).load(std::memory_order_acquire);
  return owner >> 4 != MLX5_CQE_INVALID && (owner & 1) == OwnerOf(index, memory_.entry_count);
}

[[gnu::always_inline]] inline CompletionQueue::Found CompletionQueue::FindSend(
    const mlx5_cqe64& entry, const CompletingQueuePair& queue_pair, uint64_t taken) {
  const SendNote& note =
      queue_pair.send_notes[be16toh(entry.wqe_counter) & (queue_pair.send_slots - 1)];
  return {queue_pair.cursors, note.wr_id, taken, static_cast<uint16_t>(note.end)};
}

// Receives of one queue pair complete in order, `received` of them before this one.
[[gnu::always_inline]] inline CompletionQueue::Found CompletionQueue::FindReceive(
    const CompletingQueuePair& queue_pair, uint16_t received, uint64_t taken) {
  return {queue_pair.cursors, queue_pair.receive_wr_ids[received & (queue_pair.receive_slots - 1)],
          taken, static_cast<uint16_t>(received + 1), /*receive=*/true};
}

// Consumes `count` completions of one queue, of which `found` is the last. The cursor is stored
// last, so it is never ahead of the consumer index.
[[gnu::always_inline]] inline uint32_t CompletionQueue::Consume(const Found& found,
                                                                uint32_t consumed, uint32_t count) {
  consumed = (consumed + count) & kConsumedMask;
  if (found.shared != nullptr) found.shared->BeginFree(found.slot, number_, consumed);
  const uint64_t taken = found.taken | Pack({consumed, /*place=*/0,
                                             static_cast<uint8_t>(found.cursors->use & kUseMask),
                                             found.receive, found.cursor});
  std::atomic_ref(*memory_.taken).store(taken, std::memory_order_release);
  StoreRecord(memory_.record, consumed);
  std::atomic_ref(found.receive ? found.cursors->received : found.cursors->sent)
      .store(found.cursor, std::memory_order_release);
  if (found.shared != nullptr) found.shared->Settle(number_, consumed);
  return consumed;
}

// Takes a completion that is not plain. Returns how many were consumed for the caller, 0 or 1, or
// kNonsense or kNotKept.
template <typename Sink>
[[gnu::noinline]] int CompletionQueue::TakeOther(const mlx5_cqe64& entry, uint32_t* consumed,
                                                 Sink* sink) {
  Found found;
  Completion completion;
  switch (LookAt(entry, *consumed, &found, &completion)) {
    case Look::kNonsense:
      return kNonsense;
    case Look::kFormer:
      *consumed = PassOver(found, *consumed);
      return 0;
    case Look::kFound:
      break;
  }
  if (!sink->Keep(completion)) return kNotKept;
  // If the sink has destroyed a queue pair, its device has taken all completions that were in the
  // queue.
  const uint32_t now = LoadRecord(memory_.record) & kConsumedMask;
  *consumed = now == *consumed ? Consume(found, now, 1) : now;
  return 1;
}

class CompletionQueue::EntryWalk {
 public:
  EntryWalk(const CompletionQueueMemory& memory, uint32_t index)
      : at_(memory.entries + size_t{index & (memory.entry_count - 1)} * memory.entry_bytes +
            memory.entry_bytes - sizeof(mlx5_cqe64)),
        end_(memory.entries + size_t{memory.entry_count} * memory.entry_bytes + memory.entry_bytes -
             sizeof(mlx5_cqe64)),
        owner_(OwnerOf(index, memory.entry_count)) {}

  const mlx5_cqe64& entry() const { return *reinterpret_cast<const mlx5_cqe64*>(at_); }
  // Returns the entry's kind (MLX5_CQE_*), or MLX5_CQE_INVALID if the device has not written it.
  uint32_t kind() const {
    const uint8_t owner =
        std::atomic_ref(const_cast<uint8_t&>(entry().op_own)).load(std::memory_order_acquire);
    return (owner & 1) == owner_ ? owner >> 4 : MLX5_CQE_INVALID;
  }
  bool IsOf(__be32 number) const { return (entry().sop_drop_qpn & kNumberOfEntry) == number; }
  void Next(const CompletionQueueMemory& memory) {
    at_ += memory.entry_bytes;
    if (at_ != end_) [[likely]]
      return;
    at_ -= size_t{memory.entry_count} * memory.entry_bytes;
    owner_ ^= 1;
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
  uint8_t owner_;  // the owner bit of an entry that is written
};

// Takes plain completions of sends of `known` that follow each other, up to `most`, and consumes
// them together. Returns how many; 0: the first is not plain, or is not kept.
template <typename Sink>
[[gnu::always_inline]] inline int CompletionQueue::TakeSends(const Known& known, int most,
                                                             EntryWalk* walk, uint32_t* consumed,
                                                             Sink* sink) {
  const CompletingQueuePair queue_pair = known.queue_pair;
  const __be32 number = known.number;
  auto run = sink->Sends(FindSend(walk->entry(), queue_pair, known.taken).wr_id);
  int count = 0;
  uint16_t sent = 0;
  do {
    const mlx5_cqe64& entry = walk->entry();
    const uint32_t plain = kPlainSends[entry.sop_drop_qpn & ~kNumberOfEntry];
    const Found found = FindSend(entry, queue_pair, known.taken);
    if (plain == 0 || !run.Keep({found.wr_id, plain, be32toh(entry.byte_cnt), 0,
                                 queue_pair.number})) [[unlikely]] {
      break;
    }
    sent = found.cursor;
    walk->Next(memory_);
  } while (++count < most && walk->kind() == MLX5_CQE_REQ && walk->IsOf(number));
  if (count != 0) [[likely]] {
    const Found last = {queue_pair.cursors, 0, known.taken, sent};
    *consumed = Consume(last, *consumed, static_cast<uint32_t>(count));
  }
  return count;
}

// Does the same for receives from the queue pair's own queue.
template <typename Sink>
[[gnu::always_inline]] inline int CompletionQueue::TakeReceives(const Known& known, int most,
                                                                EntryWalk* walk, uint32_t* consumed,
                                                                Sink* sink) {
  const CompletingQueuePair queue_pair = known.queue_pair;
  const __be32 number = known.number;
  uint16_t received = queue_pair.cursors->received;
  auto run = sink->Receives(FindReceive(queue_pair, received, known.taken).wr_id);
  int count = 0;
  uint32_t plain = kPlainReceives[walk->kind()];
  do {
    const mlx5_cqe64& entry = walk->entry();
    if (!run.Keep({FindReceive(queue_pair, received, known.taken).wr_id, plain,
                   be32toh(entry.byte_cnt), be32toh(entry.imm_inval_pkey), queue_pair.number}))
        [[unlikely]] {
      break;
    }
    ++received;
    walk->Next(memory_);
    plain = kPlainReceives[walk->kind()];
  } while (++count < most && plain != 0 && walk->IsOf(number));
  if (count != 0) [[likely]] {
    const Found last = {queue_pair.cursors, 0, known.taken, received, /*receive=*/true};
    *consumed = Consume(last, *consumed, static_cast<uint32_t>(count));
  }
  return count;
}

template <typename Sink>
[[gnu::always_inline]] inline int CompletionQueue::TakeEach(int most, Sink* sink) {
  uint32_t consumed = LoadRecord(memory_.record) & kConsumedMask;
  EntryWalk walk(memory_, consumed);
  const bool may_have_former = MayHaveFormer();
  const Known* known = may_have_former ? nullptr : last_;
  uint32_t kind = walk.kind();
  if (kind != MLX5_CQE_INVALID) NoteEvent();
  int count = 0;
  for (; count < most && kind != MLX5_CQE_INVALID; kind = walk.kind()) {
    if (!may_have_former && (known == nullptr || !walk.IsOf(known->number))) [[unlikely]] {
      known = FindQueuePair(be32toh(walk.entry().sop_drop_qpn) & kNumberMask);
    }
    if (known != nullptr) [[likely]] {
      const int together = Sink::kTogether ? most - count : 1;
      int taken = 0;
      if (kind == MLX5_CQE_REQ) {
        taken = TakeSends(*known, together, &walk, &consumed, sink);
      } else if (kPlainReceives[kind] != 0 && known->queue_pair.receive_slots != 0) {
        taken = TakeReceives(*known, together, &walk, &consumed, sink);
      }
      count += taken;
      if (taken != 0) continue;
    }
    const int taken = TakeOther(walk.entry(), &consumed, sink);
    if (taken == kNonsense && count == 0) return kNonsense;
    if (taken < 0) break;
    count += taken;
    walk = EntryWalk(memory_, consumed);
    known = may_have_former ? nullptr : last_;
  }
  if (may_have_former) [[unlikely]]
    ForgetFormer(consumed);
  return count;
}

}  // namespace baton::verbs::mlx5

#endif  // LIB_VERBS_MLX5_POLLING_H_
