// The blocks of a heap alone; then against a plain model, in an order that a seed draws.
// BATON_FIRST_SEED, BATON_SCHEDULES.
#include "worker/heap_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/arena/layout.h"
#include "tests/harness/setting.h"

namespace baton {
namespace {

using arena::HeapBlock;
using arena::kPageBytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Object = HeapBlocks::Object;
using State = HeapBlocks::State;

constexpr uint64_t kUnit = 64;
constexpr uint64_t kPage = kPageBytes;

struct Range {
  uint64_t offset = 0;
  uint64_t length = 0;
};
using Ranges = std::vector<Range>;

std::function<void(HeapBlocks::VisitRange)> Using(const Ranges& ranges) {
  return [ranges](HeapBlocks::VisitRange visit) {
    for (const Range& range : ranges) visit(range.offset, range.length);
  };
}

void Reclaim(HeapBlocks& heap, const Ranges& in_use = {}) { heap.Reclaim(Using(in_use)); }

Object TakeScratch(HeapBlocks& heap, uint64_t bytes, uint64_t alignment = kUnit) {
  const std::optional<Object> object = heap.Take(bytes, alignment, /*kept=*/false);
  EXPECT_TRUE(object.has_value()) << bytes;
  return object.value_or(Object{});
}
Object TakeKept(HeapBlocks& heap, uint64_t bytes) {
  const std::optional<Object> object = heap.Take(bytes, kUnit, /*kept=*/true);
  EXPECT_TRUE(object.has_value()) << bytes;
  return object.value_or(Object{});
}
// Frees what is scratch.
void Free(HeapBlocks& heap, const Object& object) {
  heap.Hold(object);
  Reclaim(heap);
}

void ExpectAllAccountedFor(const HeapBlocks& heap) {
  const HeapBlocks::Totals totals = heap.totals();
  EXPECT_EQ(totals.kept + totals.scratch + totals.held + totals.free + totals.rest, heap.bytes());
}

void ExpectWhole(HeapBlocks& heap) {
  // An empty block may stay for the next object of its size, and is given up when it is needed.
  const std::optional<Object> all = heap.Take(heap.bytes(), kPage, /*kept=*/false);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->offset, 0u);
  EXPECT_EQ(all->length, heap.bytes());
  Free(heap, *all);
  const HeapBlocks::Totals totals = heap.totals();
  EXPECT_EQ(totals.kept, 0u);
  EXPECT_EQ(totals.scratch, 0u);
  EXPECT_EQ(totals.held, 0u);
  EXPECT_EQ(totals.free, heap.bytes());
  EXPECT_EQ(totals.largest_range, heap.bytes());
  EXPECT_EQ(totals.rest, 0u);
}

// ---------------------------------------------------------------- sizes

TEST(HeapBlocksTest, shouldHaveItsSizeClasses) {
  HeapBlocks heap(64);
  // Units asked for, units given.
  const std::vector<std::pair<uint64_t, uint64_t>> sizes = {
      {1, 1},     {2, 2},     {3, 3},     {4, 4},     {5, 5},     {6, 6},     {7, 7},
      {8, 8},     {9, 10},    {10, 10},   {11, 12},   {12, 12},   {13, 14},   {14, 14},
      {15, 16},   {16, 16},   {17, 20},   {20, 20},   {21, 24},   {24, 24},   {25, 28},
      {28, 28},   {29, 32},   {32, 32},   {33, 40},   {40, 40},   {41, 48},   {48, 48},
      {49, 56},   {56, 56},   {57, 64},   {64, 64},   {65, 80},   {80, 80},   {81, 112},
      {112, 112}, {113, 128}, {128, 128}, {129, 160}, {160, 160}, {161, 192}, {192, 192},
      {193, 224}, {224, 224}, {225, 256}, {256, 256}, {257, 320}};
  for (const auto& [units, given] : sizes) {
    for (const uint64_t bytes : {units * kUnit - kUnit + 1, units * kUnit}) {
      const Object object = TakeScratch(heap, bytes);
      EXPECT_EQ(object.length, given * kUnit) << bytes;
      EXPECT_LE(object.offset + object.length, heap.bytes());
      Free(heap, object);
    }
  }
  ExpectWhole(heap);
}

TEST(HeapBlocksTest, shouldAlignObjectsOfEverySize) {
  HeapBlocks heap(512);
  for (uint64_t alignment = 1; alignment <= HeapBlocks::kMaxAlignment; alignment *= 2) {
    std::vector<Object> taken;
    for (uint64_t bytes = 1; bytes <= 20000; bytes += bytes / 3 + 1) {
      for (int i = 0; i < 3; ++i) {
        taken.push_back(TakeScratch(heap, bytes, alignment));
        EXPECT_EQ(taken.back().offset % alignment, 0u) << bytes << " at " << alignment;
        EXPECT_GE(taken.back().length, bytes);
      }
    }
    for (const Object& object : taken) heap.Hold(object);
    Reclaim(heap);
  }
  ExpectWhole(heap);
}

TEST(HeapBlocksTest, shouldCountWhatIsLostBehindTheLastObjects) {
  HeapBlocks heap(64);
  const Object object = TakeScratch(heap, 40 * kUnit);  // 25 such objects have room in 16 pages
  EXPECT_EQ(heap.totals().rest, 24 * kUnit);
  EXPECT_EQ(heap.totals().free, heap.bytes() - (40 + 24) * kUnit);
  TakeScratch(heap, 5 * kPage);
  EXPECT_EQ(heap.totals().rest, 24 * kUnit);
  Free(heap, heap.Find(16 * kPage).value());
  Free(heap, object);
  ExpectWhole(heap);
}

TEST(HeapBlocksTest, shouldPutObjectsOfOneSizeIntoOneBlockUntilItIsFull) {
  HeapBlocks heap(4);
  std::set<uint64_t> offsets;
  for (int i = 0; i < 64; ++i) {
    const Object object = TakeScratch(heap, 64);
    EXPECT_EQ(object.block, 0u);
    offsets.insert(object.offset);
  }
  EXPECT_EQ(offsets.size(), 64u);
  EXPECT_EQ(*offsets.rbegin(), 63 * kUnit);
  const Object next = TakeScratch(heap, 1);
  EXPECT_EQ(next.block, 1u);
  // Room in the full one is used again.
  Free(heap, heap.Find(5 * kUnit).value());
  Free(heap, next);
  EXPECT_EQ(TakeScratch(heap, 64).length, kUnit);
  EXPECT_EQ(TakeScratch(heap, 3 * kPage).length, 3 * kPage);
}

TEST(HeapBlocksTest, shouldUseAllObjectsOfABlockWhoseLengthIsNoMultipleOfTheirs) {
  HeapBlocks heap(16);
  std::set<uint64_t> offsets;
  for (int i = 0; i < 51; ++i) offsets.insert(TakeScratch(heap, 20 * kUnit).offset);
  EXPECT_EQ(offsets.size(), 51u);
  EXPECT_FALSE(heap.Take(20 * kUnit, kUnit, false).has_value());
  EXPECT_EQ(heap.totals().free, 0u);
  EXPECT_EQ(heap.totals().scratch, 51 * 20 * kUnit);
}

TEST(HeapBlocksTest, shouldTakePagesWhereThereIsNoRoomForABlock) {
  HeapBlocks heap(2);
  // A page has no room for two.
  TakeScratch(heap, kPage);
  EXPECT_EQ(TakeScratch(heap, 40 * kUnit).length, kPage);
  EXPECT_FALSE(heap.Take(1, 1, false).has_value());
}

TEST(HeapBlocksTest, shouldMakeAShorterBlockWhereThereIsNoRoomForAWholeOne) {
  HeapBlocks heap(10);
  const Object before = TakeScratch(heap, kPage);
  const Object gap = TakeScratch(heap, 6 * kPage);
  const Object behind = TakeScratch(heap, 3 * kPage);
  heap.Hold(gap);
  Reclaim(heap);
  // Five of the six pages have room for two, and the sixth would be lost.
  const Object first = TakeKept(heap, 160 * kUnit);
  const Object second = TakeKept(heap, 160 * kUnit);
  EXPECT_EQ(first.block, second.block);
  EXPECT_EQ(heap.Kept(first.block).pages, 5u);
  EXPECT_EQ(heap.Kept(first.block).units, 160u);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(TakeScratch(heap, 1).length, kUnit);
  EXPECT_FALSE(heap.Take(1, 1, false).has_value());
  for (const Object& object : {first, second}) heap.Unkeep(object);
  std::vector<Object> all;
  heap.ForEachTaken([&](const Object& object, State) { all.push_back(object); });
  EXPECT_EQ(all.size(), 68u);
  for (const Object& object : all) heap.Hold(object);
  EXPECT_EQ(heap.held_bytes(), before.length + behind.length + 2 * first.length + 64 * kUnit);
  Reclaim(heap);
  ExpectWhole(heap);
}

// Small objects and some of pages come and go by chance. Of the bytes, those that were asked for
// count.
TEST(HeapBlocksTest, shouldFillUpWithSmallAndLargeObjects) {
  constexpr uint32_t kHeapPages = 2048;
  constexpr int kPairs = 20'000;
  HeapBlocks heap(kHeapPages);
  std::mt19937_64 random(1);
  // All magnitudes are as likely.
  const auto between = [&](double low, double high) {
    const double part = static_cast<double>(random() >> 11) / static_cast<double>(1ull << 53);
    return static_cast<uint64_t>(low * std::pow(high / low, part));
  };
  std::vector<std::pair<Object, uint64_t>> objects;
  uint64_t taken = 0;
  const auto allocate = [&] {
    const uint64_t bytes = random() % 8 == 0 ? between(4096, 65536) : between(32, 2048);
    const std::optional<Object> object = heap.Take(bytes, kUnit, /*kept=*/false);
    if (!object.has_value()) return false;
    objects.emplace_back(*object, bytes);
    taken += bytes;
    return true;
  };
  for (int pair = 0; pair < kPairs; ++pair) {
    while (allocate()) {
    }
    auto& victim = objects[random() % objects.size()];
    Free(heap, victim.first);
    taken -= victim.second;
    victim = objects.back();
    objects.pop_back();
  }
  EXPECT_GE(static_cast<double>(taken) / static_cast<double>(heap.bytes()), 0.85);
  for (const auto& [object, bytes] : objects) heap.Hold(object);
  Reclaim(heap);
  ExpectWhole(heap);
}

TEST(HeapBlocksTest, shouldGiveUpEmptyBlocksThatAreInTheWay) {
  HeapBlocks heap(8);
  std::vector<Object> taken;
  for (const uint64_t units : {1u, 2u, 3u}) taken.push_back(TakeScratch(heap, units * kUnit));
  for (const Object& object : taken) heap.Hold(object);
  Reclaim(heap);
  ExpectWhole(heap);
}

TEST(HeapBlocksTest, shouldRefuseWhatItHasNoRoomFor) {
  HeapBlocks heap(4);
  EXPECT_FALSE(heap.Take(4 * kPage + 1, kUnit, false).has_value());
  EXPECT_FALSE(heap.Take(uint64_t{1} << 40, kUnit, false).has_value());
  const Object all = TakeScratch(heap, 4 * kPage);
  EXPECT_FALSE(heap.Take(1, 1, false).has_value());
  Free(heap, all);
  ExpectWhole(heap);
}

// ---------------------------------------------------------------- ranges

TEST(HeapBlocksTest, shouldTakeTheSmallestRangeThatFits) {
  HeapBlocks heap(32);
  const Object three = TakeScratch(heap, 3 * kPage);
  TakeScratch(heap, kPage);
  const Object two = TakeScratch(heap, 2 * kPage);
  TakeScratch(heap, kPage);  // and 25 pages behind it
  heap.Hold(three);
  heap.Hold(two);
  Reclaim(heap);
  EXPECT_EQ(TakeScratch(heap, 2 * kPage).offset, two.offset);
  EXPECT_EQ(TakeScratch(heap, 2 * kPage).offset, three.offset);
  EXPECT_EQ(TakeScratch(heap, kPage).offset, three.offset + 2 * kPage);
  EXPECT_EQ(TakeScratch(heap, kPage).offset, 7 * kPage);
  EXPECT_EQ(heap.totals().largest_range, 24 * kPage);
}

TEST(HeapBlocksTest, shouldJoinARangeWithBothOfItsNeighbours) {
  HeapBlocks heap(5);
  std::array<Object, 5> pages;
  for (Object& page : pages) page = TakeScratch(heap, kPage);
  Free(heap, pages[1]);
  Free(heap, pages[3]);
  EXPECT_EQ(heap.totals().largest_range, kPage);
  Free(heap, pages[2]);
  EXPECT_EQ(heap.totals().largest_range, 3 * kPage);
  EXPECT_EQ(TakeScratch(heap, 3 * kPage).offset, kPage);
}

TEST(HeapBlocksTest, shouldJoinARangeWithTheOneBeforeOrBehind) {
  HeapBlocks heap(4);
  std::array<Object, 4> pages;
  for (Object& page : pages) page = TakeScratch(heap, kPage);
  Free(heap, pages[0]);
  Free(heap, pages[1]);
  EXPECT_EQ(heap.totals().largest_range, 2 * kPage);
  Free(heap, pages[3]);
  EXPECT_EQ(heap.totals().largest_range, 2 * kPage);
  Free(heap, pages[2]);
  ExpectWhole(heap);
}

// ---------------------------------------------------------------- objects

TEST(HeapBlocksTest, shouldFindWhereObjectsBeginAndNowhereElse) {
  HeapBlocks heap(32);
  const Object large = TakeScratch(heap, 2 * kPage);
  const Object small = TakeScratch(heap, 20 * kUnit);
  ASSERT_TRUE(heap.Find(large.offset).has_value());
  EXPECT_EQ(heap.Find(large.offset)->length, 2 * kPage);
  ASSERT_TRUE(heap.Find(small.offset).has_value());
  EXPECT_EQ(heap.Find(small.offset)->block, small.block);
  for (const uint64_t offset :
       {large.offset + 1, large.offset + kUnit, large.offset + kPage, small.offset + 1,
        small.offset + kUnit, small.offset + small.length, small.offset + 51 * small.length,
        heap.bytes() - kPage, heap.bytes(), ~uint64_t{0}}) {
    EXPECT_FALSE(heap.Find(offset).has_value()) << offset;
  }
  Free(heap, large);
  EXPECT_FALSE(heap.Find(large.offset).has_value());
  EXPECT_FALSE(heap.Find(large.offset + kPage).has_value());
}

// A shorter block begins where a longer one did.
TEST(HeapBlocksTest, shouldFindNothingWhereABlockWasLonger) {
  HeapBlocks heap(8);
  Free(heap, TakeScratch(heap, 6 * kPage));
  TakeScratch(heap, kPage);
  for (uint64_t page = 1; page < 8; ++page) EXPECT_FALSE(heap.Find(page * kPage).has_value());
}

TEST(HeapBlocksTest, shouldKnowTheStateOfAnObject) {
  HeapBlocks heap(4);
  const Object object = TakeScratch(heap, 100);
  EXPECT_EQ(heap.StateOf(object), State::kScratch);
  heap.Keep(object);
  EXPECT_EQ(heap.StateOf(object), State::kKept);
  EXPECT_EQ(heap.totals().kept, object.length);
  EXPECT_EQ(heap.Kept(object.block).kept, 1u);
  heap.BeginFree(object);
  EXPECT_EQ(heap.StateOf(object), State::kFreeing);
  EXPECT_EQ(heap.Kept(object.block).pages, 0u);  // the transaction takes the block away
  Reclaim(heap);
  EXPECT_TRUE(heap.Find(object.offset).has_value());
  heap.UndoFree(object);
  EXPECT_EQ(heap.StateOf(object), State::kKept);
  heap.Unkeep(object);
  EXPECT_EQ(heap.StateOf(object), State::kScratch);
  EXPECT_EQ(heap.totals().kept, 0u);
  heap.Keep(object);
  heap.BeginFree(object);
  heap.Hold(object);
  EXPECT_EQ(heap.StateOf(object), State::kFree);
  EXPECT_EQ(heap.held_bytes(), object.length);
  EXPECT_EQ(heap.totals().kept, 0u);
  Reclaim(heap);
  ExpectWhole(heap);
}

TEST(HeapBlocksTest, shouldMarkABlockOnce) {
  HeapBlocks heap(4);
  const Object object = TakeKept(heap, 1);
  EXPECT_TRUE(heap.Mark(object.block));
  EXPECT_FALSE(heap.Mark(object.block));
  heap.Unmark(object.block);
  EXPECT_TRUE(heap.Mark(object.block));
}

TEST(HeapBlocksTest, shouldVisitWhatIsTakenInOrder) {
  HeapBlocks heap(16);
  const Object kept = TakeKept(heap, 64);
  const Object scratch = TakeScratch(heap, 64);
  const Object freeing = TakeKept(heap, 64);
  const Object held = TakeScratch(heap, 64);
  const Object large = TakeKept(heap, 2 * kPage);
  heap.BeginFree(freeing);
  heap.Hold(held);
  std::vector<std::pair<uint64_t, State>> visited;
  heap.ForEachTaken(
      [&](const Object& object, State state) { visited.emplace_back(object.offset, state); });
  EXPECT_THAT(visited, ElementsAre(std::pair(kept.offset, State::kKept),
                                   std::pair(scratch.offset, State::kScratch),
                                   std::pair(large.offset, State::kKept)));
}

// ---------------------------------------------------------------- in use

TEST(HeapBlocksTest, shouldHoldTheObjectsOfABlockThatARangeTouches) {
  HeapBlocks heap(2);
  std::vector<Object> taken;
  for (int i = 0; i < 64; ++i) taken.push_back(TakeScratch(heap, 64));
  for (const Object& object : taken) heap.Hold(object);
  EXPECT_EQ(heap.held_bytes(), kPage);
  Reclaim(heap, {{127, 66}});  // the last byte of one, the next, the first byte of a third
  EXPECT_EQ(heap.totals().held, 3 * kUnit);
  for (int i = 0; i < 61; ++i) {
    const uint64_t offset = TakeScratch(heap, 64).offset;
    EXPECT_TRUE(offset < kUnit || offset >= 4 * kUnit) << offset;
  }
  Reclaim(heap, {{64, 1}});
  EXPECT_EQ(heap.totals().held, kUnit);
  Reclaim(heap, {{64, 0}});
  EXPECT_EQ(heap.totals().held, 0u);
}

TEST(HeapBlocksTest, shouldHoldAllBlocksThatARangeTouches) {
  HeapBlocks heap(32);
  const Object first = TakeScratch(heap, 2 * kPage);
  const Object second = TakeScratch(heap, 3 * kPage);
  const Object third = TakeScratch(heap, kPage);
  for (const Object& object : {first, second, third}) heap.Hold(object);
  Reclaim(heap, {{second.offset - 1, second.length + 2}, {second.offset, 5}});
  EXPECT_EQ(heap.totals().held, 6 * kPage);
  Reclaim(heap, {{second.offset, 1}, {20 * kPage, 12 * kPage}});
  EXPECT_EQ(heap.totals().held, 3 * kPage);
  EXPECT_EQ(TakeScratch(heap, 2 * kPage).offset, first.offset);
  Reclaim(heap, {{0, second.offset}, {third.offset, 1}});
  EXPECT_EQ(heap.totals().held, 0u);
}

TEST(HeapBlocksTest, shouldHoldNothingForARangeBehindTheLastObject) {
  HeapBlocks heap(16);
  const Object object = TakeScratch(heap, 20 * kUnit);
  heap.Hold(object);
  Reclaim(heap, {{51 * object.length, kUnit}});
  EXPECT_EQ(heap.totals().held, 0u);
}

// ---------------------------------------------------------------- loading

class HeapTableTest : public ::testing::Test {
 protected:
  absl::Status Load(const Ranges& in_use = {}) { return heap.Load(table.data(), Using(in_use)); }

