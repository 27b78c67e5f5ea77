#include "worker/examples/peer/timeline.h"
#include "gtest/gtest.h"

namespace baton::peer {
namespace {

TEST(SilenceMeterTest, IdleIsNoSilence) {
  SilenceMeter meter;
  EXPECT_EQ(meter.Longest(1000), 0u);
  meter.OnRequest(1000);
  EXPECT_EQ(meter.OnReply(1300, 0), 300u);
  EXPECT_EQ(meter.Longest(9000), 300u);
}

TEST(SilenceMeterTest, ReplyBeginsTheNextSilenceWhileRequestsAreOpen) {
  SilenceMeter meter;
  meter.OnRequest(1000);
  meter.OnRequest(1100);
  EXPECT_EQ(meter.OnReply(1200, 1), 200u);
  EXPECT_EQ(meter.OnReply(1700, 0), 500u);
  EXPECT_EQ(meter.Longest(5000), 500u);
}

TEST(SilenceMeterTest, OngoingSilenceCountsInBothWindows) {
  SilenceMeter meter;
  meter.OnRequest(1000);
  EXPECT_EQ(meter.Longest(1400), 400u);
  meter.BeginWindow();
  EXPECT_EQ(meter.OnReply(2000, 0), 1000u);
  EXPECT_EQ(meter.Longest(2000), 1000u);
  meter.BeginWindow();
  EXPECT_EQ(meter.Longest(3000), 0u);
}

}  // namespace
}  // namespace baton::peer
