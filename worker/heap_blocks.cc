#include "worker/heap_blocks.h"

#include <algorithm>
#include <bit>
#include <new>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"

namespace baton {
namespace {

using arena::kHeapUnitBytes;
using arena::kPageBytes;

constexpr uint32_t kUnitsPerPage = kPageBytes / kHeapUnitBytes;
constexpr uint32_t kBlockPages = 16;  // the most that objects of a size class share

// Four for each power of two, as far as whole pages would waste more.
constexpr std::array<uint16_t, 23> kClassUnits = {1,  2,  3,  4,  5,  6,  7,  8,  10,  12,  14, 16,
                                                  20, 24, 28, 32, 40, 48, 56, 80, 112, 160, 224};
constexpr uint32_t kMaxSmallUnits = kClassUnits.back();

constexpr auto kClassOfUnits = [] {
  std::array<uint8_t, kMaxSmallUnits + 1> classes = {};
  uint8_t size_class = 0;
  for (uint32_t units = 1; units <= kMaxSmallUnits; ++units) {
    if (units > kClassUnits[size_class]) ++size_class;
    classes[units] = size_class;
  }
  return classes;
}();

constexpr uint32_t BlockPagesOf(uint32_t units) { return std::min(units, kBlockPages); }

// Returns the length of a block that has to fit into `most` pages, which are fewer than
// BlockPagesOf, without pages behind its last object. 0: whole pages are as good.
constexpr uint32_t ShorterBlockPagesOf(uint32_t units, uint32_t most) {
  const uint32_t objects = arena::ObjectsOf({most, units, 0});
  return objects < 2 ? 0 : (objects * units + kUnitsPerPage - 1) / kUnitsPerPage;
}
static_assert(ShorterBlockPagesOf(20, 2) == 2 && ShorterBlockPagesOf(160, 6) == 5 &&
              ShorterBlockPagesOf(40, 1) == 0);

// Returns the class of the objects to take from, or nothing if whole pages are better or needed.
std::optional<uint32_t> ClassFor(uint64_t units, uint64_t alignment, uint64_t pages) {
  if (units > kMaxSmallUnits) return {};
  for (uint32_t i = kClassOfUnits[units]; i < kClassUnits.size(); ++i) {
    if (kClassUnits[i] >= pages * kUnitsPerPage) return {};
    if (uint64_t{kClassUnits[i]} * kHeapUnitBytes % alignment == 0) return i;
  }
  return {};
}

uint64_t BitsOf(uint32_t objects) {
  return objects == 64 ? ~uint64_t{0} : (uint64_t{1} << objects) - 1;
}

}  // namespace

HeapBlocks::HeapBlocks(uint32_t pages)
    : page_count_(pages),
      pages_(static_cast<Page*>(std::calloc(pages, sizeof(Page)))),
      first_(pages, kNone) {
  static_assert(kClassUnits.size() == kClasses);
  if (pages_ == nullptr) throw std::bad_alloc();
  held_.reserve(pages);
  with_room_.fill(kNone);
  AddRange(0, pages);
}

uint64_t HeapBlocks::ObjectBytes(const Page& block) const {
  return block.units == 0 ? block.pages * kPageBytes : uint64_t{block.units} * kHeapUnitBytes;
}

uint64_t HeapBlocks::AllObjectsBytes(const Page& block) const {
  return arena::ObjectsOf({block.pages, block.units, 0}) * ObjectBytes(block);
}

HeapBlocks::Object HeapBlocks::ObjectAt(uint32_t page, uint32_t index) const {
  const uint64_t bytes = ObjectBytes(pages_[page]);
  return {page, index, page * uint64_t{kPageBytes} + index * bytes, bytes};
}

bool HeapBlocks::HasRoom(const Page& block) const {
  return block.taken != BitsOf(arena::ObjectsOf({block.pages, block.units, 0}));
}

// ---------------------------------------------------------------- loading

absl::Status HeapBlocks::Load(const arena::HeapBlock* table, ForEachInUse in_use) {
  free_.clear();
  std::fill(first_.begin(), first_.end(), kNone);
  with_room_.fill(kNone);
  held_.clear();
  free_pages_ = taken_bytes_ = live_bytes_ = kept_bytes_ = room_bytes_ = rest_bytes_ = 0;
  for (uint32_t page = 0; page < page_count_; ++page) {
    const arena::HeapBlock block = arena::CopyOnce(table[page]);
    if (block.pages == 0 && block.units == 0 && block.kept == 0) continue;
    const bool known_size =
        block.units == 0 ||
        (block.units <= kMaxSmallUnits && kClassUnits[kClassOfUnits[block.units]] == block.units);
    if (!known_size || !arena::IsHeapBlock(block, page, page_count_) || first_[page] != kNone) {
      return absl::DataLossError(absl::StrCat("the heap is damaged at page ", page, ": a block of ",
                                              block.pages, " pages, objects of ", block.units,
                                              " units, begins there"));
    }
    Page& made = MakeBlock(page, block.pages, block.units);
    made.kept = made.live = made.taken = block.kept;
    const uint64_t bytes = std::popcount(block.kept) * ObjectBytes(made);
    taken_bytes_ += bytes;
    live_bytes_ += bytes;
    kept_bytes_ += bytes;
    room_bytes_ -= bytes;
    if (!HasRoom(made)) Unlist(page);
  }
  in_use([this](uint64_t offset, uint64_t length) { HoldInUse(offset, length); });
  for (uint32_t page = 0; page < page_count_;) {
    uint32_t end = page;
    while (end < page_count_ && first_[end] == kNone) ++end;
    if (end > page) AddRange(page, end - page);
    page = end < page_count_ ? end + pages_[end].pages : end;
  }
  return absl::OkStatus();
}

// While loading, free ranges are not known yet.
void HeapBlocks::HoldInUse(uint64_t offset, uint64_t length) {
  const uint64_t end = offset + length;
  while (offset < end) {
    const auto page = static_cast<uint32_t>(offset / kPageBytes);
    uint32_t block = first_[page];
    if (block == kNone) {
      const auto last = static_cast<uint32_t>((end - 1) / kPageBytes);
      uint32_t behind = page;
      while (behind <= last && first_[behind] == kNone) ++behind;
      block = page;
      MakeBlock(block, behind - page, 0);
    }
    Page& found = pages_[block];
    const uint64_t more = ObjectsWithin(block, offset, end) & ~found.taken;
    if (more != 0) {
      const uint64_t bytes = std::popcount(more) * ObjectBytes(found);
      found.taken |= more;
      taken_bytes_ += bytes;
      room_bytes_ -= bytes;
      if (!HasRoom(found)) Unlist(block);
      AddToHeld(block);
    }
    offset = (uint64_t{block} + found.pages) * kPageBytes;
  }
}

uint64_t HeapBlocks::ObjectsWithin(uint32_t block, uint64_t offset, uint64_t end) const {
  const Page& found = pages_[block];
  if (found.units == 0) return 1;
  const uint64_t begin = block * uint64_t{kPageBytes};
  const uint64_t bytes = ObjectBytes(found);
  const uint32_t objects = arena::ObjectsOf({found.pages, found.units, 0});
  const uint64_t first = (offset - begin) / bytes;
  const uint64_t last = std::min<uint64_t>((end - 1 - begin) / bytes, objects - 1);
  if (first > last) return 0;  // behind the last object
  return BitsOf(static_cast<uint32_t>(last + 1)) & ~BitsOf(static_cast<uint32_t>(first));
}

// ---------------------------------------------------------------- pages

void HeapBlocks::AddRange(uint32_t page, uint32_t pages) {
  free_pages_ += pages;
  if (page > 0) {
    const uint32_t before = first_[page - 1];
    if (before != kNone && before < page && pages_[before].is_free &&
        before + pages_[before].pages == page) {
      free_.erase(FreeRanges::s_iterator_to(pages_[before]));
      pages += pages_[before].pages;
      page = before;
    }
  }
  if (const uint32_t behind = page + pages;
      behind < page_count_ && first_[behind] == behind && pages_[behind].is_free) {
    free_.erase(FreeRanges::s_iterator_to(pages_[behind]));
    pages += pages_[behind].pages;
    first_[behind] = kNone;
  }
  Page& range = *new (&pages_[page]) Page();
  range.pages = pages;
  range.is_free = true;
  first_[page] = first_[page + pages - 1] = page;
  free_.insert(range);
}

std::optional<uint32_t> HeapBlocks::TakePages(uint32_t pages) {
  const std::optional<uint32_t> page = TakePagesOnce(pages);
  if (page.has_value()) return page;
  GiveUpEmptyBlocks();
  return TakePagesOnce(pages);
}

std::optional<uint32_t> HeapBlocks::TakePagesOnce(uint32_t pages) {
  const auto range = free_.lower_bound(
      pages, [](const Page& free, uint32_t length) { return free.pages < length; });
  if (range == free_.end()) return {};
  const auto page = static_cast<uint32_t>(&*range - pages_.get());
  const uint32_t length = range->pages;
  free_.erase(range);
  free_pages_ -= length;
  first_[page + length - 1] = kNone;
  MakeBlock(page, pages, 0);
  if (length > pages) AddRange(page + pages, length - pages);
  return page;
}

// Makes a block of pages that are in no range any more. It has no object that is taken.
HeapBlocks::Page& HeapBlocks::MakeBlock(uint32_t page, uint32_t pages, uint32_t units) {
  Page& block = *new (&pages_[page]) Page();
  block.pages = pages;
  block.units = units;
  std::fill_n(first_.begin() + page, pages, page);
  room_bytes_ += AllObjectsBytes(block);
  rest_bytes_ += pages * uint64_t{kPageBytes} - AllObjectsBytes(block);
  if (units != 0) Enlist(page);
  return block;
}

void HeapBlocks::FreeBlock(uint32_t page) {
  Page& block = pages_[page];
  if (block.units != 0) Unlist(page);
  const uint32_t pages = block.pages;
  room_bytes_ -= AllObjectsBytes(block);
  rest_bytes_ -= pages * uint64_t{kPageBytes} - AllObjectsBytes(block);
  first_[page] = first_[page + pages - 1] = kNone;
  AddRange(page, pages);
}

void HeapBlocks::GiveUpEmptyBlocks() {
  for (const uint32_t head : with_room_) {
    for (uint32_t page = head; page != kNone;) {
      const uint32_t next = pages_[page].next;
      if (pages_[page].taken == 0 && !pages_[page].is_in_held) FreeBlock(page);
      page = next;
    }
  }
}

void HeapBlocks::Enlist(uint32_t page) {
  uint32_t& head = with_room_[kClassOfUnits[pages_[page].units]];
  pages_[page].previous = kNone;
  pages_[page].next = head;
  if (head != kNone) pages_[head].previous = page;
  head = page;
}

void HeapBlocks::Unlist(uint32_t page) {
  Page& block = pages_[page];
  if (block.units == 0) return;
  uint32_t& head = with_room_[kClassOfUnits[block.units]];
  if (block.next != kNone) pages_[block.next].previous = block.previous;
  if (block.previous != kNone) {
    pages_[block.previous].next = block.next;
  } else if (head == page) {
    head = block.next;
  }
  block.next = block.previous = kNone;
}

// ---------------------------------------------------------------- objects

std::optional<HeapBlocks::Object> HeapBlocks::Take(uint64_t bytes, uint64_t alignment, bool kept) {
  const uint64_t units = (bytes + kHeapUnitBytes - 1) / kHeapUnitBytes;
  const uint64_t pages = (bytes + kPageBytes - 1) / kPageBytes;
  if (pages > page_count_) return {};
  const std::optional<uint32_t> size_class = ClassFor(units, alignment, pages);
  if (size_class.has_value()) {
    std::optional<Object> object = TakeSmall(*size_class, kept);
    if (object.has_value()) return object;
  }
  const std::optional<uint32_t> page = TakePages(static_cast<uint32_t>(pages));
  if (!page.has_value()) return {};
  Page& block = pages_[*page];
  block.live = block.taken = 1;
  block.kept = kept ? 1 : 0;
  const uint64_t length = ObjectBytes(block);
  taken_bytes_ += length;
  live_bytes_ += length;
  kept_bytes_ += kept ? length : 0;
  room_bytes_ -= length;
  return ObjectAt(*page, 0);
}

// A block is shorter where no range is as long as it should be: between blocks that stay, there may
// be none for ever, and an object that takes a page for itself wastes most of it.
std::optional<uint32_t> HeapBlocks::TakeBlock(uint32_t units) {
  uint32_t pages = BlockPagesOf(units);
  std::optional<uint32_t> page = TakePages(pages);
  if (!page.has_value() && !free_.empty()) {
    pages = ShorterBlockPagesOf(units, free_.rbegin()->pages);
    if (pages != 0) page = TakePagesOnce(pages);
  }
  if (!page.has_value()) return {};
  room_bytes_ -= pages * uint64_t{kPageBytes};  // as one object
  MakeBlock(*page, pages, units);
  return page;
}

std::optional<HeapBlocks::Object> HeapBlocks::TakeSmall(uint32_t size_class, bool kept) {
  uint32_t page = with_room_[size_class];
  if (page == kNone) {
    const std::optional<uint32_t> made = TakeBlock(kClassUnits[size_class]);
    if (!made.has_value()) return {};
    page = *made;
  }
  Page& block = pages_[page];
  const auto index = static_cast<uint32_t>(std::countr_one(block.taken));
  const uint64_t bit = uint64_t{1} << index;
  block.taken |= bit;
  block.live |= bit;
  block.kept |= kept ? bit : 0;
  const uint64_t bytes = ObjectBytes(block);
  taken_bytes_ += bytes;
  live_bytes_ += bytes;
  kept_bytes_ += kept ? bytes : 0;
  room_bytes_ -= bytes;
  if (!HasRoom(block)) Unlist(page);
  return ObjectAt(page, index);
}

std::optional<HeapBlocks::Object> HeapBlocks::Find(uint64_t offset) const {
  if (offset >= bytes()) return {};
  const uint32_t page = first_[offset / kPageBytes];
  // Inside a free range, first_ may have what was there before.
  if (page == kNone || !IsBlock(page)) return {};
  const Page& block = pages_[page];
  const uint64_t within = offset - page * uint64_t{kPageBytes};
  if (within >= block.pages * uint64_t{kPageBytes} || within % ObjectBytes(block) != 0) return {};
  const auto index = static_cast<uint32_t>(within / ObjectBytes(block));
  if (index >= 64 || (block.taken >> index & 1) == 0) return {};
  return ObjectAt(page, index);
}

HeapBlocks::State HeapBlocks::StateOf(const Object& object) const {
  const Page& block = pages_[object.block];
  if ((block.freeing >> object.index & 1) != 0) return State::kFreeing;
  if ((block.live >> object.index & 1) == 0) return State::kFree;
  return (block.kept >> object.index & 1) != 0 ? State::kKept : State::kScratch;
}

void HeapBlocks::Keep(const Object& object) {
  pages_[object.block].kept |= uint64_t{1} << object.index;
  kept_bytes_ += object.length;
}

void HeapBlocks::Unkeep(const Object& object) {
  pages_[object.block].kept &= ~(uint64_t{1} << object.index);
  kept_bytes_ -= object.length;
}

void HeapBlocks::BeginFree(const Object& object) {
  const uint64_t bit = uint64_t{1} << object.index;
  pages_[object.block].kept &= ~bit;
  pages_[object.block].freeing |= bit;
}

void HeapBlocks::UndoFree(const Object& object) {
  const uint64_t bit = uint64_t{1} << object.index;
  pages_[object.block].kept |= bit;
  pages_[object.block].freeing &= ~bit;
}

void HeapBlocks::Hold(const Object& object) {
  Page& block = pages_[object.block];
  const uint64_t bit = uint64_t{1} << object.index;
  if ((block.freeing & bit) != 0) kept_bytes_ -= object.length;
  block.freeing &= ~bit;
  block.live &= ~bit;
  live_bytes_ -= object.length;
  AddToHeld(object.block);
}

void HeapBlocks::AddToHeld(uint32_t page) {
  if (pages_[page].is_in_held) return;
  pages_[page].is_in_held = true;
  held_.push_back(page);
}

// ---------------------------------------------------------------- reclaiming

void HeapBlocks::MarkInUse(uint64_t offset, uint64_t length) {
  const uint64_t end = offset + length;
  while (offset < end) {
    const auto page = static_cast<uint32_t>(offset / kPageBytes);
    const uint32_t block = first_[page];
    if (block == kNone || !IsBlock(block) || page - block >= pages_[block].pages) {
      offset = (uint64_t{page} + 1) * kPageBytes;
      continue;
    }
    pages_[block].in_use |= ObjectsWithin(block, offset, end);
    offset = (uint64_t{block} + pages_[block].pages) * kPageBytes;
  }
}

void HeapBlocks::Reclaim(ForEachInUse in_use) {
  for (const uint32_t page : held_) pages_[page].in_use = 0;
  in_use([this](uint64_t offset, uint64_t length) { MarkInUse(offset, length); });
  size_t remaining = 0;
  for (const uint32_t page : held_) {
    Page& block = pages_[page];
    const uint64_t held = block.taken & ~block.live;
    const uint64_t released = held & ~block.in_use;
    if (held != released) {
      held_[remaining++] = page;
    } else {
      block.is_in_held = false;
    }
    if (released == 0) continue;
    const bool was_full = !HasRoom(block);
    const uint64_t bytes = std::popcount(released) * ObjectBytes(block);
    block.taken &= ~released;
    taken_bytes_ -= bytes;
    room_bytes_ += bytes;
    if (was_full && block.units != 0) Enlist(page);
    // The last block of a class with room stays for the next object.
    const bool is_last = block.units != 0 && block.next == kNone && block.previous == kNone;
    if (block.taken == 0 && !is_last) FreeBlock(page);
  }
  held_.resize(remaining);
}

// ---------------------------------------------------------------- views

arena::HeapBlock HeapBlocks::Kept(uint32_t page) const {
  if (!IsBlock(page) || pages_[page].kept == 0) return {};
  return {pages_[page].pages, pages_[page].units, pages_[page].kept};
}

bool HeapBlocks::Mark(uint32_t page) {
  if (pages_[page].is_marked) return false;
  return pages_[page].is_marked = true;
}

void HeapBlocks::Unmark(uint32_t page) { pages_[page].is_marked = false; }

void HeapBlocks::ForEachTaken(absl::FunctionRef<void(const Object&, State)> visit) const {
  for (uint32_t page = 0; page < page_count_; page += pages_[page].pages) {
    if (!IsBlock(page)) continue;
    for (uint64_t live = pages_[page].live; live != 0; live &= live - 1) {
      const Object object = ObjectAt(page, static_cast<uint32_t>(std::countr_zero(live)));
      const State state = StateOf(object);
      if (state != State::kFreeing) visit(object, state);
    }
  }
}

HeapBlocks::Totals HeapBlocks::totals() const {
  const uint64_t largest = free_.empty() ? 0 : free_.rbegin()->pages * uint64_t{kPageBytes};
  return {kept_bytes_,  live_bytes_ - kept_bytes_,
          held_bytes(), free_pages_ * kPageBytes + room_bytes_,
          largest,      rest_bytes_};
}

}  // namespace baton