  HeapBlocks heap{32};
  std::vector<HeapBlock> table{32};
};

TEST_F(HeapTableTest, shouldLoadWhatWasKept) {
  const Object small = TakeKept(heap, 64);
  const Object scratch = TakeScratch(heap, 64);
  const Object other = TakeKept(heap, 64);
  const Object large = TakeKept(heap, 3 * kPage);
  const Object large_scratch = TakeScratch(heap, kPage);
  for (uint32_t page : {small.block, large.block}) table[page] = heap.Kept(page);
  EXPECT_EQ(table[small.block].kept, 0b101u);
  ASSERT_EQ(Load(), absl::OkStatus());
  EXPECT_EQ(heap.totals().kept, 2 * kUnit + 3 * kPage);
  EXPECT_EQ(heap.totals().scratch, 0u);
  EXPECT_EQ(heap.totals().held, 0u);
  for (const Object& object : {small, other, large}) {
    ASSERT_TRUE(heap.Find(object.offset).has_value());
    EXPECT_EQ(heap.StateOf(object), State::kKept);
  }
  EXPECT_FALSE(heap.Find(large_scratch.offset).has_value());
  EXPECT_EQ(TakeScratch(heap, 64).offset, scratch.offset);
  for (const Object& object : {small, other, large}) {
    heap.BeginFree(object);
    heap.Hold(object);
  }
  heap.Hold(heap.Find(scratch.offset).value());
  Reclaim(heap);
  ExpectWhole(heap);
}

TEST_F(HeapTableTest, shouldLoadAFullBlock) {
  table[3] = {1, 1, ~uint64_t{0}};
  ASSERT_EQ(Load(), absl::OkStatus());
  EXPECT_EQ(heap.totals().kept, kPage);
  EXPECT_NE(TakeScratch(heap, 64).block, 3u);
  const Object object = heap.Find(3 * kPage + 63 * kUnit).value();
  heap.BeginFree(object);
  heap.Hold(object);
  Reclaim(heap);
  EXPECT_EQ(TakeScratch(heap, 64).length, kUnit);
}

TEST_F(HeapTableTest, shouldHoldWhatIsInUseOutsideOfBlocks) {
  table[4] = {2, 0, 1};
  // From before the block to behind it, part of a page alone, and twice.
  const Ranges in_use = {{3 * kPage + 100, 4 * kPage}, {20 * kPage + 5, 1}, {20 * kPage + 6, 9}};
  ASSERT_EQ(Load(in_use), absl::OkStatus());
  EXPECT_EQ(heap.totals().kept, 2 * kPage);
  EXPECT_EQ(heap.totals().held, 4 * kPage);  // 3, 6, 7, 20
  EXPECT_EQ(heap.totals().free, 26 * kPage);
  while (const auto object = heap.Take(kPage, kUnit, false)) {
    const uint64_t page = object->offset / kPage;
    EXPECT_TRUE(page < 3 || (page > 7 && page != 20)) << page;
  }
  Reclaim(heap, {in_use[1]});
  EXPECT_EQ(heap.totals().held, kPage);
  Reclaim(heap);
  EXPECT_EQ(heap.totals().held, 0u);
}

TEST_F(HeapTableTest, shouldHoldWhatIsInUseInsideOfBlocks) {
  table[0] = {1, 1, 0b1};
  table[31] = {1, 0, 1};
  ASSERT_EQ(Load({{0, 2 * kUnit + 1}, {0, 1}, {31 * kPage, kPage}}), absl::OkStatus());
  EXPECT_EQ(heap.totals().kept, kUnit + kPage);
  EXPECT_EQ(heap.totals().held, 2 * kUnit);
  EXPECT_EQ(TakeScratch(heap, 64).offset, 3 * kUnit);
}

TEST_F(HeapTableTest, shouldHoldAWholeHeapThatIsInUse) {
  ASSERT_EQ(Load({{0, heap.bytes()}}), absl::OkStatus());
  EXPECT_EQ(heap.totals().held, heap.bytes());
  EXPECT_FALSE(heap.Take(1, 1, false).has_value());
  Reclaim(heap);
  ExpectWhole(heap);
}

TEST_F(HeapTableTest, shouldForgetWhatWasThereBefore) {
  for (int i = 0; i < 100; ++i) TakeKept(heap, static_cast<uint64_t>(1 + i % 4 * 37));
  heap.Hold(TakeScratch(heap, 64));
  ASSERT_EQ(Load(), absl::OkStatus());
  ExpectWhole(heap);
}

TEST_F(HeapTableTest, shouldRefuseWhatCannotBe) {
  const std::vector<std::pair<uint32_t, HeapBlock>> wrong = {
      {1, {3, 0, 1}},            // into the block at page 3
      {4, {1, 0, 1}},            // in it
      {4, {1, 1, 1}},            //
      {30, {3, 0, 1}},           // beyond the end
      {30, {UINT32_MAX, 0, 1}},  //
      {30, {1, 9, 1}},           // no size class
      {30, {1, 225, 1}},         //
      {30, {1, UINT32_MAX, 1}},  //
      {30, {1, 0, 0}},           // nothing is kept
      {30, {1, 0, 2}},           // behind the last object
      {30, {1, 40, 2}},          //
      {30, {1, 80, 1}},          // no object has room
      {30, {0, 1, 0}},           // no block
      {30, {0, 0, 1}},           //
  };
  for (const auto& [page, block] : wrong) {
    table.assign(32, HeapBlock{});
    table[3] = {2, 0, 1};
    table[page] = block;
    const absl::Status status = Load({{0, heap.bytes()}});
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss)
        << page << ": " << block.pages << " " << block.units << " " << block.kept;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the heap is damaged at page "));
  }
  table.assign(32, HeapBlock{});
  ASSERT_EQ(Load(), absl::OkStatus());
  ExpectWhole(heap);
}

