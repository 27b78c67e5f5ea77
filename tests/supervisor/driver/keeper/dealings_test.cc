#include "supervisor/driver/keeper/dealings.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::driver_process {
namespace {

using ::testing::HasSubstr;

internal::DealWith What(const std::string& what, const std::string& key = "") {
  internal::DealWith order;
  order.set_what(what);
  order.set_held_key(key);
  return order;
}

// Keepers begin to deal with it, and end.
void DieOf(Dealings& dealings, const std::string& what, uint32_t times) {
  for (uint32_t i = 0; i < times; ++i) {
    ASSERT_TRUE(dealings.Begin(What(what)).ok());
    ASSERT_TRUE(dealings.NoteDeath("died").has_value());
  }
}

TEST(DealingsTest, shouldRefuseWhatThreeKeepersInARowHaveDiedOfAndNothingElse) {
  Dealings dealings;
  DieOf(dealings, "a", 3);
  const absl::Status refused = dealings.Begin(What("a"));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("3 keepers in a row"));
  // The keeper that was refused deals with nothing.
  EXPECT_FALSE(dealings.NoteDeath("died").has_value());
  EXPECT_TRUE(dealings.Begin(What("b")).ok());
  EXPECT_TRUE(dealings.Begin(What("")).ok());
  EXPECT_FALSE(dealings.Begin(What("a")).ok());
}

TEST(DealingsTest, shouldCountAnewWhatAKeeperHasDoneWith) {
  Dealings dealings;
  DieOf(dealings, "a", 2);
  ASSERT_TRUE(dealings.Begin(What("a")).ok());
  EXPECT_FALSE(dealings.TakeCountEnded());
  ASSERT_TRUE(dealings.Begin(What("")).ok());
  EXPECT_TRUE(dealings.TakeCountEnded());
  EXPECT_FALSE(dealings.TakeCountEnded());
  DieOf(dealings, "a", 2);
  EXPECT_TRUE(dealings.Begin(What("a")).ok());
}

TEST(DealingsTest, shouldTryAgainLongAfterTheLastDeath) {
  Dealings dealings;
  const Dealings::Clock::time_point begin;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(dealings.Begin(What("a"), begin).ok());
    ASSERT_TRUE(dealings.NoteDeath("died", begin).has_value());
  }
  const Dealings::Clock::time_point end = begin + Dealings::kRemembered;
  EXPECT_FALSE(dealings.Begin(What("a"), end - Dealings::Clock::duration(1)).ok());
  EXPECT_TRUE(dealings.Begin(What("a"), end).ok());
}

TEST(DealingsTest, shouldCountTwoThingsSideBySide) {
  Dealings dealings;
  for (int i = 0; i < 3; ++i) {
    DieOf(dealings, "a", 1);
    DieOf(dealings, "b", 1);
  }
  EXPECT_FALSE(dealings.Begin(What("a")).ok());
  EXPECT_FALSE(dealings.Begin(What("b")).ok());
}

TEST(DealingsTest, shouldBlameNothingThatTheKeeperDidNotName) {
  Dealings dealings;
  EXPECT_FALSE(dealings.NoteDeath("died").has_value());
  ASSERT_TRUE(dealings.Begin(What("a")).ok());
  dealings.NoteOrderlyEnd();
  EXPECT_FALSE(dealings.NoteDeath("died").has_value());
}

TEST(DealingsTest, shouldCountAHeldEntryAnewAfterItsThirdDeath) {
  Dealings dealings;
  for (uint32_t i = 1; i <= 3; ++i) {
    ASSERT_TRUE(dealings.Begin(What("held x", "x")).ok());
    const auto death = dealings.NoteDeath("died");
    ASSERT_TRUE(death.has_value());
    EXPECT_EQ(death->deaths, i);
    EXPECT_EQ(death->what.held_key(), "x");
  }
  EXPECT_TRUE(dealings.Begin(What("held x", "x")).ok());
}

TEST(DealingsTest, shouldForgetCountsOfAFormerProgramAndTheOldestOfTooMany) {
  Dealings dealings;
  DieOf(dealings, "a", 3);
  dealings.ForgetCounts();
  EXPECT_TRUE(dealings.Begin(What("a")).ok());
  ASSERT_TRUE(dealings.Begin(What("")).ok());
  DieOf(dealings, "a", 3);
  for (size_t i = 1; i < Dealings::kMostCounts; ++i) DieOf(dealings, absl::StrCat(i), 1);
  EXPECT_FALSE(dealings.Begin(What("a")).ok());
  DieOf(dealings, "one more", 1);
  EXPECT_TRUE(dealings.Begin(What("a")).ok());
}

}  // namespace
}  // namespace baton::driver_process
