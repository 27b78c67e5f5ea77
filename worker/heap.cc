#include "worker/heap.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "lib/base/status.h"
#include "worker/work_requests.h"
#include "worker/worker_shards.h"

namespace baton {
namespace {

// Held memory is looked at again when so much more of the heap is held.
constexpr uint64_t kReclaimFraction = 8;

}  // namespace

Heap::Heap(Shard* shard)
    : shard_(shard),
      buffers_(shard->shards_->arena().buffers()),
      begin_(arena::HeapOffset(shard->shards_->arena().shape(), shard->index())),
      thread_(std::this_thread::get_id()),
      blocks_(shard->shards_->arena().shape().heap_pages) {
  staged_.reserve(kMaxTransactionSteps);
  changed_.reserve(arena::kMaxTransactionEntries * arena::kHeapChangesPerEntry);
}

// The heap is loaded by its first use in an epoch, so that a takeover does not wait for it.
absl::Status Heap::Prepare() {
  if (std::this_thread::get_id() != thread_) {
    return absl::FailedPreconditionError(
        "the heap is used by another thread than the one that called Attach");
  }
  const uint64_t epoch = shard_->epoch();
  if (epoch == 0) {
    return absl::AbortedError(absl::StrCat("shard ", shard_->index(), " is not ours any more"));
  }
  if (loaded_epoch_ == epoch) return damage_;
  ForgetStaged();
  untold_ = false;
  const auto in_use = [this](HeapBlocks::VisitRange visit) { ForEachInUse(visit); };
  damage_ = blocks_.Load(shard_->shards_->arena().heap(shard_->index()), in_use);
  PlanReclaim();
  loaded_epoch_ = epoch;
  if (damage_.ok()) TellTotals();
  return damage_;
}

void Heap::PlanReclaim() {
  reclaim_at_ = blocks_.held_bytes() + blocks_.bytes() / kReclaimFraction;
}

void Heap::ForEachInUse(HeapBlocks::VisitRange visit) const {
  const uint64_t bytes = blocks_.bytes();
  shard_->ForEachRangeInUse([&](uint64_t offset, uint64_t length) {
    const uint64_t begin = std::max(offset, begin_);
    const uint64_t end = std::min(offset + length, begin_ + bytes);
    if (begin < end) visit(begin - begin_, end - begin);
  });
}

Buffer Heap::BufferOf(const HeapBlocks::Object& object, uint64_t length) const {
  return {begin_ + object.offset, static_cast<uint32_t>(std::min<uint64_t>(length, UINT32_MAX))};
}

absl::StatusOr<HeapBlocks::Object> Heap::Take(uint64_t bytes, uint32_t alignment, bool kept) {
  BATON_RETURN_IF_ERROR(Prepare());
  if (bytes == 0 || bytes > UINT32_MAX) {
    return Invalid("bytes: ", bytes, ", 1 to ", UINT32_MAX);
  }
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment) {
    return Invalid("alignment: ", alignment, " is no power of two up to ", kMaxAlignment);
  }
  const auto in_use = [this](HeapBlocks::VisitRange visit) { ForEachInUse(visit); };
  const auto reclaim = [&] {
    blocks_.Reclaim(in_use);
    PlanReclaim();
    NoteChange();
  };
  if (blocks_.held_bytes() >= reclaim_at_) reclaim();
  std::optional<HeapBlocks::Object> object = blocks_.Take(bytes, alignment, kept);
  if (!object.has_value() && blocks_.held_bytes() > 0) {
    reclaim();
    object = blocks_.Take(bytes, alignment, kept);
  }
  if (!object.has_value()) return NoRoom(bytes);
  NoteChange();
  return *object;
}

