// Suites of one process, small: each leaves a figure for everything that it is to measure, and its
// plots. How large they are is not judged here.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/bench/suite_run.h"

namespace baton::bench {
namespace {

class SmallSuiteTest : public ::testing::TestWithParam<const char*> {};

TEST_P(SmallSuiteTest, shouldMeasureEverything) {
  const auto run = RunSuite(GetParam(), {"--scale", "0.01"});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_FALSE(run->figures.empty());
  EXPECT_FALSE(run->ratios.empty());
  EXPECT_EQ(run->not_measured, std::vector<std::string>());
  for (const auto& [figure, value] : run->figures) EXPECT_NE(value, 0) << figure;
  for (const auto& [ratio, value] : run->ratios) EXPECT_NE(value, 0) << ratio;
  EXPECT_TRUE(run->has_plots);
}

INSTANTIATE_TEST_SUITE_P(Suites, SmallSuiteTest, ::testing::Values("memory", "null", "setup"));

}  // namespace
}  // namespace baton::bench
