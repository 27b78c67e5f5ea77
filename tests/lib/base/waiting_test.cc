#include "gtest/gtest.h"
#include "lib/base/pauses.h"
#include "lib/base/token_bucket.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kSecond = 1'000'000'000;

TEST(TokenBucketTest, shouldBeginFullAndFillAtItsRate) {
  TokenBucket bucket(/*per_second=*/10, /*most=*/2, /*now_ns=*/5);
  EXPECT_TRUE(bucket.TryTake(5));
  EXPECT_TRUE(bucket.TryTake(5));
  EXPECT_FALSE(bucket.TryTake(5));
  EXPECT_EQ(bucket.NanosecondsToWait(5), kSecond / 10);
  EXPECT_TRUE(bucket.TryTake(5 + kSecond / 10));
  EXPECT_FALSE(bucket.TryTake(5 + kSecond / 10));
}

TEST(TokenBucketTest, shouldHoldNoMoreThanItTakes) {
  TokenBucket bucket(10, 2, 0);
  EXPECT_EQ(bucket.NanosecondsToWait(1000 * kSecond), 0u);
  EXPECT_TRUE(bucket.TryTake(1000 * kSecond));
  EXPECT_TRUE(bucket.TryTake(1000 * kSecond));
  EXPECT_FALSE(bucket.TryTake(1000 * kSecond));
}

TEST(TokenBucketTest, shouldNotBeFilledByATimeThatIsBeforeTheLastOne) {
  TokenBucket bucket(10, 2, 5 * kSecond);
  EXPECT_TRUE(bucket.TryTake(5 * kSecond));
  EXPECT_TRUE(bucket.TryTake(5 * kSecond));
  EXPECT_FALSE(bucket.TryTake(5 * kSecond - 1));
  EXPECT_TRUE(bucket.TryTake(5 * kSecond + kSecond / 10));
}

TEST(TokenBucketTest, shouldOweNoMoreThanItMay) {
  TokenBucket bucket(10, 2, 0);
  bucket.Take(100, /*most_debt=*/4);
  EXPECT_EQ(bucket.NanosecondsToWait(0), kSecond / 2);
}

TEST(BackOffTest, shouldDoubleUpToTheLimit) {
  BackOff back_off(milliseconds(10), milliseconds(5'000));
  for (const int expected : {10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5000, 5000}) {
    EXPECT_EQ(back_off.Next(), milliseconds(expected));
  }
}

TEST(BackOffTest, shouldStartOverAfterAReset) {
  BackOff back_off(milliseconds(20), milliseconds(2'000));
  for (int i = 0; i < 5; ++i) back_off.Next();
  back_off.Reset();
  EXPECT_EQ(back_off.Next(), milliseconds(20));
  EXPECT_EQ(back_off.Next(), milliseconds(40));
}

TEST(BackOffTest, shouldHeedLimitsThatHaveChanged) {
  BackOff back_off(milliseconds(1), milliseconds(100'000));
  for (int i = 0; i < 20; ++i) back_off.Next();
  back_off.SetLimits(milliseconds(7), milliseconds(50));
  EXPECT_EQ(back_off.Next(), milliseconds(50));
  back_off.SetLimits(milliseconds(300), milliseconds(1'000));
  EXPECT_EQ(back_off.Next(), milliseconds(300));
}

TEST(BackOffTest, shouldStayAtALimitThatIsTheFirstPause) {
  BackOff back_off(milliseconds(3), milliseconds(3));
  EXPECT_EQ(back_off.Next(), milliseconds(3));
  EXPECT_EQ(back_off.Next(), milliseconds(3));
}

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
