#include "tests/bench/suite.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/harness/json_object.h"
#include "tests/harness/temp_directory.h"

namespace baton::bench {
namespace {

const Ratio kTime{"time", "ours_us", "raw_us", Better::kLess, 1.5};
const Ratio kRate{"rate", "ours", "raw", Better::kMore, 0.9};

Round RoundOf(uint32_t number, double factor) {
  Round round(number);
  round.Set("raw_us", 10, "us");
  round.Set("ours_us", 10 * factor, "us");
  round.Set("raw", 1000, "per second");
  round.Set("ours", 1000 / factor, "per second");
  return round;
}

Suite SuiteOf(double factor, SuiteOptions options = {}) {
  Suite suite("sample", std::move(options));
  suite.Compare(kTime);
  suite.Compare(kRate);
  suite.Add(RoundOf(0, factor), 0);
  return suite;
}

TEST(SuiteTest, shouldTakeTheMedianOfTheRatiosOfQuietRoundsOnly) {
  Suite suite = SuiteOf(2);
  suite.Add(RoundOf(1, 9), 1);
  suite.Add(RoundOf(2, 3), 0.05);
  suite.Add(RoundOf(3, 9), 1);
  suite.Add(RoundOf(4, 4), 0);
  EXPECT_DOUBLE_EQ(suite.MedianOf(kTime), 3);
  EXPECT_DOUBLE_EQ(suite.MedianOf("ours_us"), 30);
  EXPECT_EQ(suite.quiet_rounds(), 3u);
}

TEST(SuiteTest, shouldSayThatNoRoundWasQuiet) {
  Suite suite("sample", {});
  suite.Compare(kTime);
  suite.Add(RoundOf(0, 2), 0.5);
  EXPECT_DOUBLE_EQ(suite.MedianOf(kTime), 2);
  EXPECT_NE(suite.ToTable().find("NONE"), std::string::npos);
  suite.Add(RoundOf(1, 2), 0);
  EXPECT_EQ(suite.ToTable().find("NONE"), std::string::npos);
}

TEST(SuiteTest, shouldTellWhetherABarIsMet) {
  const std::string bad = SuiteOf(2).ToTable(), good = SuiteOf(1).ToTable();
  EXPECT_NE(bad.find("at most 1.5: NOT MET"), std::string::npos) << bad;
  EXPECT_NE(bad.find("at least 0.9: NOT MET"), std::string::npos) << bad;
  EXPECT_NE(good.find("at most 1.5: met"), std::string::npos) << good;
  EXPECT_NE(good.find("at least 0.9: met"), std::string::npos) << good;
}

TEST(SuiteTest, shouldJudgeAFigureByItself) {
  Suite suite = SuiteOf(2);
  const Ratio goal{"goal", "ours", "", Better::kMore, 400};
  suite.Compare(goal);
  EXPECT_DOUBLE_EQ(suite.MedianOf(goal), 500);
  EXPECT_NE(suite.ToTable().find("at least 400: met"), std::string::npos) << suite.ToTable();
}

TEST(SuiteTest, shouldSayNothingOfWhatWasNotMeasured) {
  Suite suite = SuiteOf(2);
  suite.Compare({"not_measured", "nothing", "raw_us", Better::kLess, 1});
  EXPECT_EQ(suite.ToTable().find("not_measured"), std::string::npos);
  EXPECT_EQ(suite.ToJson().find("not_measured"), std::string::npos);
}

TEST(SuiteTest, shouldWriteWhatProgramsCanRead) {
  const auto json = harness::JsonObject::Parse(SuiteOf(2).ToJson());
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_DOUBLE_EQ(json->Number("ratios.time.value"), 2);
  EXPECT_DOUBLE_EQ(json->Number("ratios.time.bar"), 1.5);
  EXPECT_DOUBLE_EQ(json->Number("figures.ours_us.value"), 20);
  EXPECT_EQ(json->Count("quiet_rounds"), 1u);
}

TEST(SuiteTest, shouldRefuseARatioTwiceAsBadAsRecorded) {
  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  const std::string path = directory.path() + "/recorded.txt";
  std::ofstream(path) << "# comment\nother time 0.1\nsample time 1.0\nsample rate 0.9\n";
  EXPECT_EQ(SuiteOf(1.9).CompareWith(path), absl::OkStatus());
  const absl::Status worse = SuiteOf(2.4).CompareWith(path);
  EXPECT_EQ(worse.code(), absl::StatusCode::kOutOfRange) << worse;
  EXPECT_NE(worse.message().find("time is 2.4, recorded is 1"), std::string::npos) << worse;
  EXPECT_NE(worse.message().find("rate is 0.41"), std::string::npos) << worse;
  EXPECT_EQ(SuiteOf(1).CompareWith(path + ".none").code(), absl::StatusCode::kNotFound);
}

TEST(SuiteTest, shouldRefuseRecordedRatiosThatItHasNot) {
  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  const std::string path = directory.path() + "/recorded.txt";
  std::ofstream(path) << "sample renamed 1.0\n";
  EXPECT_EQ(SuiteOf(1).CompareWith(path).code(), absl::StatusCode::kOutOfRange);
  std::ofstream(path) << "other time 1.0\n";
  EXPECT_EQ(SuiteOf(1).CompareWith(path).code(), absl::StatusCode::kNotFound);
}

TEST(SuiteTest, shouldNotJudgeWhatWasMeasuredBesideOthers) {
  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  const std::string path = directory.path() + "/recorded.txt";
  std::ofstream(path) << "sample time 1.0\n";
  Suite suite("sample", {});
  suite.Compare(kTime);
  suite.Add(RoundOf(0, 9), 1);
  EXPECT_EQ(suite.CompareWith(path), absl::OkStatus());
  suite.Add(RoundOf(1, 9), 0);
  EXPECT_EQ(suite.CompareWith(path).code(), absl::StatusCode::kOutOfRange);
}

TEST(SuiteTest, shouldDrawWhatItHasMeasured) {
  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  SuiteOptions options;
  options.output = directory.path();
  Suite suite = SuiteOf(2, options);
  suite.Draw({"times", "Times", "side", "us", {{"a line", {{1, "raw_us"}, {2, "ours_us"}}}}});
  ASSERT_EQ(suite.Report(), absl::OkStatus());
  std::ifstream picture(directory.path() + "/sample-times.svg");
  const std::string svg((std::istreambuf_iterator<char>(picture)), {});
  EXPECT_NE(svg.find("a line"), std::string::npos);
  EXPECT_TRUE(std::ifstream(directory.path() + "/sample.json").good());
}

}  // namespace
}  // namespace baton::bench