absl::Status Heap::NoRoom(uint64_t bytes) const {
  const HeapBlocks::Totals totals = blocks_.totals();
  return absl::ResourceExhaustedError(
      absl::StrCat("the heap of shard ", shard_->index(), " has no ", bytes,
                   " bytes: ", totals.kept, " of ", blocks_.bytes(), " are kept, ", totals.scratch,
                   " are scratch memory, work requests and grants use ", totals.held,
                   " that were freed, the longest free range has ", totals.largest_range,
                   ": free some, or raise shard_heap_bytes"));
}

// Makes sure that the transaction has room for a change of the block and for `steps`, and notes the
// block.
absl::Status Heap::EnterBlock(uint32_t block, size_t steps) {
  if (staged_.size() + steps > kMaxTransactionSteps) {
    return absl::ResourceExhaustedError(absl::StrCat("the transaction allocates, keeps and frees ",
                                                     staged_.size(), " times in the heap of shard ",
                                                     shard_->index(), ", at most ",
                                                     kMaxTransactionSteps, ": commit, and go on"));
  }
  if (!blocks_.Mark(block)) return absl::OkStatus();
  const bool needs_entry = changed_.size() % arena::kHeapChangesPerEntry == 0;
  if (needs_entry && !shard_->TakeHeapEntry()) {
    blocks_.Unmark(block);
    return absl::ResourceExhaustedError(
        "no room in the commit log: commit, and go on when the driver has caught up");
  }
  changed_.push_back(block);
  return absl::OkStatus();
}

void Heap::Stage(const HeapBlocks::Object& object, Step step) {
  staged_.push_back({object, step});
  if (IsCrowded()) [[unlikely]]
    (void)shard_->EntryRoom();  // delivery sees it
}

absl::StatusOr<Buffer> Heap::Allocate(uint64_t bytes, uint32_t alignment) {
  BATON_ASSIGN_OR_RETURN(const HeapBlocks::Object object, Take(bytes, alignment, /*kept=*/true));
  // The second step is room for a Free, with which the caller may undo this.
  if (absl::Status entered = EnterBlock(object.block, /*steps=*/2); !entered.ok()) {
    blocks_.Unkeep(object);
    blocks_.Hold(object);
    return entered;
  }
  Stage(object, Step::kAllocated);
  BATON_CRASH_POINT("worker-heap-allocated");
  return BufferOf(object, bytes);
}

absl::StatusOr<Buffer> Heap::AllocateScratch(uint64_t bytes, uint32_t alignment) {
  BATON_ASSIGN_OR_RETURN(const HeapBlocks::Object object, Take(bytes, alignment, /*kept=*/false));
  return BufferOf(object, bytes);
}

absl::StatusOr<HeapBlocks::Object> Heap::Find(const Buffer& buffer) const {
  const bool inside = buffer.offset >= begin_ && buffer.offset - begin_ < blocks_.bytes();
  const std::optional<HeapBlocks::Object> object =
      inside ? blocks_.Find(buffer.offset - begin_) : std::nullopt;
  if (!object.has_value() || buffer.length > object->length) {
    return Invalid("buffer: ", buffer.length, " bytes at ", buffer.offset,
                   " are not what the heap of shard ", shard_->index(), " gave out");
  }
  return *object;
}

absl::Status Heap::Keep(const Buffer& buffer) {
  BATON_RETURN_IF_ERROR(Prepare());
  BATON_ASSIGN_OR_RETURN(const HeapBlocks::Object object, Find(buffer));
  if (blocks_.StateOf(object) != HeapBlocks::State::kScratch) {
    return Invalid("buffer: what begins at ", buffer.offset, " is no scratch memory");
  }
  BATON_RETURN_IF_ERROR(EnterBlock(object.block, /*steps=*/1));
  blocks_.Keep(object);
  Stage(object, Step::kKept);
  return absl::OkStatus();
}

