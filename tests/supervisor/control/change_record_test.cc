#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "supervisor/control/change_record.h"

namespace baton {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kStart = 1000 * kSecondNs;
constexpr char kChange[] = "Handoff of shard 0";
constexpr uint64_t kRecordsBytes = 2500;  // of one failed change: Begin and End
constexpr int kDifferent = 64;            // failed changes of a caller that are told apart

TEST(ChangeBudgetTest, shouldAllowABurstAndThenSoManyASecond) {
  ChangeBudget budget;
  for (uint32_t i = 0; i < ChangeBudget::kBurst; ++i) {
    ASSERT_TRUE(budget.Take("uid 0", kChange, kStart).allowed);
  }
  EXPECT_FALSE(budget.Take("uid 0", kChange, kStart).allowed);
  EXPECT_TRUE(budget.Take("uid 7", kChange, kStart).allowed);
  for (uint32_t i = 0; i < ChangeBudget::kPerSecond; ++i) {
    EXPECT_TRUE(budget.Take("uid 0", kChange, kStart + kSecondNs).allowed);
  }
  EXPECT_FALSE(budget.Take("uid 0", kChange, kStart + kSecondNs).allowed);
}

TEST(ChangeBudgetTest, shouldPutWhatItRefusedOnRecordOnceAMinute) {
  ChangeBudget budget;
  for (uint32_t i = 0; i < ChangeBudget::kBurst; ++i) (void)budget.Take("uid 0", kChange, kStart);
  EXPECT_EQ(budget.Take("uid 0", kChange, kStart).to_record, 1u);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(budget.Take("uid 0", kChange, kStart).to_record, 0u);
  const ChangeBudget::Verdict later = budget.Take("uid 0", kChange, kStart + 60 * kSecondNs);
  EXPECT_TRUE(later.allowed);
  EXPECT_EQ(later.to_record, 500u);
  EXPECT_EQ(budget.Take("uid 0", kChange, kStart + 120 * kSecondNs).to_record, 0u);
}

TEST(ChangeBudgetTest, shouldBoundTheBytesThatFailedChangesPutOnRecord) {
  ChangeBudget budget;
  uint64_t bytes = 0;
  const uint64_t days = 3;
  for (uint64_t ns = 0; ns < days * 86'400 * kSecondNs; ns += kSecondNs / 2) {
    if (!budget.Take("uid 0", kChange, kStart + ns).allowed) continue;
    budget.Failed("uid 0", kChange, kRecordsBytes, kStart + ns);
    bytes += kRecordsBytes;
  }
  EXPECT_LE(bytes, ChangeBudget::kFailedBytesBurst + days * ChangeBudget::kFailedBytesPerDay +
                       kRecordsBytes);
  EXPECT_GE(bytes, days * ChangeBudget::kFailedBytesPerDay);
}

TEST(ChangeBudgetTest, shouldSayHowLongACallerWhoseChangesFailHasToWait) {
  ChangeBudget budget;
  ASSERT_TRUE(budget.Take("uid 0", kChange, kStart).allowed);
  // Changes that were under way at the same time may together go beyond the budget.
  budget.Failed("uid 0", kChange, ChangeBudget::kFailedBytesBurst + kRecordsBytes, kStart);
  const ChangeBudget::Verdict refused = budget.Take("uid 0", kChange, kStart);
  EXPECT_FALSE(refused.allowed);
  EXPECT_TRUE(refused.failed_too_much);
  EXPECT_EQ(refused.to_record, 1u);
  EXPECT_GT(refused.wait_ns, 60 * kSecondNs);
  EXPECT_FALSE(budget.Take("uid 0", kChange, kStart + refused.wait_ns - kSecondNs).allowed);
  EXPECT_TRUE(budget.Take("uid 0", kChange, kStart + refused.wait_ns + 1000).allowed);
  EXPECT_TRUE(budget.Take("uid 7", kChange, kStart).allowed);
}

TEST(ChangeBudgetTest, shouldRefuseNoOtherChangeThanTheOneThatFails) {
  ChangeBudget budget;
  budget.Failed("uid 0", kChange, 2 * ChangeBudget::kFailedBytesBurst, kStart);
  EXPECT_FALSE(budget.Take("uid 0", kChange, kStart).allowed);
  EXPECT_TRUE(budget.Take("uid 0", "Drain", kStart).allowed);
  budget.Failed("uid 0", "Drain", kRecordsBytes, kStart);
  EXPECT_FALSE(budget.Take("uid 0", "Drain", kStart).allowed);
  budget.Succeeded("uid 0", "Drain", kStart);
  EXPECT_TRUE(budget.Take("uid 0", "Drain", kStart).allowed);
}

TEST(ChangeBudgetTest, shouldRefuseAllOnceACallerHasFailedAtManyDifferentOnes) {
  ChangeBudget budget;
  budget.Failed("uid 0", kChange, 2 * ChangeBudget::kFailedBytesBurst, kStart);
  uint64_t tried = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::string change = "Handoff of shard " + std::to_string(i);
    if (!budget.Take("uid 0", change, kStart).allowed) continue;
    budget.Failed("uid 0", change, kRecordsBytes, kStart);
    ++tried;
  }
  EXPECT_LT(tried, 100u);
}

