#include "tests/bench/plain_bfc.h"

#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace baton::bench {
namespace {

constexpr uint64_t kBytes = 64 * 1024;

TEST(PlainBfcTest, shouldTakeTheSmallestThatFits) {
  PlainBfc heap(kBytes);
  const auto large = heap.Allocate(1024), between = heap.Allocate(64);
  const auto small = heap.Allocate(512), last = heap.Allocate(64);
  ASSERT_TRUE(large && between && small && last);
  heap.Free(*large);
  heap.Free(*small);
  EXPECT_EQ(heap.Allocate(500), small);
  EXPECT_EQ(heap.Allocate(600), large);
}

TEST(PlainBfcTest, shouldJoinWhatIsFree) {
  PlainBfc heap(kBytes);
  std::vector<uint64_t> all;
  while (const std::optional<uint64_t> offset = heap.Allocate(4096)) all.push_back(*offset);
  EXPECT_EQ(all.size(), kBytes / 4096);
  EXPECT_EQ(heap.free_bytes(), 0u);
  for (size_t i = 0; i < all.size(); i += 2) heap.Free(all[i]);
  EXPECT_EQ(heap.Allocate(4097), std::nullopt);
  for (size_t i = 1; i < all.size(); i += 2) heap.Free(all[i]);
  EXPECT_EQ(heap.Allocate(kBytes), 0u);
}

TEST(PlainBfcTest, shouldGiveNothingOutTwice) {
  PlainBfc heap(kBytes);
  std::mt19937_64 random(1);
  std::vector<bool> used(kBytes / PlainBfc::kUnitBytes);
  std::vector<std::pair<uint64_t, uint64_t>> live;  // in units
  for (int i = 0; i < 20'000; ++i) {
    if (!live.empty() && random() % 2 == 0) {
      std::swap(live[random() % live.size()], live.back());
      for (uint64_t j = 0; j < live.back().second; ++j) used[live.back().first + j] = false;
      heap.Free(live.back().first * PlainBfc::kUnitBytes);
      live.pop_back();
      continue;
    }
    const uint64_t units = 1 + random() % 60;
    const std::optional<uint64_t> offset = heap.Allocate(units * PlainBfc::kUnitBytes);
    if (!offset) continue;
    live.emplace_back(*offset / PlainBfc::kUnitBytes, units);
    for (uint64_t j = 0; j < units; ++j) {
      ASSERT_FALSE(used[live.back().first + j]);
      used[live.back().first + j] = true;
    }
  }
  for (const auto& [offset, units] : live) heap.Free(offset * PlainBfc::kUnitBytes);
  EXPECT_EQ(heap.free_bytes(), kBytes);
  EXPECT_EQ(heap.Allocate(kBytes), 0u);
}

}  // namespace
}  // namespace baton::bench
