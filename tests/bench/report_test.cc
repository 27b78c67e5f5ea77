#include "tests/bench/report.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/harness/json_object.h"

namespace baton::bench {
namespace {

// Brokered takes `factor` times as long as polling, which takes 10 us.
Round RoundOf(double factor, double others_cores) {
  Round round;
  round.others_cores = others_cores;
  for (auto& sides : round.samples) {
    sides[0] = {10, 20, 1000, 1, 0, 0};
    sides[1] = {40, 80, 250, 1, 0, 1};
    sides[2] = {10 * factor, 20 * factor, 1000 / factor, 2, 0, 0};
    sides[3] = {20, 40, 500, 1, 0, 0};
  }
  return round;
}

TEST(ReportTest, shouldTakeTheMedianOfTheRatiosOfQuietRoundsOnly) {
  Results results;
  results.rounds = {RoundOf(2, 0), RoundOf(9, 1), RoundOf(3, 0.05), RoundOf(9, 1), RoundOf(4, 0)};
  EXPECT_DOUBLE_EQ(MedianRatio(results, kMetrics[0], SideName::kBrokered, SideName::kPolling), 3);
  EXPECT_DOUBLE_EQ(MedianRatio(results, kMetrics[0], SideName::kBrokered, SideName::kEvents), 0.75);
  EXPECT_DOUBLE_EQ(MedianOf(results, kMetrics[0], SideName::kBrokered), 30);
  EXPECT_DOUBLE_EQ(MedianRatio(results, kMetrics[0], SideName::kNative, SideName::kPolling), 2);
}

TEST(ReportTest, shouldSayThatNoRoundWasQuiet) {
  Results results;
  results.rounds = {RoundOf(2, 0.5)};
  EXPECT_DOUBLE_EQ(MedianRatio(results, kMetrics[0], SideName::kBrokered, SideName::kPolling), 2);
  EXPECT_NE(ToTable(results).find("NONE"), std::string::npos);
  results.rounds.push_back(RoundOf(2, 0));
  EXPECT_EQ(ToTable(results).find("NONE"), std::string::npos);
}

TEST(ReportTest, shouldHaveEveryFigureInItsJson) {
  Results results;
  results.rounds = {RoundOf(2, 0)};
  results.reference = {{"ib_send_lat_64B_us", 12.5}};
  const auto json = harness::JsonObject::Parse(ToJson(results));
  ASSERT_TRUE(json.ok()) << json.status();
  for (const Metric& metric : kMetrics) {
    const std::string name(metric.name);
    for (const SideName side : kWorkerSides) {
      const std::string ratio = absl::StrCat("ratios.", std::string(NameOf(side)), ".", name);
      EXPECT_GT(json->Number(ratio + ".to_polling"), 0) << ratio;
      EXPECT_GT(json->Number(ratio + ".to_events"), 0) << ratio;
    }
    for (const SideName side : kSides) {
      EXPECT_GT(json->Number(absl::StrCat("sides.", std::string(NameOf(side)), ".metrics.", name)),
                0);
    }
  }
  EXPECT_EQ(json->Count("quiet_rounds"), 1u);
  EXPECT_DOUBLE_EQ(json->Number("reference.ib_send_lat_64B_us"), 12.5);
}

}  // namespace
}  // namespace baton::bench
