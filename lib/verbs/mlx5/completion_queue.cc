#include "lib/verbs/mlx5/completion_queue.h"

#include <array>
#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "lib/verbs/mlx5/polling.h"
#include "lib/verbs/mlx5/receive_queue.h"

namespace baton::verbs::mlx5 {
namespace {

// Marks an index as noted, because 0 is an index, too.
constexpr uint32_t kNoted = 1u << 31;

// Null: the queue pair's sends, or receives, complete in another queue.
std::array<uint32_t*, 2> BeginsOf(const CompletingQueuePair& queue_pair) {
  QueueCursors* const cursors = queue_pair.cursors;
  return {queue_pair.sends_here ? &cursors->sends_begin : nullptr,
          queue_pair.receives_here ? &cursors->receives_begin : nullptr};
}

Completion Translate(const mlx5_cqe64& entry, uint64_t wr_id) {
  const uint32_t code_and_number = be32toh(entry.sop_drop_qpn);
  const CompletionKind& kind = KindOf(entry);
  Completion completion;
  completion.wr_id = wr_id;
  completion.has_immediate = kind.has_immediate;
  completion.has_invalidate = kind.has_invalidate;
  completion.opcode =
      kind.receive ? kind.opcode : CompletedBy(static_cast<uint8_t>(code_and_number >> 24));
  completion.immediate = be32toh(entry.imm_inval_pkey);
  const bool atomic = completion.opcode == CompletionOpcode::kCompareAndSwap ||
                      completion.opcode == CompletionOpcode::kFetchAndAdd;
  completion.byte_len = atomic ? kAtomicBytes : be32toh(entry.byte_cnt);
  completion.qp_number = code_and_number & kNumberMask;
  if (!kind.error) return completion;
  mlx5_err_cqe error;
  static_assert(sizeof(error) == sizeof(entry));
  std::memcpy(&error, &entry, sizeof(error));
  completion.status = StatusOf(error.syndrome);
  completion.vendor_error = error.vendor_err_synd;
  return completion;
}

// Writes the wr_id of a completion last. The successor of a killed driver finds no completion both
// in the slots and in the queue, except perhaps the last one in the slots.
class SlotFiller {
 public:
  static constexpr bool kTogether = false;
  struct Run {
    SlotFiller& filler;
    bool Keep(const PlainCompletion& plain) { return filler.Fill(plain); }
  };

  explicit SlotFiller(Completion* next) : next_(next) {}

  Run Sends(uint64_t) { return {*this}; }
  Run Receives(uint64_t) { return {*this}; }
  bool Keep(const Completion& completion) {
    Completion& slot = *next_++;
    constexpr size_t kBody = offsetof(Completion, status);
    std::memcpy(reinterpret_cast<uint8_t*>(&slot) + kBody,
                reinterpret_cast<const uint8_t*>(&completion) + kBody, sizeof(slot) - kBody);
    std::atomic_ref(slot.wr_id).store(completion.wr_id, std::memory_order_release);
    return true;
  }

 private:
  bool Fill(const PlainCompletion& plain) {
    Completion& slot = *next_++;
    slot.status = CompletionStatus::kSuccess;
    slot.opcode = CompletionOpcode(plain.what >> 16 & 0xff);
    slot.has_immediate = (plain.what >> 24 & 1) != 0;
    slot.has_invalidate = (plain.what >> 25 & 1) != 0;
    slot.byte_len = plain.byte_len;
    slot.immediate = plain.immediate;
    slot.qp_number = plain.qp_number;
    slot.vendor_error = 0;
    std::atomic_ref(slot.wr_id).store(plain.wr_id, std::memory_order_release);
    return true;
  }

