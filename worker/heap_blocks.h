// Inside the worker library: how a shard's heap is divided into blocks (lib/arena/layout.md,
// "Heaps"), as its owner has it in memory of its own.
//
// Free ranges of pages are in a tree, from which the smallest that fits is taken; a range that
// becomes free is joined with its neighbours. Objects that are small, or would waste much of their
// last page, share a block of up to 16 pages with up to 63 others of their size. The block is
// shorter if no free range is that long.
//
// An object is free, taken, or *held*: freed, but maybe still in use by work requests. Of those
// that are taken, *kept* ones belong to the committed state or to the open transaction.
#ifndef WORKER_HEAP_BLOCKS_H_
#define WORKER_HEAP_BLOCKS_H_

#include <array>
#include <boost/intrusive/set.hpp>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "lib/arena/layout.h"

namespace baton {

// Thread-compatible. Allocates memory at construction alone. Offsets are bytes from the beginning
// of the heap.
class HeapBlocks {
 public:
  struct Object {
    uint32_t block = 0;  // the page at which its block begins
    uint32_t index = 0;  // in the block
    uint64_t offset = 0;
    uint64_t length = 0;
  };
  enum class State : uint8_t {
    kFree,     // or held
    kScratch,  // ends with the owner
    kKept,
    kFreeing,  // kept until the open transaction is committed
  };
  // Bytes. The sum of all but `largest_range` is bytes().
  struct Totals {
    uint64_t kept = 0;
    uint64_t scratch = 0;
    uint64_t held = 0;
    uint64_t free = 0;           // what could be allocated: whole pages, and objects in blocks
    uint64_t largest_range = 0;  // of whole pages
    uint64_t rest = 0;           // lost behind the last objects of blocks
  };
  using VisitRange = absl::FunctionRef<void(uint64_t offset, uint64_t length)>;
  // Calls its argument for each range that a work request uses. Ranges may overlap.
  using ForEachInUse = absl::FunctionRef<void(VisitRange)>;

  static constexpr uint32_t kMaxAlignment = arena::kPageBytes;

  explicit HeapBlocks(uint32_t pages);
  HeapBlocks(const HeapBlocks&) = delete;
  HeapBlocks& operator=(const HeapBlocks&) = delete;

  // Begins anew with the blocks of `table`, the committed ones. What lies outside them and is in
  // use is held. kDataLoss: `table` cannot be a heap's; this object must not be used then.
  absl::Status Load(const arena::HeapBlock* table, ForEachInUse in_use);

  // Takes an object of at least `bytes` at a multiple of `alignment`, a power of two of at most
  // kMaxAlignment. Nothing if there is no room. REQUIRES: bytes > 0.
  std::optional<Object> Take(uint64_t bytes, uint64_t alignment, bool kept);
  // Returns the object that begins at `offset`, if one is not free.
  std::optional<Object> Find(uint64_t offset) const;
  State StateOf(const Object& object) const;

  void Keep(const Object& object);       // kScratch -> kKept
  void Unkeep(const Object& object);     // kKept -> kScratch
  void BeginFree(const Object& object);  // kKept -> kFreeing
  void UndoFree(const Object& object);   // kFreeing -> kKept
  void Hold(const Object& object);       // kScratch, kFreeing -> held

  // Frees all held objects that are not in use.
  void Reclaim(ForEachInUse in_use);

  // Returns what the committed table has to say about the block that begins at `page`.
  arena::HeapBlock Kept(uint32_t page) const;
  // Marks the block, until Unmark. Returns false if it was marked.
  bool Mark(uint32_t page);
  void Unmark(uint32_t page);

  // Calls `visit` for each object that is kScratch or kKept.
  void ForEachTaken(absl::FunctionRef<void(const Object&, State)> visit) const;
  Totals totals() const;
  uint64_t held_bytes() const { return taken_bytes_ - live_bytes_; }
  uint64_t bytes() const { return uint64_t{page_count_} * arena::kPageBytes; }

 private:
  struct Page {  // valid for the first page of a block or free range
    boost::intrusive::set_member_hook<boost::intrusive::link_mode<boost::intrusive::normal_link>>
        hook;  // free ranges
    uint32_t pages = 0;
    uint32_t units = 0;  // as in arena::HeapBlock
    bool is_free = false;
    bool is_marked = false;
    bool is_in_held = false;
    // Blocks with room for another object of `units`, in a list.
    uint32_t next = kNone, previous = kNone;
    // A bit for each object. `live` has what is kept or scratch.
    uint64_t kept = 0, live = 0, freeing = 0, taken = 0;
    uint64_t in_use = 0;  // during Reclaim()
  };
  struct SmallestFirst {
    bool operator()(const Page& a, const Page& b) const {
      return a.pages != b.pages ? a.pages < b.pages : &a < &b;
    }
  };
  using FreeRanges = boost::intrusive::set<
      Page, boost::intrusive::member_hook<Page, decltype(Page::hook), &Page::hook>,
      boost::intrusive::compare<SmallestFirst>, boost::intrusive::constant_time_size<false>>;
  struct Release {
    void operator()(void* memory) const { std::free(memory); }
  };

  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kClasses = 23;

  std::optional<Object> TakeSmall(uint32_t size_class, bool kept);
  std::optional<uint32_t> TakeBlock(uint32_t units);
  std::optional<uint32_t> TakePages(uint32_t pages);
  std::optional<uint32_t> TakePagesOnce(uint32_t pages);
  Page& MakeBlock(uint32_t page, uint32_t pages, uint32_t units);
  void FreeBlock(uint32_t page);
  void AddRange(uint32_t page, uint32_t pages);
  void GiveUpEmptyBlocks();
  void HoldInUse(uint64_t offset, uint64_t length);
  void MarkInUse(uint64_t offset, uint64_t length);
  // Returns the bits of the objects of a block that lie in a range of the heap.
  uint64_t ObjectsWithin(uint32_t block, uint64_t offset, uint64_t end) const;
  void AddToHeld(uint32_t page);
  void Enlist(uint32_t page);
  void Unlist(uint32_t page);

  bool IsBlock(uint32_t page) const { return first_[page] == page && !pages_[page].is_free; }
  bool HasRoom(const Page& block) const;
  Object ObjectAt(uint32_t page, uint32_t index) const;
  uint64_t ObjectBytes(const Page& block) const;
  uint64_t AllObjectsBytes(const Page& block) const;

  uint32_t page_count_;
  // Only what is used becomes resident.
  std::unique_ptr<Page[], Release> pages_;
  // By page: the first page of the block or free range that it belongs to. Those inside a free
  // range are not valid.
  std::vector<uint32_t> first_;
  FreeRanges free_;
  uint64_t free_pages_ = 0;
  std::array<uint32_t, kClasses> with_room_;  // heads of lists
  std::vector<uint32_t> held_;                // blocks that may have held objects
  uint64_t taken_bytes_ = 0, live_bytes_ = 0, kept_bytes_ = 0;
  uint64_t room_bytes_ = 0;  // in free objects of blocks
  uint64_t rest_bytes_ = 0;  // in no object of their block
};

}  // namespace baton

#endif  // WORKER_HEAP_BLOCKS_H_
