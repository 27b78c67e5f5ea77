#include "lib/waiting/token_bucket.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

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

}  // namespace
}  // namespace baton
