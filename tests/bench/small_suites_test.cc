// Suites of one process, small: each leaves a figure for everything that it is to measure, and its
// plots. How large they are is not judged here.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/bench/suite_run.h"

namespace baton::bench {
namespace {

struct SmallSuite {
  const char* name;
  std::vector<std::string> arguments;
};

class SmallSuiteTest : public ::testing::TestWithParam<SmallSuite> {};

TEST_P(SmallSuiteTest, shouldMeasureEverything) {
  std::vector<std::string> arguments = GetParam().arguments;
  arguments.insert(arguments.end(), {"--scale", "0.01"});
  const auto run = RunSuite(GetParam().name, arguments);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_FALSE(run->figures.empty());
  EXPECT_FALSE(run->ratios.empty());
  EXPECT_EQ(run->not_measured, std::vector<std::string>());
  for (const auto& [figure, value] : run->figures) EXPECT_NE(value, 0) << figure;
  for (const auto& [ratio, value] : run->ratios) EXPECT_NE(value, 0) << ratio;
  EXPECT_TRUE(run->has_plots);
}

// The suite `memory` runs without the parts that need a Baton, which suites_test has.
INSTANTIATE_TEST_SUITE_P(
    Suites, SmallSuiteTest,
    ::testing::Values(SmallSuite{"memory",
                                 {"--only", "heap", "files", "idle", "--largest-mib", "1"}},
                      SmallSuite{"null", {}}, SmallSuite{"setup", {}}),
    [](const ::testing::TestParamInfo<SmallSuite>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace baton::bench
