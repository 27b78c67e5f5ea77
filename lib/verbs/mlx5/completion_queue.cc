#include "lib/verbs/mlx5/completion_queue.h"

#include <array>
#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "lib/verbs/mlx5/shared_receive_queue.h"
#include "lib/verbs/mlx5/syndrome.h"

namespace baton::verbs::mlx5 {
namespace {

// Of an index that was noted: 0 is an index, too.
constexpr uint32_t kNoted = 1u << 31;

// Null: what completes in another queue.
std::array<uint32_t*, 2> BeginsOf(const CompletingQueuePair& queue_pair) {
  QueueCursors* const cursors = queue_pair.cursors;
  return {queue_pair.sends_here ? &cursors->sends_begin : nullptr,
          queue_pair.receives_here ? &cursors->receives_begin : nullptr};
}

// An entry's kind tells this of it.
struct alignas(8) Kind {
  bool send = false;
  bool receive = false;
  bool error = false;
  bool has_immediate = false;
  bool has_invalidate = false;
  CompletionOpcode opcode = CompletionOpcode::kReceive;  // of a receive
};

constexpr std::array<Kind, 16> kKinds = [] {
  std::array<Kind, 16> kinds;
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

const Kind& KindOf(const mlx5_cqe64& entry) { return kKinds[entry.op_own >> 4]; }

CompletionOpcode SentBy(uint8_t code) {
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

}  // namespace

void CompletionQueue::Add(const CompletingQueuePair& queue_pair) {
  queue_pairs_[queue_pair.number] = queue_pair;
  last_ = nullptr;
}

void CompletionQueue::Remove(uint32_t qp_number) {
  queue_pairs_.erase(qp_number);
  last_ = nullptr;
}

void CompletionQueue::Resume() {
  const uint32_t consumed = LoadRecord(memory_.record) & kConsumedMask;
  for (auto& [number, queue_pair] : queue_pairs_) {
    if (queue_pair.shared != nullptr) queue_pair.shared->Settle(number_, consumed);
  }
  const TakenWord taken = Unpack(std::atomic_ref(*memory_.taken).load(std::memory_order_acquire));
  if (taken.consumed != consumed) return;
  for (auto& [number, queue_pair] : queue_pairs_) {
    if (queue_pair.place != taken.place || (queue_pair.cursors->use & kUseMask) != taken.use) {
      continue;
    }
    SetCursor(queue_pair.cursors, taken.receive, taken.cursor);
  }
}

const mlx5_cqe64& CompletionQueue::Entry(uint32_t index) const {
  const uint8_t* const slot =
      memory_.entries + size_t{index & (memory_.entry_count - 1)} * memory_.entry_bytes;
  return *reinterpret_cast<const mlx5_cqe64*>(slot + memory_.entry_bytes - sizeof(mlx5_cqe64));
}

bool CompletionQueue::HasEntry(uint32_t index) const {
  const uint8_t owner =
      std::atomic_ref(const_cast<uint8_t&>(Entry(index).op_own)).load(std::memory_order_acquire);
  return owner >> 4 != MLX5_CQE_INVALID && (owner & 1) == OwnerOf(index, memory_.entry_count);
}

// Most entries are of the same queue pair as the entry before.
[[gnu::always_inline]] inline CompletingQueuePair* CompletionQueue::FindQueuePair(uint32_t number) {
  if (last_ != nullptr && last_->number == number) [[likely]]
    return last_;
  const auto at = queue_pairs_.find(number);
  return at == queue_pairs_.end() ? nullptr : last_ = &at->second;
}

// Returns false for an entry that makes no sense: WhyUnknown says why.
[[gnu::always_inline]] inline bool CompletionQueue::Find(const mlx5_cqe64& entry, Found* found) {
  CompletingQueuePair* const queue_pair = FindQueuePair(be32toh(entry.sop_drop_qpn) & kNumberMask);
  if (queue_pair == nullptr) return false;
  found->queue_pair = queue_pair;
  found->receive = KindOf(entry).receive;
  if (found->receive) return FindReceive(entry, found);
  if (!KindOf(entry).send) return false;
  const SendNote& note =
      queue_pair->send_notes[be16toh(entry.wqe_counter) & (queue_pair->send_slots - 1)];
  found->cursor = static_cast<uint16_t>(note.end);
  found->wr_id = note.wr_id;
  return true;
}

// Receives of one queue pair complete in order. Those of a shared queue do not, so the entry names
// the slot. Whether it names the shared queue, too, depends on the version of the device's entries.
[[gnu::always_inline]] inline bool CompletionQueue::FindReceive(const mlx5_cqe64& entry,
                                                                Found* found) {
  const CompletingQueuePair& queue_pair = *found->queue_pair;
  const uint16_t received = queue_pair.cursors->received;
  found->cursor = static_cast<uint16_t>(received + 1);
  if (queue_pair.shared != nullptr) {
    found->shared = queue_pair.shared;
    found->slot = be16toh(entry.wqe_counter);
    if (!found->shared->MayComplete(found->slot)) return false;
    found->wr_id = found->shared->wr_id(found->slot);
    return true;
  }
  if (queue_pair.receive_slots == 0) return false;
  found->wr_id = queue_pair.receive_wr_ids[received & (queue_pair.receive_slots - 1)];
  return true;
}

absl::Status CompletionQueue::WhyUnknown(const mlx5_cqe64& entry) {
  const uint32_t number = be32toh(entry.sop_drop_qpn) & kNumberMask;
  const CompletingQueuePair* const queue_pair = FindQueuePair(number);
  if (queue_pair == nullptr) {
    return absl::DataLossError(
        absl::StrCat("a completion names queue pair ", number, ", which has none here"));
  }
  if (!KindOf(entry).receive) {
    return absl::DataLossError(absl::StrCat("a completion of queue pair ", number,
                                            " is of the unknown kind ", entry.op_own >> 4));
  }
  if (queue_pair->shared != nullptr) {
    return absl::DataLossError(absl::StrCat("a completion of queue pair ", number, " names slot ",
                                            be16toh(entry.wqe_counter),
                                            " of its shared queue, where no receive is"));
  }
  return absl::DataLossError(
      absl::StrCat("a receive of queue pair ", number, ", which has no receive queue, completed"));
}

namespace {

// All but the wr_id.
[[gnu::always_inline]] inline void Translate(const mlx5_cqe64& entry, Completion* completion) {
  const uint32_t code_and_number = be32toh(entry.sop_drop_qpn);
  const Kind& kind = KindOf(entry);
  completion->status = CompletionStatus::kSuccess;
  completion->has_immediate = kind.has_immediate;
  completion->has_invalidate = kind.has_invalidate;
  completion->opcode = kind.opcode;
  completion->immediate = be32toh(entry.imm_inval_pkey);
  completion->byte_len = be32toh(entry.byte_cnt);
  completion->qp_number = code_and_number & kNumberMask;
  completion->vendor_error = 0;
  if (!kind.receive) {
    completion->opcode = SentBy(static_cast<uint8_t>(code_and_number >> 24));
    if (completion->opcode == CompletionOpcode::kCompareAndSwap ||
        completion->opcode == CompletionOpcode::kFetchAndAdd) {
      completion->byte_len = kAtomicBytes;
    }
  }
  if (!kind.error) [[likely]]
    return;
  mlx5_err_cqe error;
  static_assert(sizeof(error) == sizeof(entry));
  std::memcpy(&error, &entry, sizeof(error));
  completion->status = StatusOf(error.syndrome);
  completion->vendor_error = error.vendor_err_synd;
}

}  // namespace

// Never before what was written earlier: a cursor is not ahead of the consumer index.
void CompletionQueue::SetCursor(QueueCursors* cursors, bool receive, uint16_t value) {
  std::atomic_ref(receive ? cursors->received : cursors->sent)
      .store(value, std::memory_order_release);
}

// Requires a completion behind the last arm. The device has made the event of that arm, and ignores
// another arm of the same sequence. The caller has not consumed the completion yet: after a kill
// the heir would not know that there was one.
void CompletionQueue::NoteEvent() {
  std::atomic_ref arming(*memory_.arming);
  const uint32_t word = arming.load(std::memory_order_acquire);
  if ((word & kArmed) == 0) return;
  const uint32_t sequence = word & kSequenceMask;
  const uint32_t recorded = LoadRecord(memory_.arm_record) >> kSequenceShift & kSequenceMask;
  // If they differ, the driver was killed before it armed, and the sequence was not used.
  arming.store(recorded == sequence ? (sequence + 1) & kSequenceMask : sequence,
               std::memory_order_release);
}

void CompletionQueue::RequestNotification() {
  const uint32_t consumed = LoadRecord(memory_.record) & kConsumedMask;
  if (HasEntry(consumed)) NoteEvent();
  std::atomic_ref arming(*memory_.arming);
  const uint32_t sequence = arming.load(std::memory_order_acquire) & kSequenceMask;
  arming.store(sequence | kArmed, std::memory_order_release);
  const uint32_t value = ArmValue(sequence, consumed);
  StoreRecord(memory_.arm_record, value);
  const __be32 words[] = {htobe32(value), htobe32(number_)};
  uint64_t bytes;
  static_assert(sizeof(words) == sizeof(bytes));
  std::memcpy(&bytes, words, sizeof(bytes));
  doorbell_->Arm(bytes);
}

absl::StatusOr<int> CompletionQueue::Take(absl::Span<Completion> taken) {
  const bool may_have_former = MayHaveFormer();
  uint32_t consumed = LoadRecord(memory_.record) & kConsumedMask;
  int count = 0;
  while (static_cast<size_t>(count) < taken.size() && HasEntry(consumed)) {
    if (count == 0) NoteEvent();
    const mlx5_cqe64& entry = Entry(consumed);
    Found found;
    // The completions that were taken before this one are consumed, and the caller's.
    if (!Find(entry, &found)) [[unlikely]] {
      return count > 0 ? absl::StatusOr<int>(count) : WhyUnknown(entry);
    }
    if (may_have_former && IsFormer(found, consumed)) {
      consumed = PassOver(found, consumed);
      continue;
    }
    Completion& completion = taken[static_cast<size_t>(count++)];
    Translate(entry, &completion);
    std::atomic_ref(completion.wr_id).store(found.wr_id, std::memory_order_release);
    consumed = (consumed + 1) & kConsumedMask;
    if (found.shared != nullptr) found.shared->BeginFree(found.slot, number_, consumed);
    QueueCursors* const cursors = found.queue_pair->cursors;
    const TakenWord word = {consumed, found.queue_pair->place,
                            static_cast<uint8_t>(cursors->use & kUseMask), found.receive,
                            found.cursor};
    std::atomic_ref(*memory_.taken).store(Pack(word), std::memory_order_release);
    StoreRecord(memory_.record, consumed);
    SetCursor(cursors, found.receive, found.cursor);
    if (found.shared != nullptr) found.shared->Settle(number_, consumed);
  }
  if (may_have_former) ForgetFormer(consumed);
  return count;
}

// ---------------------------------------------------------------- completions of a former use

// A process that polls may consume entries meanwhile, and the device may write over those. An entry
// that was not there, and is not consumed, is the end.
absl::StatusOr<uint32_t> CompletionQueue::FindEnd() const {
  constexpr int kTries = 100;  // each ends unless the queue is polled once around meanwhile
  for (int i = 0; i < kTries; ++i) {
    const uint32_t begin = LoadRecord(memory_.record) & kConsumedMask;
    uint32_t count = 0;
    while (count < memory_.entry_count && HasEntry((begin + count) & kConsumedMask)) ++count;
    const uint32_t consumed = LoadRecord(memory_.record) & kConsumedMask;
    if (((consumed - begin) & kConsumedMask) <= count) return (begin + count) & kConsumedMask;
  }
  return absl::UnavailableError(
      absl::StrCat("completion queue ", number_,
                   " has no end: its record moves faster than completions "
                   "come"));
}

absl::Status CompletionQueue::NoteReset(uint32_t qp_number) {
  const auto at = queue_pairs_.find(qp_number);
  if (at == queue_pairs_.end() || memory_.former == nullptr) return absl::OkStatus();
  const CompletingQueuePair& queue_pair = at->second;
  BATON_ASSIGN_OR_RETURN(const uint32_t end, FindEnd());
  for (uint32_t* const begin : BeginsOf(queue_pair)) {
    if (begin != nullptr) std::atomic_ref(*begin).store(end | kNoted, std::memory_order_relaxed);
  }
  std::atomic_ref(*memory_.former).store(1, std::memory_order_release);
  return absl::OkStatus();
}

bool CompletionQueue::MayHaveFormer() const {
  return memory_.former != nullptr &&
         std::atomic_ref(*memory_.former).load(std::memory_order_acquire) != 0;
}

// `begin` is the index of an entry behind that at `index`. Nobody asks of one that was passed:
// ForgetFormer has cleared it before the indices have come round.
bool CompletionQueue::IsAhead(uint32_t begin, uint32_t index) const {
  const uint32_t distance = (begin - index) & kConsumedMask;
  return (begin & kNoted) != 0 && distance != 0 && distance <= memory_.entry_count;
}

bool CompletionQueue::IsFormer(const Found& found, uint32_t index) const {
  QueueCursors& cursors = *found.queue_pair->cursors;
  std::atomic_ref begin(found.receive ? cursors.receives_begin : cursors.sends_begin);
  return IsAhead(begin.load(std::memory_order_relaxed), index);
}

// The slot of a shared receive is free, whoever's use it was.
uint32_t CompletionQueue::PassOver(const Found& found, uint32_t index) {
  const uint32_t consumed = (index + 1) & kConsumedMask;
  if (found.shared != nullptr) found.shared->BeginFree(found.slot, number_, consumed);
  StoreRecord(memory_.record, consumed);
  if (found.shared != nullptr) found.shared->Settle(number_, consumed);
  return consumed;
}

// Another reset may be noted meanwhile, so `former` is cleared first.
void CompletionQueue::ForgetFormer(uint32_t consumed) {
  std::atomic_ref former(*memory_.former);
  former.exchange(0, std::memory_order_acq_rel);
  bool left = false;
  for (auto& [number, queue_pair] : queue_pairs_) {
    for (uint32_t* const word : BeginsOf(queue_pair)) {
      if (word == nullptr) continue;
      std::atomic_ref begin(*word);
      uint32_t seen = begin.load(std::memory_order_relaxed);
      if (IsAhead(seen, consumed)) {
        left = true;
      } else if (seen != 0) {
        begin.compare_exchange_strong(seen, 0, std::memory_order_relaxed);
      }
    }
  }
  if (left) former.store(1, std::memory_order_release);
}

}  // namespace baton::verbs::mlx5
