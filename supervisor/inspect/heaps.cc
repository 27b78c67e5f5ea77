#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "supervisor/inspect/descriptions.h"

namespace baton::inspect {
namespace {

constexpr uint64_t kBlocksPerRead = 4096;
constexpr int kMostCounts = 3;

// Counts a table from its first page on. It is damaged where a block cannot begin, or begins inside
// another. Then nothing that was counted is shown.
class HeapCount {
 public:
  explicit HeapCount(uint64_t heap_pages) : heap_pages_(heap_pages) {}

  // Adds what the table has of the next page.
  void Add(const arena::HeapBlock& block) {
    const uint64_t page = page_++;
    if (!damage_.empty()) return;
    const bool begins = block.pages != 0;
    if (!arena::IsHeapBlock(block, page, heap_pages_) || (begins && page < end_)) {
      damage_ = absl::StrCat("damaged at page ", page, ": a block of ", block.pages,
                             " pages, objects of ", block.units, " units, begins there");
    } else if (begins) {
      AddBlock(page, block);
    } else if (page >= end_) {
      run_bytes_ += arena::kPageBytes;
      free_ += arena::kPageBytes;
      largest_free_ = std::max(largest_free_, run_bytes_);
    }
  }

  void Describe(v1::InspectedHeap* out) const {
    out->set_damage(damage_);
    if (!damage_.empty()) return;
    out->set_kept(kept_);
    out->set_allocations(allocations_);
    out->set_free(free_);
    out->set_largest_free(largest_free_);
    if (free_ == 0) return;
    out->set_fragmentation(1 - static_cast<double>(largest_free_) / static_cast<double>(free_));
  }

 private:
  void AddBlock(uint64_t page, const arena::HeapBlock& block) {
    end_ = page + block.pages;
    run_bytes_ = 0;
    const uint64_t object_bytes = block.units == 0 ? uint64_t{block.pages} * arena::kPageBytes
                                                   : uint64_t{block.units} * arena::kHeapUnitBytes;
    const auto objects = static_cast<uint64_t>(std::popcount(block.kept));
    allocations_ += objects;
    kept_ += objects * object_bytes;
    free_ += (arena::ObjectsOf(block) - objects) * object_bytes;
  }

  const uint64_t heap_pages_;
  uint64_t page_ = 0;
  uint64_t end_ = 0;        // of the last block
  uint64_t run_bytes_ = 0;  // of the free range that the last page belongs to
  uint64_t kept_ = 0, allocations_ = 0, free_ = 0, largest_free_ = 0;
  std::string damage_;
};

absl::Status CountTable(const ArenaView& arena, uint32_t shard, HeapCount* count) {
  std::vector<arena::HeapBlock> blocks(kBlocksPerRead);
  uint64_t at = arena.driver_map.Heap(shard);
  for (uint64_t left = arena.header.shape.heap_pages; left > 0;) {
    const uint64_t now = std::min(left, kBlocksPerRead);
    BATON_RETURN_IF_ERROR(
        arena.files.driver_log().Read(at, blocks.data(), now * sizeof(arena::HeapBlock)));
    for (uint64_t i = 0; i < now; ++i) count->Add(blocks[i]);
    at += now * sizeof(arena::HeapBlock);
    left -= now;
  }
  return absl::OkStatus();
}

// The driver changes blocks one word after the other, and stores `commit_head` when all of a
// transaction is applied. So a count between two equal looks at the record is of one moment, unless
// a transaction is begun.
bool IsSameMoment(const arena::ShardRecord& before, const arena::ShardRecord& after) {
  const bool begun = arena::OwnershipEpoch(before.owner.ownership) != 0 &&
                     before.apply_begun == before.commit_head;
  return !begun && before.commit_head == after.commit_head &&
         before.apply_begun == after.apply_begun;
}

// Reads the whole table: at most 256 MiB for a heap of 64 GiB.
absl::Status DescribeTable(const ArenaView& arena, uint32_t shard, v1::InspectedHeap* out) {
  const Memory& memory = arena.files.driver_log();
  const uint64_t record = arena.driver_map.Shard(shard);
  for (int looks = 1;; ++looks) {
    BATON_ASSIGN_OR_RETURN(const auto before, memory.Read<arena::ShardRecord>(record));
    HeapCount count(arena.header.shape.heap_pages);
    BATON_RETURN_IF_ERROR(CountTable(arena, shard, &count));
    BATON_ASSIGN_OR_RETURN(const auto after, memory.Read<arena::ShardRecord>(record));
    const bool same = IsSameMoment(before, after);
    if (!same && looks < kMostCounts) continue;
    out->set_changing(!same);
    count.Describe(out);
    return absl::OkStatus();
  }
}

// Describes the owner's hints, as far as they are possible.
absl::Status DescribeUse(const ArenaView& arena, uint32_t shard, uint64_t epoch,
                         v1::InspectedHeap* out) {
  BATON_ASSIGN_OR_RETURN(const auto bank, arena.files.worker_log().ReadStill<arena::BankHeader>(
                                              arena.worker_map.Bank(shard, epoch)));
  v1::InspectedHeapUse use;
  use.set_kept(std::min(bank.value.heap_kept, out->bytes()));
  use.set_scratch(std::min(bank.value.heap_scratch, out->bytes()));
  use.set_held(std::min(bank.value.heap_held, out->bytes()));
  use.set_largest_free(std::min(bank.value.heap_largest, out->bytes()));
  const uint64_t free = std::min(bank.value.heap_free, out->bytes());
  const uint64_t rest = std::min(bank.value.heap_rest, out->bytes());
  // The parts add up to the heap, unless the owner's release does not tell these two.
  if ((free | rest) != 0 || use.kept() + use.scratch() + use.held() >= out->bytes()) {
    use.set_free(free);
    use.set_rest(rest);
  }
  const bool told =
      (use.kept() | use.scratch() | use.held() | use.largest_free() | free | rest) != 0;
  if (told) *out->mutable_owner() = std::move(use);
  return absl::OkStatus();
}

}  // namespace

absl::Status DescribeHeap(const ArenaView& arena, v1::InspectedShard* shard) {
  v1::InspectedHeap* const heap = shard->mutable_heap();
  heap->set_bytes(arena::HeapBytes(arena.header.shape));
  BATON_RETURN_IF_ERROR(DescribeTable(arena, shard->index(), heap));
  BATON_RETURN_IF_ERROR(DescribeUse(arena, shard->index(), shard->epoch(), heap));
  if (heap->damage().empty()) return absl::OkStatus();
  // The table in a file may be of several moments.
  if (!arena.files.file.empty()) heap->set_changing(true);
  if (!heap->changing()) shard->add_invalid(absl::StrCat("heap: ", heap->damage()));
  return absl::OkStatus();
}

}  // namespace baton::inspect
