#include "tests/harness/quantile.h"

#include <gtest/gtest.h>

#include <numeric>

namespace baton {
namespace {

TEST(QuantileTest, shouldHaveNoQuantileOfNothing) {
  std::vector<int> none;
  EXPECT_EQ(Quantile(none, 0.5), std::nullopt);
}

TEST(QuantileTest, shouldBeAValueThatWasMeasured) {
  std::vector<int> three = {3, 1, 2}, two = {7, 5};
  EXPECT_EQ(Quantile(three, 0.5), 2);
  EXPECT_EQ(Quantile(two, 0.5), 5);
  EXPECT_EQ(Quantile(two, 0.51), 7);
}

TEST(QuantileTest, shouldBeTheNearestRank) {
  std::vector<int> values(100);
  std::iota(values.rbegin(), values.rend(), 1);
  EXPECT_EQ(Quantile(values, 0), 1);
  for (const int percent : {1, 7, 29, 50, 57, 99, 100}) {
    EXPECT_EQ(Quantile(values, percent / 100.0), percent);
  }
  EXPECT_EQ(Quantile(values, 0.991), 100);
}

}  // namespace
}  // namespace baton