// Whatever another native worker has written: it is refused, or it is a heap.
TEST_F(HeapTableTest, shouldLoadAnyTableOrRefuseIt) {
  std::mt19937_64 random(1);
  int loaded = 0;
  for (int round = 0; round < 20'000; ++round) {
    table.assign(32, HeapBlock{});
    for (uint64_t left = random() % 4; left > 0; --left) {
      HeapBlock& block = table[random() % 32];
      const uint64_t how = random();
      block.pages = static_cast<uint32_t>(how % 8 == 0 ? random() : random() % 17);
      block.units = static_cast<uint32_t>(how % 9 == 0 ? random() : random() % 230);
      block.kept = how % 3 == 0 ? random() : random() % 4;
    }
    Ranges in_use;
    for (uint64_t left = random() % 3; left > 0; --left) {
      const uint64_t offset = random() % heap.bytes();
      in_use.push_back({offset, random() % (heap.bytes() - offset) + 1});
    }
    if (!Load(in_use).ok()) continue;
    ++loaded;
    ExpectAllAccountedFor(heap);
    std::vector<Object> objects;
    heap.ForEachTaken([&](const Object& object, State) { objects.push_back(object); });
    while (const auto object = heap.Take(1 + random() % 9000, kUnit, true)) {
      objects.push_back(*object);
    }
    for (const Object& object : objects) {
      ASSERT_LE(object.offset + object.length, heap.bytes());
      heap.BeginFree(object);
      heap.Hold(object);
    }
    Reclaim(heap);
    ASSERT_NO_FATAL_FAILURE(ExpectWhole(heap));
  }
  EXPECT_GT(loaded, 1000);
}

