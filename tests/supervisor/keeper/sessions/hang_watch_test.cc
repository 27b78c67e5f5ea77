#include "supervisor/keeper/sessions/hang_watch.h"

#include <gtest/gtest.h>

namespace baton::keeper {
namespace {

TEST(LooksUntilHungTest, shouldRoundUp) {
  // Two looks were 200 ms: a worker that beats each 125 ms would be killed between two beats.
  EXPECT_EQ(LooksUntilHung(125, 250, 100), 3u);
  EXPECT_EQ(LooksUntilHung(1000, 300'001, 100), 3001u);
}

TEST(LooksUntilHungTest, shouldBeNoMoreThanTheTimeoutNeeds) {
  EXPECT_EQ(LooksUntilHung(100, 300, 100), 3u);
  EXPECT_EQ(LooksUntilHung(1, 2, 1), 2u);
}

TEST(LooksUntilHungTest, shouldWaitForTwoHeartbeats) {
  EXPECT_EQ(LooksUntilHung(1000, 300, 100), 20u);
  EXPECT_EQ(LooksUntilHung(1000, 1, 100), 20u);
}

TEST(LooksUntilHungTest, shouldTakeTheLongestTimeout) {
  EXPECT_EQ(LooksUntilHung(100, 4'294'967'295, 100), 42'949'673u);
}

}  // namespace
}  // namespace baton::keeper
