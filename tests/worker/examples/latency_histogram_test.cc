#include "worker/examples/peer/latency_histogram.h"

#include <cstdint>

#include "gtest/gtest.h"
#include "worker/examples/peer/silence_meter.h"

namespace baton::peer {
namespace {

TEST(LatencyHistogramTest, IsEmptyAtFirst) {
  const LatencyHistogram histogram;
  EXPECT_EQ(histogram.count(), 0u);
  EXPECT_EQ(histogram.max(), 0u);
  EXPECT_EQ(histogram.Quantile(0.99), 0u);
}

TEST(LatencyHistogramTest, SmallValuesAreExact) {
  LatencyHistogram histogram;
  for (uint64_t value = 1; value <= 10; ++value) histogram.Add(value);
  EXPECT_EQ(histogram.Quantile(0.5), 5u);
  EXPECT_EQ(histogram.Quantile(1.0), 10u);
  EXPECT_EQ(histogram.max(), 10u);
}

// Every value's bucket ends at or above it, and by less than 1/16 of it.
TEST(LatencyHistogramTest, QuantilesAreNeverTooSmallAndLittleTooLarge) {
  for (uint64_t value = 1; value < uint64_t{1} << 40; value += 1 + value / 7) {
    LatencyHistogram histogram;
    histogram.Add(value);
    histogram.Add((uint64_t{1} << 41));  // so that the maximum does not correct the quantile
    const uint64_t quantile = histogram.Quantile(0.5);
    ASSERT_GE(quantile, value);
    ASSERT_LE(quantile, value + value / 16);
  }
}

TEST(LatencyHistogramTest, HugeValuesKeepTheMaximum) {
  LatencyHistogram histogram;
  histogram.Add(~uint64_t{0});
  EXPECT_EQ(histogram.max(), ~uint64_t{0});
  EXPECT_GT(histogram.Quantile(0.5), uint64_t{1} << 39);
}

TEST(LatencyHistogramTest, MergeAddsUp) {
  LatencyHistogram one, two;
  for (int i = 0; i < 99; ++i) one.Add(1000);
  two.Add(1'000'000);
  one.Merge(two);
  EXPECT_EQ(one.count(), 100u);
  EXPECT_LT(one.Quantile(0.99), 1100u);
  EXPECT_GE(one.Quantile(0.999), 1'000'000u);
}

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
