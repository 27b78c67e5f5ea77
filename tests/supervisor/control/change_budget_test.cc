#include "supervisor/control/change_budget.h"

#include <string>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kStart = 1000 * kSecondNs;

TEST(ChangeBudgetTest, shouldAllowABurstAndThenSoManyASecond) {
  ChangeBudget budget;
  for (uint32_t i = 0; i < ChangeBudget::kBurst; ++i) {
    ASSERT_TRUE(budget.Take("uid 0", kStart).allowed);
  }
  EXPECT_FALSE(budget.Take("uid 0", kStart).allowed);
  EXPECT_TRUE(budget.Take("uid 7", kStart).allowed);
  for (uint32_t i = 0; i < ChangeBudget::kPerSecond; ++i) {
    EXPECT_TRUE(budget.Take("uid 0", kStart + kSecondNs).allowed);
  }
  EXPECT_FALSE(budget.Take("uid 0", kStart + kSecondNs).allowed);
}

TEST(ChangeBudgetTest, shouldPutWhatItRefusedOnRecordOnceAMinute) {
  ChangeBudget budget;
  for (uint32_t i = 0; i < ChangeBudget::kBurst; ++i) (void)budget.Take("uid 0", kStart);
  EXPECT_EQ(budget.Take("uid 0", kStart).to_record, 1u);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(budget.Take("uid 0", kStart).to_record, 0u);
  const ChangeBudget::Verdict later = budget.Take("uid 0", kStart + 60 * kSecondNs);
  EXPECT_TRUE(later.allowed);
  EXPECT_EQ(later.to_record, 500u);
  EXPECT_EQ(budget.Take("uid 0", kStart + 120 * kSecondNs).to_record, 0u);
}

TEST(ChangeBudgetTest, shouldKeepABoundedNumberOfCallers) {
  ChangeBudget budget;
  for (int i = 0; i < 256; ++i) (void)budget.Take("uid " + std::to_string(i), kStart);
  // No place is left, and nobody is refused for that; all others together have one.
  for (uint32_t i = 0; i < ChangeBudget::kBurst; ++i) {
    ASSERT_TRUE(budget.Take("other " + std::to_string(i), kStart).allowed);
  }
  EXPECT_FALSE(budget.Take("another", kStart).allowed);
  EXPECT_TRUE(budget.Take("uid 3", kStart).allowed);
  // Callers that have asked for nothing lately make room.
  EXPECT_TRUE(budget.Take("another", kStart + 3600 * kSecondNs).allowed);
}

}  // namespace
}  // namespace baton
