// The suite `native`, small, over each wire: every owner answers every message, and each figure has
// a value. How large they are is not judged here.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/bench/suite_run.h"

namespace baton::bench {
namespace {

class NativeBenchTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto measured = RunSuite("native", {"--scale", "0.002", "--wire", GetParam()});
    ASSERT_TRUE(measured.ok()) << measured.status();
    run = *std::move(measured);
  }

  SuiteRun run;
};

TEST_P(NativeBenchTest, shouldMeasureEveryOwner) {
  EXPECT_EQ(run.not_measured, std::vector<std::string>());
  for (const auto& [figure, value] : run.figures) EXPECT_GT(value, 0) << figure;
  for (const auto& [ratio, value] : run.ratios) EXPECT_GT(value, 0) << ratio;
  const std::string wire = GetParam();
  const std::string suffix = wire == "loopback" ? "" : "_" + wire;
  for (const std::string kind : {"raw", "native", "brokered"}) {
    const std::string owner = kind + suffix;
    EXPECT_EQ(run.figures.count("round_trip_" + owner), 1u) << owner;
    EXPECT_EQ(run.figures.count("paced_" + owner), 1u) << owner;
    EXPECT_EQ(run.figures.count("rate_32_" + owner), 1u) << owner;
  }
  EXPECT_EQ(run.ratios.count("turns_32_native" + suffix + "_to_raw"), 1u);
  // It has no connection manager.
  EXPECT_EQ(run.figures.count("round_trip_libmlx5"), wire == "loopback" ? 1u : 0u);
  EXPECT_TRUE(run.has_plots);
}

INSTANTIATE_TEST_SUITE_P(Wires, NativeBenchTest, ::testing::Values("loopback", "memory", "tcp"));

}  // namespace
}  // namespace baton::bench
