#include "tests/bench/suite.h"

#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "gtest/gtest.h"
#include "lib/base/quantile.h"
#include "tests/bench/cost.h"
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
  EXPECT_DOUBLE_EQ(suite.MedianOf(kTime).value(), 3);
  EXPECT_DOUBLE_EQ(suite.MedianOf("ours_us").value(), 30);
  EXPECT_EQ(suite.quiet_rounds(), 3u);
}

TEST(SuiteTest, shouldSayThatNoRoundWasQuiet) {
  Suite suite("sample", {});
  suite.Compare(kTime);
  suite.Add(RoundOf(0, 2), 0.5);
  EXPECT_DOUBLE_EQ(suite.MedianOf(kTime).value(), 2);
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
  EXPECT_DOUBLE_EQ(suite.MedianOf(goal).value(), 500);
  EXPECT_NE(suite.ToTable().find("at least 400: met"), std::string::npos) << suite.ToTable();
}

TEST(SuiteTest, shouldSayWhatWasNotMeasured) {
  Suite suite = SuiteOf(2);
  suite.Compare({"no_ratio", "nothing", "raw_us", Better::kLess, 1});
  const std::string table = suite.ToTable();
  EXPECT_NE(table.find("no_ratio"), std::string::npos) << table;
  EXPECT_NE(table.find("NOT MEASURED"), std::string::npos) << table;
  EXPECT_NE(suite.ToJson().find("\"no_ratio\":{\"value\":null"), std::string::npos)
      << suite.ToJson();
}

// One figure of one round over another; nothing is a figure that was not measured.
std::optional<double> RatioOf(std::optional<double> of, std::optional<double> to,
                              Better better = Better::kLess) {
  Round round(0);
  round.Set("of", of, "");
  round.Set("to", to, "");
  Suite suite("sample", {});
  suite.Add(round, 0);
  return suite.MedianOf(Ratio{"ratio", "of", "to", better, 1});
}

TEST(SuiteTest, shouldHaveNoRatioToNothing) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(RatioOf(3, 2), 1.5);
  EXPECT_EQ(RatioOf(3, 0), std::nullopt);
  EXPECT_EQ(RatioOf(0, 0), std::nullopt);
  EXPECT_EQ(RatioOf(3, -2), std::nullopt);
  EXPECT_EQ(RatioOf(3, std::nullopt), std::nullopt);
  EXPECT_EQ(RatioOf(std::nullopt, 2), std::nullopt);
  EXPECT_EQ(RatioOf(3, kNone), std::nullopt);
  EXPECT_EQ(RatioOf(3, std::numeric_limits<double>::infinity()), std::nullopt);
}

// Otherwise it would meet every bar.
TEST(SuiteTest, shouldNotTakeNothingForLittle) {
  EXPECT_EQ(RatioOf(0, 2), std::nullopt);
  EXPECT_EQ(RatioOf(-1, 2), std::nullopt);
  EXPECT_EQ(RatioOf(0, 2, Better::kMore), 0);
}

TEST(SuiteTest, shouldHaveNoMedianOfRoundsOfWhichOneHasNoValue) {
  Suite suite = SuiteOf(2);
  Round half(1);
  half.Set("ours_us", 20, "us");
  suite.Add(half, 1);
  EXPECT_EQ(suite.MedianOf(kTime), 2);  // it does not count
  suite.Add(half, 0);
  EXPECT_EQ(suite.MedianOf(kTime), std::nullopt);
}

TEST(SuiteTest, shouldNotTakeARoundForQuietOfWhichNobodyKnows) {
  Suite suite("sample", {});
  suite.Add(RoundOf(0, 1), std::nullopt);
  EXPECT_EQ(suite.quiet_rounds(), 0u);
  EXPECT_NE(suite.ToJson().find("\"others_cores\":null"), std::string::npos) << suite.ToJson();
  const MachineTimes untold, early{10, 1}, late{20, 3};
  EXPECT_EQ(late.OthersSince(early), 0.2);
  EXPECT_EQ(late.OthersSince(untold), std::nullopt);
  EXPECT_EQ(late.OthersSince(late), std::nullopt);
}

// Exit statuses of `./run bench SUITE --check`.
int Checked(Suite suite) { return ExitCode("sample", suite.Report()); }

SuiteOptions Checking() {
  SuiteOptions options;
  const char* arguments[] = {"sample_bench", "--check"};
  CLI::App app;
  AddSuiteOptions(app, &options);
  app.parse(2, arguments);
  return options;
}

TEST(SuiteCheckTest, shouldEndWithZeroWhenAllBarsAreMet) {
  EXPECT_EQ(Checked(SuiteOf(1, Checking())), 0);
}

TEST(SuiteCheckTest, shouldEndWithOneWhenABarIsNotMet) {
  EXPECT_EQ(Checked(SuiteOf(2, Checking())), 1);
  const absl::Status status = SuiteOf(2).Check();
  EXPECT_NE(status.message().find("time is 2, and should be at most 1.5"), std::string::npos)
      << status;
  EXPECT_NE(status.message().find("rate is 0.5, and should be at least 0.9"), std::string::npos)
      << status;
}