absl::Status Heap::Free(const Buffer& buffer) {
  BATON_RETURN_IF_ERROR(Prepare());
  BATON_ASSIGN_OR_RETURN(const HeapBlocks::Object object, Find(buffer));
  switch (blocks_.StateOf(object)) {
    case HeapBlocks::State::kScratch:
      blocks_.Hold(object);
      NoteChange();
      return absl::OkStatus();
    case HeapBlocks::State::kKept:
      BATON_RETURN_IF_ERROR(EnterBlock(object.block, /*steps=*/1));
      blocks_.BeginFree(object);
      Stage(object, Step::kFreed);
      BATON_CRASH_POINT("worker-heap-freed");
      return absl::OkStatus();
    default:
      return Invalid("buffer: what begins at ", buffer.offset, " is free already");
  }
}

absl::Status Heap::ForEachAllocated(const std::function<void(const Buffer&, bool kept)>& visit) {
  BATON_RETURN_IF_ERROR(Prepare());
  blocks_.ForEachTaken([&](const HeapBlocks::Object& object, HeapBlocks::State state) {
    visit(BufferOf(object, object.length), state == HeapBlocks::State::kKept);
  });
  return absl::OkStatus();
}

absl::StatusOr<Heap::Statistics> Heap::statistics() {
  BATON_RETURN_IF_ERROR(Prepare());
  const HeapBlocks::Totals totals = blocks_.totals();
  return Statistics{blocks_.bytes(), totals.kept,          totals.scratch, totals.held,
                    totals.free,     totals.largest_range, totals.rest};
}

// ---------------------------------------------------------------- the open transaction

void Heap::AddEntries(std::vector<arena::CommitEntry>* entries) const {
  for (size_t i = 0; i < changed_.size();) {
    arena::HeapEntry entry = {};
    entry.kind = static_cast<uint8_t>(arena::CommitKind::kHeap);
    for (; entry.count < arena::kHeapChangesPerEntry && i < changed_.size(); ++i) {
      entry.changes[entry.count++] = arena::ChangeOf(changed_[i], blocks_.Kept(changed_[i]));
    }
    entries->push_back(std::bit_cast<arena::CommitEntry>(entry));
  }
}

void Heap::NoteCommitted() {
  for (const Staged& staged : staged_) {
    if (staged.step == Step::kFreed) blocks_.Hold(staged.object);
  }
  ForgetStaged();
  // Totals that were not told may be of an epoch that is over.
  untold_ = false;
  if (loaded_epoch_ == shard_->epoch()) TellTotals();
}

void Heap::Abandon() {
  std::for_each(staged_.rbegin(), staged_.rend(), [this](const Staged& staged) {
    switch (staged.step) {
      case Step::kAllocated:
        blocks_.Unkeep(staged.object);
        blocks_.Hold(staged.object);
        break;
      case Step::kKept:
        blocks_.Unkeep(staged.object);
        break;
      case Step::kFreed:
        blocks_.UndoFree(staged.object);
        break;
    }
  });
  untold_ = untold_ || !staged_.empty();
  ForgetStaged();
}

void Heap::ForgetStaged() {
  for (const uint32_t block : changed_) blocks_.Unmark(block);
  staged_.clear();
  changed_.clear();
}

// The next commit stores the totals, whatever it commits. Changes do not store them one by one,
// because scratch memory comes and goes with every message of some services.
void Heap::NoteChange() {
  if (untold_) return;
  untold_ = true;
  shard_->NoteHeapChange();
}

void Heap::TellTotals() {
  untold_ = false;
  const HeapBlocks::Totals totals = blocks_.totals();
  arena::BankHeader& bank = *shard_->bank_;
  arena::StoreRelaxed(bank.heap_kept, totals.kept);
  arena::StoreRelaxed(bank.heap_scratch, totals.scratch);
  arena::StoreRelaxed(bank.heap_held, totals.held);
  arena::StoreRelaxed(bank.heap_largest, totals.largest_range);
  arena::StoreRelaxed(bank.heap_free, totals.free);
  arena::StoreRelaxed(bank.heap_rest, totals.rest);
}

}  // namespace baton
