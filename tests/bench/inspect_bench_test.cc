// The suite of inspections, small: it measures what it says.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/bench/suite_run.h"

namespace baton::bench {
namespace {

TEST(InspectBenchTest, shouldMeasureEverySide) {
  const auto run = RunSuite("inspect", {"--seconds", "0.2", "--interval-ms", "50"});
  ASSERT_TRUE(run.ok()) << run.status();
  for (const char* figure :
       {"messages_alone", "messages_beside_inspecting_a_copy", "messages_beside_inspecting",
        "inspections", "inspections_of_the_copy"}) {
    const auto found = run->figures.find(figure);
    ASSERT_NE(found, run->figures.end()) << figure;
    EXPECT_GT(found->second, 0) << figure;
  }
  EXPECT_EQ(run->not_measured, std::vector<std::string>());
  EXPECT_GT(run->ratios.at("inspected_to_a_copy"), 0);
}

}  // namespace
}  // namespace baton::bench
