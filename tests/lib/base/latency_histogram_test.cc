#include "lib/base/latency_histogram.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace baton {
namespace {

TEST(LatencyHistogramTest, shouldBeEmptyAtFirst) {
  const LatencyHistogram histogram;
  EXPECT_EQ(histogram.count(), 0u);
  EXPECT_EQ(histogram.max(), 0u);
  EXPECT_EQ(histogram.Quantile(0.5), 0u);
}

TEST(LatencyHistogramTest, shouldBeExactForSmallValues) {
  LatencyHistogram histogram;
  for (uint64_t i = 0; i < 32; ++i) histogram.Record(i);
  EXPECT_EQ(histogram.Quantile(0), 0u);
  EXPECT_EQ(histogram.Quantile(0.5), 15u);
  EXPECT_EQ(histogram.Quantile(1), 31u);
}

TEST(LatencyHistogramTest, shouldBeWithinThreePercentOverTheWholeRange) {
  for (uint64_t value = 1; value < uint64_t{1} << 62; value = value * 5 / 3 + 1) {
    LatencyHistogram histogram;
    histogram.Record(value);
    histogram.Record(UINT64_MAX);  // so that the maximum does not cut the bucket
    const uint64_t quantile = histogram.Quantile(0);
    EXPECT_GE(quantile, value);
    EXPECT_LE(static_cast<double>(quantile), static_cast<double>(value) * 1.032) << value;
  }
}

TEST(LatencyHistogramTest, shouldCountWhatIsNoLonger) {
  LatencyHistogram histogram;
  for (const uint64_t value : {10u, 31u, 1'000u, 1'000'000u}) histogram.Record(value);
  EXPECT_EQ(histogram.sum(), 1'001'041u);
  EXPECT_EQ(histogram.CountUpTo(9), 0u);
  EXPECT_EQ(histogram.CountUpTo(10), 1u);
  EXPECT_EQ(histogram.CountUpTo(500), 2u);
  EXPECT_EQ(histogram.CountUpTo(1'100), 3u);
  EXPECT_EQ(histogram.CountUpTo(1'000'000), 4u);  // the maximum, in the middle of its bucket
  EXPECT_EQ(histogram.CountUpTo(UINT64_MAX), 4u);
  LatencyHistogram sum;
  sum.Merge(histogram);
  sum.Merge(histogram);
  EXPECT_EQ(sum.sum(), 2'002'082u);
  EXPECT_EQ(sum.CountUpTo(500), 4u);
}

TEST(LatencyHistogramTest, shouldNeverExceedTheMaximum) {
  LatencyHistogram histogram;
  histogram.Record(1'000'000);
  EXPECT_EQ(histogram.Quantile(0.5), 1'000'000u);
  EXPECT_EQ(histogram.max(), 1'000'000u);
  histogram.Record(UINT64_MAX);
  EXPECT_EQ(histogram.Quantile(1), UINT64_MAX);
}

TEST(LatencyHistogramTest, shouldOrderQuantiles) {
  LatencyHistogram histogram;
  for (uint64_t i = 1; i <= 1000; ++i) histogram.Record(i * 1000);
  EXPECT_NEAR(static_cast<double>(histogram.Quantile(0.5)), 500'000, 16'000);
  EXPECT_NEAR(static_cast<double>(histogram.Quantile(0.99)), 990'000, 31'000);
  EXPECT_EQ(histogram.Quantile(1), 1'000'000u);
}

TEST(LatencyHistogramTest, shouldMergeAsIfRecordedTogether) {
  LatencyHistogram one, other, both;
  for (uint64_t i = 1; i <= 100; ++i) {
    (i % 3 == 0 ? one : other).Record(i * 777);
    both.Record(i * 777);
  }
  one.Merge(other);
  EXPECT_EQ(one.count(), both.count());
  EXPECT_EQ(one.max(), both.max());
  for (double quantile = 0; quantile <= 1; quantile += 0.1) {
    EXPECT_EQ(one.Quantile(quantile), both.Quantile(quantile));
  }
}

}  // namespace
}  // namespace baton