// ---------------------------------------------------------------- against a model

// An owner of a heap as worker/heap.cc is one, and what has to be true of it.
class ModelledHeap {
 public:
  explicit ModelledHeap(uint64_t seed)
      : random_(seed),
        pages_(static_cast<uint32_t>(1 + random_() % 96)),
        heap_(pages_),
        table_(pages_),
        used_(pages_ * (kPage / kUnit)) {}

  void Run(int steps) {
    for (int step = 0; step < steps; ++step) {
      Step();
      if (step % 32 == 0) Check();
      if (::testing::Test::HasFailure()) {
        ADD_FAILURE() << "after step " << step;
        return;
      }
    }
    FreeAll();
  }

 private:
  enum class Did { kAllocated, kKept, kFreed };
  struct Change {
    Object object;
    Did did;
  };

  uint64_t Below(uint64_t bound) { return random_() % bound; }

  void Step() {
    switch (Below(16)) {
      case 0:
      case 1:
      case 2:
        return Take(/*kept=*/true);
      case 3:
      case 4:
        return Take(/*kept=*/false);
      case 5:
        return Keep();
      case 6:
      case 7:
      case 8:
        return Free();
      case 9:
      case 10:
        return Commit();
      case 11:
        return Abandon();
      case 12:
        return Reclaim();
      case 13:
      case 14:
        return ChangeUse();
      default:
        if (Below(8) == 0) Load();
    }
  }