  Completion* next_;
};

}  // namespace

void CompletionQueue::Add(const CompletingQueuePair& queue_pair) {
  TakenWord place;
  place.place = queue_pair.place;
  queue_pairs_[queue_pair.number] = {queue_pair, htobe32(queue_pair.number), Pack(place)};
  last_ = nullptr;
}

void CompletionQueue::Remove(uint32_t qp_number) {
  queue_pairs_.erase(qp_number);
  last_ = nullptr;
}

void CompletionQueue::TakeOver() {
  const uint32_t consumed = LoadRecord(memory_.record) & kConsumedMask;
  for (auto& [number, known] : queue_pairs_) {
    const CompletingQueuePair& queue_pair = known.queue_pair;
    if (queue_pair.shared != nullptr) queue_pair.shared->Settle(number_, consumed);
  }
  const TakenWord taken = Unpack(std::atomic_ref(*memory_.taken).load(std::memory_order_acquire));
  if (taken.consumed != consumed) return;
  for (auto& [number, known] : queue_pairs_) {
    if (known.queue_pair.place == taken.place) BringUpToDate(taken, known.queue_pair.cursors);
  }
}

// Another process may reset the queue pair meanwhile. That stores the next use before it clears the
// cursors. So a cursor that is of another use by now was 0, and is 0 again.
void CompletionQueue::BringUpToDate(const TakenWord& taken, QueueCursors* cursors) {
  std::atomic_ref cursor(taken.receive ? cursors->received : cursors->sent);
  const std::atomic_ref use(cursors->use);
  uint16_t seen = cursor.load(std::memory_order_acquire);
  if (seen == taken.cursor || (use.load() & kUseMask) != taken.use) return;
  if (!cursor.compare_exchange_strong(seen, taken.cursor)) return;
  if ((use.load() & kUseMask) == taken.use) return;
  uint16_t stored = taken.cursor;
  cursor.compare_exchange_strong(stored, 0);
}

// The few bits of the use that TakeOver compares come again after 128 resets. So at each reset
// `taken` gets those of the use before, which are neither the present one's nor the next one's.
void CompletionQueue::EndUse(const CompletingQueuePair& queue_pair) {
  std::atomic_ref word(*memory_.taken);
  uint64_t seen = word.load(std::memory_order_acquire);
  TakenWord taken = Unpack(seen);
  if (taken.place != queue_pair.place) return;
  taken.use = static_cast<uint8_t>((queue_pair.cursors->use - 1) & kUseMask);
  word.compare_exchange_strong(seen, Pack(taken), std::memory_order_acq_rel);
}

// Most entries are of the same queue pair as the entry before.
const CompletionQueue::Known* CompletionQueue::FindQueuePair(uint32_t number) {
  if (last_ != nullptr && last_->queue_pair.number == number) return last_;
  const auto at = queue_pairs_.find(number);
  return at == queue_pairs_.end() ? nullptr : last_ = &at->second;
}

// Receives of a shared queue complete in any order, so the entry names the slot. Whether it names
// the shared queue, too, depends on the version of the device's entries.
bool CompletionQueue::Find(const mlx5_cqe64& entry, const Known& known, Found* found) {
  const CompletingQueuePair& queue_pair = known.queue_pair;
  const CompletionKind& kind = KindOf(entry);
  if (kind.send) {
    *found = FindSend(entry, known.queue_pair, known.taken);
    return true;
  }
  if (!kind.receive || (queue_pair.shared == nullptr && queue_pair.receive_slots == 0)) {
    return false;
  }
  if (queue_pair.shared == nullptr) {
    *found = FindReceive(known.queue_pair, known.queue_pair.cursors->received, known.taken);
    return true;
  }
  found->shared = queue_pair.shared;
  found->slot = be16toh(entry.wqe_counter);
  if (!found->shared->MayComplete(found->slot)) return false;
  found->wr_id = found->shared->wr_id(found->slot);
  found->cursors = queue_pair.cursors;
  found->taken = known.taken;
  found->cursor = static_cast<uint16_t>(queue_pair.cursors->received + 1);
  found->receive = true;
  return true;
}

CompletionQueue::Look CompletionQueue::LookAt(const mlx5_cqe64& entry, uint32_t index, Found* found,
                                              Completion* completion) {
  const Known* const known = FindQueuePair(be32toh(entry.sop_drop_qpn) & kNumberMask);
  if (known == nullptr || !Find(entry, *known, found)) return Look::kNonsense;
  if (MayHaveFormer() && IsFormer(known->queue_pair, found->receive, index)) return Look::kFormer;
  *completion = Translate(entry, found->wr_id);
  return Look::kFound;
}

absl::Status CompletionQueue::WhyUnknown() {
  const mlx5_cqe64& entry = Entry(LoadRecord(memory_.record) & kConsumedMask);
  const uint32_t number = be32toh(entry.sop_drop_qpn) & kNumberMask;
  const Known* const known = FindQueuePair(number);
  if (known == nullptr) {
    return absl::DataLossError(
        absl::StrCat("a completion names queue pair ", number, ", which has none here"));
  }
  if (!KindOf(entry).receive) {
    return absl::DataLossError(absl::StrCat("a completion of queue pair ", number,
                                            " is of the unknown kind ", entry.op_own >> 4));
  }
  if (known->queue_pair.shared != nullptr) {
    return absl::DataLossError(absl::StrCat("a completion of queue pair ", number, " names slot ",
                                            be16toh(entry.wqe_counter),
                                            " of its shared queue, where no receive is"));
  }
  return absl::DataLossError(
      absl::StrCat("a receive of queue pair ", number, ", which has no receive queue, completed"));
}

// Requires a completion behind the last arm. The device has made the event of that arm, and ignores
// another arm of the same sequence. The caller must not have consumed the completion yet, or a
// killed driver's successor would not know that there was one.
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
  SlotFiller filler(taken.data());
  const int count = TakeEach(static_cast<int>(taken.size()), &filler);
  if (count == kNonsense) [[unlikely]]
    return WhyUnknown();
  return count;
}

// ---------------------------------------------------------------- completions of a former use

// Another process may consume entries meanwhile, and the device may write over those. An entry that
// was not there, and is still not consumed, is the end.
absl::StatusOr<uint32_t> CompletionQueue::FindEnd() const {
  constexpr int kTries = 100;  // a try fails only if a poll passes the end meanwhile
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
  const CompletingQueuePair& queue_pair = at->second.queue_pair;
  EndUse(queue_pair);
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

// Returns true if `begin` is the index of an entry behind that at `index`. Before the indices wrap
// around, ForgetFormer clears every `begin` that was passed.
bool CompletionQueue::IsAhead(uint32_t begin, uint32_t index) const {
  const uint32_t distance = (begin - index) & kConsumedMask;
  return (begin & kNoted) != 0 && distance != 0 && distance <= memory_.entry_count;
}

bool CompletionQueue::IsFormer(const CompletingQueuePair& queue_pair, bool receive,
                               uint32_t index) const {
  QueueCursors& cursors = *queue_pair.cursors;
  std::atomic_ref begin(receive ? cursors.receives_begin : cursors.sends_begin);
  return IsAhead(begin.load(std::memory_order_relaxed), index);
}

// Frees the slot of a shared receive, because a reset does not free it.
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
  for (auto& [number, known] : queue_pairs_) {
    for (uint32_t* const word : BeginsOf(known.queue_pair)) {
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
