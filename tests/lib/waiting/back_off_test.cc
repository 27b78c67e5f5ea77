#include "lib/waiting/back_off.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

using std::chrono::milliseconds;

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

}  // namespace
}  // namespace baton