  uint64_t SomeBytes() {
    switch (Below(4)) {
      case 0:
        return 1 + Below(512);
      case 1:
        return 1 + Below(5000);
      case 2:
        return 1 + Below(20'000);
      default:
        return kPage * (1 + Below(8));
    }
  }

  void Take(bool kept) {
    const uint64_t bytes = SomeBytes();
    const uint64_t alignment = uint64_t{1} << Below(13);
    const std::optional<Object> taken = heap_.Take(bytes, alignment, kept);
    if (!taken.has_value()) {
      EXPECT_LT(heap_.totals().largest_range, bytes);
      return;
    }
    EXPECT_GE(taken->length, bytes);
    EXPECT_EQ(taken->offset % alignment, 0u);
    Occupy(*taken);
    objects_[taken->offset] = *taken;
    if (kept) Note(*taken, Did::kAllocated);
  }

  void Keep() {
    const Object* object = Pick(State::kScratch);
    if (object == nullptr) return;
    Note(*object, Did::kKept);
    heap_.Keep(*object);
  }

  void Free() {
    if (Below(2) == 0) {
      if (const Object* object = Pick(State::kScratch)) Hold(*object);
      return;
    }
    const Object* object = Pick(State::kKept);
    if (object == nullptr) return;
    Note(*object, Did::kFreed);
    heap_.BeginFree(*object);
  }

  void Commit() {
    for (const uint32_t block : changed_) table_[block] = heap_.Kept(block);
    for (const Change& change : staged_) {
      if (change.did == Did::kFreed) {
        committed_.erase(change.object.offset);
        Hold(change.object);
      } else {
        committed_[change.object.offset] = change.object.length;
      }
    }
    Forget();
  }

  void Abandon() {
    std::for_each(staged_.rbegin(), staged_.rend(), [this](const Change& change) {
      if (change.did == Did::kFreed) return heap_.UndoFree(change.object);
      heap_.Unkeep(change.object);
      if (change.did == Did::kAllocated) Hold(change.object);
    });
    Forget();
  }

  void Reclaim() {
    heap_.Reclaim(Using(in_use_));
    std::erase_if(held_, [this](const Object& object) {
      if (InUse(object.offset, object.length)) return false;
      Leave(object);
      return true;
    });
    std::erase_if(pinned_, [this](uint64_t unit) {
      if (InUse(unit * kUnit, kUnit)) return false;
      used_[unit] = false;
      return true;
    });
  }

  void ChangeUse() {
    if (Below(2) == 0 && !in_use_.empty()) {
      in_use_.erase(in_use_.begin() + static_cast<ptrdiff_t>(Below(in_use_.size())));
    }
    if (in_use_.size() >= 6) return;
    if (Below(2) == 0 && !objects_.empty()) {
      const Object object = Nth(Below(objects_.size()));
      in_use_.push_back({object.offset, 1 + Below(object.length)});
    } else {
      const uint64_t offset = Below(heap_.bytes());
      in_use_.push_back({offset, 1 + Below(std::min<uint64_t>(heap_.bytes() - offset, 3 * kPage))});
    }
  }

  // The owner dies, and the next one begins.
  void Load() {
    objects_.clear();
    held_.clear();
    staged_.clear();
    changed_.clear();
    pinned_.clear();
    std::fill(used_.begin(), used_.end(), false);
    ASSERT_EQ(heap_.Load(table_.data(), Using(in_use_)), absl::OkStatus());
    std::map<uint64_t, uint64_t> found;
    heap_.ForEachTaken([&](const Object& object, State state) {
      EXPECT_EQ(state, State::kKept);
      found[object.offset] = object.length;
      Occupy(object);
      objects_[object.offset] = object;
    });
    EXPECT_EQ(found, committed_);
    for (const Range& range : in_use_) {
      for (uint64_t unit = range.offset / kUnit; unit * kUnit < range.offset + range.length;
           ++unit) {
        if (!used_[unit] && !IsBehindObjects(unit)) pinned_.insert(unit);
      }
    }
    for (const uint64_t unit : pinned_) used_[unit] = true;
    Check();
  }

  void Check() {
    uint64_t kept = 0, scratch = 0, held = 0;
    for (const auto& [offset, object] : objects_) {
      const std::optional<Object> found = heap_.Find(offset);
      ASSERT_TRUE(found.has_value()) << offset;
      EXPECT_EQ(found->length, object.length);
      (heap_.StateOf(object) == State::kScratch ? scratch : kept) += object.length;
    }
    for (const Object& object : held_) {
      EXPECT_EQ(heap_.StateOf(object), State::kFree);
      held += object.length;
    }
    const HeapBlocks::Totals totals = heap_.totals();
    EXPECT_EQ(totals.kept, kept);
    EXPECT_EQ(totals.scratch, scratch);
    EXPECT_EQ(totals.held, heap_.held_bytes());
    EXPECT_GE(totals.held, held);
    ExpectAllAccountedFor(heap_);
    EXPECT_LE(totals.largest_range, totals.free);
  }

  void FreeAll() {
    Abandon();
    for (const Object* object; (object = Pick(State::kKept)) != nullptr;) {
      Note(*object, Did::kFreed);
      heap_.BeginFree(*object);
    }
    Commit();
    while (const Object* object = Pick(State::kScratch)) Hold(*object);
    in_use_.clear();
    Reclaim();
    EXPECT_TRUE(committed_.empty());
    EXPECT_EQ(std::count(used_.begin(), used_.end(), true), 0);
    for (const HeapBlock& block : table_) EXPECT_EQ(block.pages, 0u);
    ExpectWhole(heap_);
  }

  void Note(const Object& object, Did did) {
    if (heap_.Mark(object.block)) changed_.push_back(object.block);
    staged_.push_back({object, did});
  }
  void Forget() {
    for (const uint32_t block : changed_) heap_.Unmark(block);
    staged_.clear();
    changed_.clear();
  }
  // By value: it may be the map's own.
  void Hold(Object object) {
    heap_.Hold(object);
    objects_.erase(object.offset);
    held_.push_back(object);
  }

  void Occupy(const Object& object) {
    ASSERT_LE(object.offset + object.length, heap_.bytes());
    for (uint64_t unit = object.offset / kUnit; unit * kUnit < object.offset + object.length;
         ++unit) {
      EXPECT_FALSE(used_[unit]) << "at " << unit * kUnit;
      used_[unit] = true;
    }
  }
  void Leave(const Object& object) {
    for (uint64_t unit = object.offset / kUnit; unit * kUnit < object.offset + object.length;
         ++unit) {
      used_[unit] = false;
    }
  }
  bool InUse(uint64_t offset, uint64_t length) const {
    return std::any_of(in_use_.begin(), in_use_.end(), [&](const Range& range) {
      return range.offset < offset + length && offset < range.offset + range.length;
    });
  }
  // Returns whether a committed block has the unit and none of its objects does: nobody was given
  // it.
  bool IsBehindObjects(uint64_t unit) const {
    for (uint64_t page = 0; page < pages_; ++page) {
      const HeapBlock& block = table_[page];
      const uint64_t begin = page * (kPage / kUnit);
      const uint64_t end = begin + block.pages * (kPage / kUnit);
      if (unit < begin || unit >= end || block.units == 0) continue;
      return unit >= begin + uint64_t{arena::ObjectsOf(block)} * block.units;
    }
    return false;
  }
  const Object& Nth(uint64_t n) const {
    return std::next(objects_.begin(), static_cast<ptrdiff_t>(n))->second;
  }
  // Returns an object in that state, the next behind a random one. It is valid until it is held.
  const Object* Pick(State state) {
    if (objects_.empty()) return nullptr;
    const uint64_t from = Below(objects_.size());
    auto at = std::next(objects_.begin(), static_cast<ptrdiff_t>(from));
    for (size_t left = objects_.size(); left > 0; --left) {
      if (heap_.StateOf(at->second) == state) return &at->second;
      if (++at == objects_.end()) at = objects_.begin();
    }
    return nullptr;
  }

  std::mt19937_64 random_;
  const uint32_t pages_;
  HeapBlocks heap_;
  std::vector<HeapBlock> table_;            // committed
  std::map<uint64_t, uint64_t> committed_;  // the same, by offset
  std::map<uint64_t, Object> objects_;      // scratch, kept and freeing, by offset
  std::vector<Object> held_;
  std::set<uint64_t> pinned_;  // units that were in use when the heap was loaded
  std::vector<bool> used_;     // units in objects, held or pinned
  Ranges in_use_;
  std::vector<Change> staged_;
  std::vector<uint32_t> changed_;
};

TEST(HeapBlocksModelTest, shouldDoWhatThePlainModelDoes) {
  constexpr int kSteps = 5000;
  const uint64_t first = harness::Setting("BATON_FIRST_SEED", 1);
  const uint64_t schedules = harness::Setting("BATON_SCHEDULES", 40);
  for (uint64_t seed = first; seed < first + schedules; ++seed) {
    ModelledHeap(seed).Run(kSteps);
    ASSERT_FALSE(HasFailure()) << "BATON_FIRST_SEED=" << seed << " BATON_SCHEDULES=1 replays it";
  }
}

}  // namespace
}  // namespace baton