TEST(SuiteCheckTest, shouldJudgeNothingUnlessAsked) { EXPECT_EQ(Checked(SuiteOf(2)), 0); }

TEST(SuiteCheckTest, shouldEndWithThreeWhenNoRoundWasQuiet) {
  for (const double factor : {1, 2}) {
    for (const std::optional<double> others : {std::optional<double>(0.5), {}}) {
      Suite suite("sample", Checking());
      suite.Compare(kTime);
      suite.Add(RoundOf(0, factor), others);
      EXPECT_EQ(Checked(std::move(suite)), 3);
    }
  }
  EXPECT_EQ(Checked(Suite("sample", Checking())), 3);
}

TEST(SuiteCheckTest, shouldEndWithThreeWhenAFigureIsMissing) {
  for (const Ratio& ratio : {Ratio{"over", "nothing", "raw_us", Better::kLess, 1},
                             Ratio{"under", "ours_us", "nothing", Better::kMore, 1},
                             Ratio{"itself", "nothing", "", Better::kLess, 1},
                             Ratio{"without_bar", "ours_us", "nothing", Better::kLess, 0}}) {
    Suite suite = SuiteOf(1, Checking());
    suite.Compare(ratio);
    EXPECT_NE(suite.Check().message().find(ratio.name + " was not measured"), std::string::npos);
    EXPECT_EQ(Checked(std::move(suite)), 3) << ratio.name;
  }
}

TEST(SuiteCheckTest, shouldEndWithThreeWhenADenominatorIsZero) {
  Suite suite("sample", Checking());
  suite.Compare(kTime);
  Round round(0);
  round.Set("ours_us", 10, "us");
  round.Set("raw_us", 0, "us");
  suite.Add(round, 0);
  EXPECT_EQ(Checked(std::move(suite)), 3);
}

TEST(SuiteCheckTest, shouldEndWithThreeWhenNothingHasABar) {
  Suite suite("sample", Checking());
  suite.Compare({"time", "ours_us", "raw_us", Better::kLess});
  suite.Add(RoundOf(0, 1), 0);
  EXPECT_EQ(Checked(std::move(suite)), 3);
}

TEST(SuiteCheckTest, shouldEndWithOneWhenABarIsNotMetAndAnotherNotMeasured) {
  Suite suite = SuiteOf(2, Checking());
  suite.Compare({"missing", "nothing", "raw_us", Better::kLess, 1});
  const absl::Status status = suite.Check();
  EXPECT_NE(status.message().find("time is 2"), std::string::npos) << status;
  EXPECT_NE(status.message().find("missing was not measured"), std::string::npos) << status;
  EXPECT_EQ(Checked(std::move(suite)), 1);
}

TEST(SuiteCheckTest, shouldSayTheWorseOfRecordsAndBars) {
  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  SuiteOptions options = Checking();
  options.recorded = directory.path() + "/recorded.txt";
  std::ofstream(options.recorded) << "sample time 0.1\n";
  EXPECT_EQ(Checked(SuiteOf(1, options)), 1);  // far from the record, bars met
  std::ofstream(options.recorded) << "sample gone 1\n";
  EXPECT_EQ(Checked(SuiteOf(1, options)), 3);
  EXPECT_EQ(Checked(SuiteOf(2, options)), 1);
  std::ofstream(options.recorded) << "sample time 1\n";
  EXPECT_EQ(Checked(SuiteOf(1, options)), 0);
}

TEST(SuiteCheckTest, shouldEndWithOneWhenSomethingElseWentWrong) {
  EXPECT_EQ(ExitCode("sample", absl::OkStatus()), 0);
  EXPECT_EQ(ExitCode("sample", absl::UnknownError("a server has ended")), 1);
  EXPECT_EQ(ExitCode("sample", NotMeasuredError("nobody knows")), 3);
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
  EXPECT_EQ(ExitCode("sample", SuiteOf(1).CompareWith(path)), kExitNotMeasured);
  std::ofstream(path) << "other time 1.0\n";
  EXPECT_EQ(SuiteOf(1).CompareWith(path).code(), absl::StatusCode::kNotFound);
}

TEST(SuiteTest, shouldRefuseRecordsThatItCannotRead) {
  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  const std::string path = directory.path() + "/recorded.txt";
  for (const char* line : {"sample time", "sample time one", "sample time 0", "sample time nan",
                           "sample time 1.0 2.0", "sample time 1.0x"}) {
    std::ofstream(path) << "sample rate 0.9\n\n" << line << "\n";
    EXPECT_EQ(SuiteOf(1).CompareWith(path).code(), absl::StatusCode::kInvalidArgument) << line;
  }
}

TEST(SuiteTest, shouldMissWhatIsRecordedBesideOthersToo) {
  const harness::TempDirectory directory = harness::TempDirectory::Create().value();
  const std::string path = directory.path() + "/recorded.txt";
  std::ofstream(path) << "sample missing 1.0\n";
  Suite suite("sample", {});
  suite.Compare({"missing", "nothing", "raw_us", Better::kLess, 1});
  suite.Add(RoundOf(0, 1), 1);
  EXPECT_EQ(ExitCode("sample", suite.CompareWith(path)), kExitNotMeasured);
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