TEST(ChangeBudgetTest, shouldSayWhetherTheChangeItselfHasFailed) {
  ChangeBudget budget;
  EXPECT_FALSE(budget.Take("uid 0", kChange, kStart).failed_itself);
  budget.Failed("uid 0", kChange, 2 * ChangeBudget::kFailedBytesBurst, kStart);
  EXPECT_TRUE(budget.Take("uid 0", kChange, kStart).failed_itself);
  for (int i = 1; i < kDifferent; ++i) {
    budget.Failed("uid 0", "Handoff of shard " + std::to_string(i), kRecordsBytes, kStart);
  }
  const ChangeBudget::Verdict another = budget.Take("uid 0", "Drain", kStart);
  EXPECT_FALSE(another.allowed);
  EXPECT_TRUE(another.failed_too_much);
  EXPECT_FALSE(another.failed_itself);
}

TEST(ChangeBudgetTest, shouldForgetWhatFailedBeforeTheBudgetWasFullAgain) {
  ChangeBudget budget;
  uint64_t now = kStart;
  for (int i = 1; i <= 3 * kDifferent; ++i) {
    const std::string change = "Handoff of shard " + std::to_string(i);
    ASSERT_TRUE(budget.Take("uid 0", change, now).allowed);
    budget.Failed("uid 0", change, kRecordsBytes, now);
    now += 3600 * kSecondNs;
  }
  // A script begins to repeat what fails.
  budget.Failed("uid 0", kChange, 2 * ChangeBudget::kFailedBytesBurst, now);
  EXPECT_FALSE(budget.Take("uid 0", kChange, now).allowed);
  EXPECT_TRUE(budget.Take("uid 0", "Drain", now).allowed);
  EXPECT_TRUE(budget.Take("uid 0", "Handoff of shard 1", now).allowed);
}

TEST(ChangeBudgetTest, shouldForgetNothingWhileTheBudgetIsNotFull) {
  for (const bool full : {false, true}) {
    ChangeBudget budget;
    budget.Failed("uid 0", kChange, 2 * ChangeBudget::kFailedBytesBurst, kStart);
    // It takes a day.
    const uint64_t later = kStart + (full ? 25 : 23) * 3600 * kSecondNs;
    budget.Failed("uid 0", "Drain", 2 * ChangeBudget::kFailedBytesBurst, later);
    EXPECT_FALSE(budget.Take("uid 0", "Drain", later).allowed);
    EXPECT_EQ(budget.Take("uid 0", kChange, later).allowed, full);
  }
}

// It fails at one change until that is not tried any more, then at as many others as it may, and
// waits until its budget may be full.
TEST(ChangeBudgetTest, shouldBoundTheBytesOfACallerThatWaitsUntilAllIsForgotten) {
  constexpr uint64_t kMostRecordsBytes = 24 << 10;
  constexpr uint64_t kTimes = 20;
  constexpr uint64_t kPauseHours = 25;
  ChangeBudget budget;
  uint64_t bytes = 0;
  uint64_t now = kStart;
  const auto may_fail = [&](const std::string& change) {
    if (!budget.Take("uid 0", change, now).allowed) return false;
    budget.Failed("uid 0", change, kMostRecordsBytes, now);
    bytes += kMostRecordsBytes;
    return true;
  };
  for (uint64_t i = 0; i < kTimes; ++i) {
    while (may_fail(kChange)) {
    }
    for (int shard = 1; may_fail("Handoff of shard " + std::to_string(shard)); ++shard) {
    }
    now += kPauseHours * 3600 * kSecondNs;
  }
  EXPECT_LE(bytes, ChangeBudget::kFailedBytesBurst + kDifferent * kMostRecordsBytes +
                       kTimes * kPauseHours * ChangeBudget::kFailedBytesPerDay / 24);
}

TEST(ChangeBudgetTest, shouldNotCountChangesThatSucceedAsFailed) {
  ChangeBudget budget;
  for (uint64_t i = 0; i < 100'000; ++i) {
    ASSERT_TRUE(
        budget.Take("uid 0", kChange, kStart + i * kSecondNs / ChangeBudget::kPerSecond).allowed);
  }
}

TEST(ChangeBudgetTest, shouldNotForgetACallerWhoseChangesFailedLately) {
  ChangeBudget budget;
  budget.Failed("uid 0", kChange, 2 * ChangeBudget::kFailedBytesBurst, kStart);
  const uint64_t later = kStart + 3600 * kSecondNs;
  for (int i = 1; i < 300; ++i) (void)budget.Take("uid " + std::to_string(i), kChange, kStart);
  (void)budget.Take("another", kChange, later);
  EXPECT_FALSE(budget.Take("uid 0", kChange, later).allowed);
}

TEST(ChangeBudgetTest, shouldKeepABoundedNumberOfCallers) {
  ChangeBudget budget;
  for (int i = 0; i < 256; ++i) (void)budget.Take("uid " + std::to_string(i), kChange, kStart);
  // No place is left, and nobody is refused for that; all others together have one.
  for (uint32_t i = 0; i < ChangeBudget::kBurst; ++i) {
    ASSERT_TRUE(budget.Take("other " + std::to_string(i), kChange, kStart).allowed);
  }
  EXPECT_FALSE(budget.Take("another", kChange, kStart).allowed);
  EXPECT_TRUE(budget.Take("uid 3", kChange, kStart).allowed);
  // Callers that have asked for nothing lately make room.
  EXPECT_TRUE(budget.Take("another", kChange, kStart + 3600 * kSecondNs).allowed);
}

}  // namespace
}  // namespace baton
