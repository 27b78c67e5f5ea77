#include "lib/waiting/yield_budget.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(YieldBudget, shouldYieldForTheWholeLimitWhileWaitsEndWithinIt) {
  YieldBudget budget(200);
  EXPECT_EQ(budget.nanoseconds(), YieldBudget::kLeastNs);
  budget.NoteWait(799'999);
  EXPECT_EQ(budget.nanoseconds(), 200'000u);
  budget.NoteWait(1);
  EXPECT_EQ(budget.nanoseconds(), 200'000u);
}

TEST(YieldBudget, shouldGiveUpSoonWhenNothingComes) {
  YieldBudget budget(200);
  budget.NoteWait(1);
  budget.NoteWait(800'000);
  EXPECT_EQ(budget.nanoseconds(), 100'000u);
  for (int i = 0; i < 10; ++i) budget.NoteWait(1'000'000'000);
  EXPECT_EQ(budget.nanoseconds(), YieldBudget::kLeastNs);
}

TEST(YieldBudget, shouldCallSoonWhatItIsTold) {
  YieldBudget budget(200, /*soon=*/1);
  budget.NoteWait(199'999);
  EXPECT_EQ(budget.nanoseconds(), 200'000u);
  budget.NoteWait(200'000);
  EXPECT_EQ(budget.nanoseconds(), 100'000u);
}

TEST(YieldBudget, shouldKeepToALimitBelowTheLeast) {
  YieldBudget never(0), little(2);
  for (int i = 0; i < 3; ++i) {
    never.NoteWait(1);
    little.NoteWait(i % 2 == 0 ? 1 : 1'000'000);
    EXPECT_EQ(never.nanoseconds(), 0u);
    EXPECT_EQ(little.nanoseconds(), 2'000u);
  }
}

}  // namespace
}  // namespace baton
