#include "lib/verbs/mlx5/seen_slots.h"

#include <gtest/gtest.h>

#include <array>

namespace baton::verbs::mlx5 {
namespace {

constexpr uint32_t kSlots = 32;

class SeenSlotsTest : public ::testing::Test {
 protected:
  uint8_t* SlotOf(uint16_t counter) { return &slots_[counter % kSlots * kSlotBytes]; }
  void See(uint16_t next, uint16_t queued) { seen_.See(slots_.data(), kSlots, next, queued); }
  bool IsUnchanged(uint16_t counter) { return seen_.IsUnchanged(counter, SlotOf(counter)); }

  std::array<uint8_t, kSlots* kSlotBytes> slots_ = {};
  SeenSlots seen_;
};

TEST_F(SeenSlotsTest, shouldNoticeAChangeOfWhatItHasSeen) {
  See(0, 3);
  EXPECT_TRUE(IsUnchanged(1));
  SlotOf(1)[63] = 1;
  EXPECT_FALSE(IsUnchanged(1));
  EXPECT_TRUE(IsUnchanged(2));
}

TEST_F(SeenSlotsTest, shouldNotKnowWhatItHasNotSeen) {
  See(0, 3);
  SlotOf(3)[0] = 1;
  EXPECT_TRUE(IsUnchanged(3));
  See(0, 4);
  SlotOf(3)[0] = 2;
  EXPECT_FALSE(IsUnchanged(3));
}

TEST_F(SeenSlotsTest, shouldForgetWhatWasExecuted) {
  See(0, 3);
  See(2, 3);
  SlotOf(1)[0] = 1;
  EXPECT_TRUE(IsUnchanged(1));
  See(20, 20);
  SlotOf(2)[0] = 1;
  EXPECT_TRUE(IsUnchanged(2));
}

TEST_F(SeenSlotsTest, shouldSeeAFewSlotsAheadAndGoOnAroundTheCounters) {
  constexpr uint16_t kFirst = 0xfffa;
  const uint16_t behind = static_cast<uint16_t>(kFirst + SeenSlots::kMost);
  See(kFirst, static_cast<uint16_t>(kFirst + kSlots));
  SlotOf(behind)[0] = 1;
  EXPECT_TRUE(IsUnchanged(behind));
  See(kFirst + 1, static_cast<uint16_t>(kFirst + kSlots));
  SlotOf(behind)[0] = 2;
  EXPECT_FALSE(IsUnchanged(behind));
}

// Neither is what a correct client does.
TEST_F(SeenSlotsTest, shouldTakeARecordThatGoesBackOrTooFar) {
  See(0, 8);
  See(0, 2);
  SlotOf(5)[0] = 1;
  EXPECT_FALSE(IsUnchanged(5));
  See(0, kSlots + 1);
  EXPECT_FALSE(IsUnchanged(5));
}

}  // namespace
}  // namespace baton::verbs::mlx5
