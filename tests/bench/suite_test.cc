#include "tests/bench/suite.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/quantile.h"
#include "tests/harness/temp_directory.h"
#include "worker/examples/common/flags.h"

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

TEST(SuiteTest, shouldTakeAllRoundsWhereFewerThanAThirdAreQuiet) {
  Suite suite = SuiteOf(2);
  suite.Add(RoundOf(1, 9), 1);
  suite.Add(RoundOf(2, 9), 1);
  EXPECT_DOUBLE_EQ(suite.MedianOf(kTime).value(), 2);
  suite.Add(RoundOf(3, 9), 1);
  EXPECT_DOUBLE_EQ(suite.MedianOf(kTime).value(), 9);
}

TEST(SuiteTest, shouldSayUnderWhichConditionsItMeasured) {
  Suite suite = SuiteOf(2);
  suite.Note("wire", "loopback");
  EXPECT_NE(suite.ToTable().find("; wire: loopback"), std::string::npos);
  EXPECT_NE(suite.ToJson().find(R"("conditions":{"wire":"loopback"})"), std::string::npos);
}

TEST(SuiteTest, shouldTakeTheLargestOfQuietRoundsWhereThatIsWanted) {
  Suite suite("sample", {});
  for (const auto& [value, others_cores] :
       {std::pair(3.0, 0.0), std::pair(7.0, 0.0), std::pair(5.0, 0.0), std::pair(9.0, 1.0)}) {
    Round round(0);
    round.Set("longest_ms", value, "ms", Over::kLargest);
    suite.Add(round, others_cores);
  }
  EXPECT_EQ(suite.MedianOf("longest_ms"), 7);
}

TEST(SuiteTest, shouldSayThatTooFewRoundsWereQuiet) {
  Suite suite("sample", {});
  suite.Compare(kTime);
  suite.Add(RoundOf(0, 2), 0.5);
  EXPECT_DOUBLE_EQ(suite.MedianOf(kTime).value(), 2);
  EXPECT_NE(suite.ToTable().find("TOO FEW"), std::string::npos);
  suite.Add(RoundOf(1, 2), 0);
  EXPECT_EQ(suite.ToTable().find("TOO FEW"), std::string::npos);
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

// One round for each factor, in each of which others used as many cores.
Suite SuiteOfRounds(const std::vector<double>& factors, double others_cores = 0) {
  Suite suite("sample", {});
  suite.Compare(kTime);
  suite.Compare(kRate);
  for (size_t i = 0; i < factors.size(); ++i) {
    suite.Add(RoundOf(static_cast<uint32_t>(i), factors[i]), others_cores);
  }
  return suite;
}

TEST(SuiteTest, shouldHaveTheQuartilesOfFiveQuietRounds) {
  Suite suite = SuiteOfRounds({1.5, 1.25, 2, 1});
  suite.Add(RoundOf(4, 9), 1);
  EXPECT_FALSE(suite.SpreadOf(kTime).has_value());
  EXPECT_EQ(suite.ToTable().find("(1.250, 2.000)"), std::string::npos) << suite.ToTable();
  suite.Add(RoundOf(5, 3), 0);
  ASSERT_TRUE(suite.SpreadOf(kTime).has_value());
  EXPECT_EQ(suite.SpreadOf(kTime)->low, 1.25);
  EXPECT_EQ(suite.SpreadOf(kTime)->high, 2);
  EXPECT_NE(suite.ToTable().find("(1.250, 2.000)"), std::string::npos) << suite.ToTable();
  const auto json = harness::JsonObject::Parse(suite.ToJson());
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_DOUBLE_EQ(json->Number("ratios.time.low"), 1.25);
  EXPECT_DOUBLE_EQ(json->Number("ratios.time.high"), 2);
}

TEST(SuiteTest, shouldHaveNoQuartilesOfRoundsOfWhichOneHasNoValue) {
  Suite suite = SuiteOfRounds({1, 1, 1, 1, 1});
  Round nothing(5);
  nothing.Set("ours_us", 10, "us");
  nothing.Set("raw_us", 0, "us");
  suite.Add(nothing, 0);
  EXPECT_FALSE(suite.SpreadOf(kTime).has_value());
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
int Checked(const Suite& suite) { return ExitCode("sample", suite.Report()); }

SuiteOptions Checking() {
  SuiteOptions options;
  const char* arguments[] = {"sample_bench", "--check"};
  examples::Flags flags("");
  AddSuiteOptions(flags, &options);
  EXPECT_EQ(flags.Parse(2, arguments), std::nullopt);
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
      EXPECT_EQ(Checked(suite), 3);
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
    EXPECT_EQ(Checked(suite), 3) << ratio.name;
  }
}

TEST(SuiteCheckTest, shouldEndWithThreeWhenADenominatorIsZero) {
  Suite suite("sample", Checking());
  suite.Compare(kTime);
  Round round(0);
  round.Set("ours_us", 10, "us");
  round.Set("raw_us", 0, "us");
  suite.Add(round, 0);
  EXPECT_EQ(Checked(suite), 3);
}

TEST(SuiteCheckTest, shouldEndWithThreeWhenNothingHasABar) {
  Suite suite("sample", Checking());
  suite.Compare({"time", "ours_us", "raw_us", Better::kLess});
  suite.Add(RoundOf(0, 1), 0);
  EXPECT_EQ(Checked(suite), 3);
}

TEST(SuiteCheckTest, shouldEndWithOneWhenABarIsNotMetAndAnotherNotMeasured) {
  Suite suite = SuiteOf(2, Checking());
  suite.Compare({"missing", "nothing", "raw_us", Better::kLess, 1});
  const absl::Status status = suite.Check();
  EXPECT_NE(status.message().find("time is 2"), std::string::npos) << status;
  EXPECT_NE(status.message().find("missing was not measured"), std::string::npos) << status;
  EXPECT_EQ(Checked(suite), 1);
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

class SuiteRecordTest : public ::testing::Test {
 protected:
  // Compares with these records.
  absl::Status Compare(const Suite& suite, const std::string& records) {
    std::ofstream(path_) << records;
    return suite.CompareWith(path_);
  }

  const harness::TempDirectory directory_ = harness::TempDirectory::Create().value();
  const std::string path_ = directory_.File("recorded.txt");
};

constexpr const char* kWithSpread = "sample time 1 0.9 1.25\nsample rate 1 0.8 1.1\n";

TEST_F(SuiteRecordTest, shouldAcceptQuartilesThatReachTheRecordedOnes) {
  EXPECT_EQ(Compare(SuiteOfRounds({1.1, 1.2, 1.4, 1.4, 1.5}), kWithSpread), absl::OkStatus());
}

TEST_F(SuiteRecordTest, shouldRefuseQuartilesBeyondTheRecordedOnes) {
  const absl::Status worse = Compare(SuiteOfRounds({1.1, 1.3, 1.3, 1.4, 1.5}), kWithSpread);
  EXPECT_EQ(worse.code(), absl::StatusCode::kOutOfRange) << worse;
  EXPECT_NE(worse.message().find("time is 1.3, recorded is 1 (quartiles 1.3 and 1.4, recorded are "
                                 "0.9 and 1.25)"),
            std::string::npos)
      << worse;
  EXPECT_NE(worse.message().find("rate is 0.769231, recorded is 1 ("), std::string::npos) << worse;
}

TEST_F(SuiteRecordTest, shouldAcceptWhatIsBetterThanRecorded) {
  EXPECT_EQ(Compare(SuiteOfRounds({0.1, 0.1, 0.1, 0.1, 0.1}), kWithSpread), absl::OkStatus());
}

TEST_F(SuiteRecordTest, shouldRefuseTwiceAsBadOnlyWhereRoundsAreTooFewForQuartiles) {
  EXPECT_EQ(Compare(SuiteOfRounds({1.9, 1.9, 1.9, 1.9}), kWithSpread), absl::OkStatus());
  EXPECT_EQ(Compare(SuiteOfRounds({2.1, 2.1, 2.1, 2.1}), kWithSpread).code(),
            absl::StatusCode::kOutOfRange);
}

TEST_F(SuiteRecordTest, shouldRefuseTwiceAsBadOnlyWhereTheRecordHasNoSpread) {
  const std::string records = "sample time 1\n";
  EXPECT_EQ(Compare(SuiteOfRounds({1.9, 1.9, 1.9, 1.9, 1.9}), records), absl::OkStatus());
  EXPECT_EQ(Compare(SuiteOfRounds({2.1, 2.1, 2.1, 2.1, 2.1}), records).code(),
            absl::StatusCode::kOutOfRange);
}

TEST_F(SuiteRecordTest, shouldRefuseTwiceAsBadHoweverWideTheRecordedSpreadIs) {
  EXPECT_EQ(Compare(SuiteOfRounds({2.1, 2.1, 2.1, 2.1, 2.1}), "sample time 1 0.5 5\n").code(),
            absl::StatusCode::kOutOfRange);
}

TEST_F(SuiteRecordTest, shouldNotMeasureARatioToNothing) {
  Suite suite("sample", {});
  suite.Compare(kTime);
  for (uint32_t i = 0; i < 5; ++i) {
    Round round(i);
    round.Set("ours_us", 10, "us");
    round.Set("raw_us", 0, "us");
    suite.Add(round, 0);
  }
  const absl::Status status = Compare(suite, "sample time 1 0.9 1.25\n");
  EXPECT_EQ(ExitCode("sample", status), kExitNotMeasured);
  EXPECT_EQ(status.message(), "time was not measured");
}

TEST_F(SuiteRecordTest, shouldBeUndecidedAboutWhatIsWorseBesideOthers) {
  const absl::Status status = Compare(SuiteOfRounds({9, 9}, 1), "sample time 1\n");
  EXPECT_EQ(ExitCode("sample", status), kExitNotMeasured);
  EXPECT_EQ(status.message(),
            "undecided: others used the machine in 2 of 2 rounds, and time is 9, recorded is 1");
  EXPECT_EQ(Compare(SuiteOfRounds({1.9, 1.9}, 1), "sample time 1\n"), absl::OkStatus());
}

// A machine whose times cannot be read would excuse whatever is worse, for ever.
TEST_F(SuiteRecordTest, shouldNotBeUndecidedWhereNobodyKnowsWhatOthersUsed) {
  Suite suite = SuiteOfRounds({9}, 1);
  suite.Add(RoundOf(1, 9), std::nullopt);
  const absl::Status status = Compare(suite, "sample time 1\n");
  EXPECT_EQ(ExitCode("sample", status), kExitNotMeasured);
  EXPECT_EQ(status.message(),
            "whether others used the machine is not known of all rounds, and time is 9, recorded "
            "is 1");
}

TEST_F(SuiteRecordTest, shouldNotCallUndecidedWhatIsMissing) {
  const absl::Status status = Compare(SuiteOfRounds({9}, 1), "sample time 1\nsample renamed 1\n");
  EXPECT_EQ(ExitCode("sample", status), kExitNotMeasured);
  EXPECT_EQ(status.message().find("renamed is recorded, and no ratio of the suite; undecided"), 0u)
      << status;
}

TEST_F(SuiteRecordTest, shouldPrintRecordsThatItKeepsTo) {
  const Suite suite = SuiteOfRounds({1, 1.25, 1.5, 2, 4});
  EXPECT_EQ(suite.ToRecords(), "sample time 1.5 1.25 2\nsample rate 0.6667 0.5 0.8\n");
  EXPECT_EQ(Compare(suite, suite.ToRecords()), absl::OkStatus());
  EXPECT_EQ(SuiteOfRounds({2, 2}).ToRecords(), "sample time 2\nsample rate 0.5\n");
  EXPECT_EQ(SuiteOfRounds({2, 2}, 1).ToRecords(),
            "# sample time: not measured\n# sample rate: not measured\n");
}

// Says what the host of a virtual machine says: how much of it others use.
class Host {
 public:
  explicit Host(std::string path) : path_(std::move(path)) {
    Write();
    setenv("BATON_VM_HOST_CPU", path_.c_str(), 1);
  }
  ~Host() { unsetenv("BATON_VM_HOST_CPU"); }
  void PassASecond(double others_cores) {
    ++seconds_;
    ticks_ += others_cores * static_cast<double>(sysconf(_SC_CLK_TCK));
    Write();
  }

 private:
  void Write() const { std::ofstream(path_) << seconds_ << " " << ticks_ << " 0\n"; }

  const std::string path_;
  int seconds_ = 1;
  double ticks_ = 0;
};

class SuiteRunTest : public SuiteRecordTest {
 protected:
  // Measures two rounds, and more while these are worse than recorded. Round i has the factor
  // factors[i], or the last one.
  Suite Run(const std::vector<double>& factors, double others_cores) {
    std::ofstream(path_) << "sample time 1\n";
    SuiteOptions options;
    options.rounds = 2;
    options.recorded = path_;
    Suite suite("sample", options);
    suite.Compare(kTime);
    rounds_ = 0;
    EXPECT_EQ(suite.Run([&](Round& round) {
      round = RoundOf(round.number(), rounds_ < factors.size() ? factors[rounds_] : factors.back());
      ++rounds_;
      host_.PassASecond(others_cores);
      return absl::OkStatus();
    }),
              absl::OkStatus());
    return suite;
  }

  Host host_{directory_.File("host")};
  size_t rounds_ = 0;
};

TEST_F(SuiteRunTest, shouldMeasureNoMoreRoundsThanItIsTold) {
  EXPECT_EQ(Run({1.5}, 0).Report(), absl::OkStatus());
  EXPECT_EQ(rounds_, 2u);
  EXPECT_EQ(Run({1.5}, 1).Report(), absl::OkStatus());
  EXPECT_EQ(rounds_, 2u);
}

TEST_F(SuiteRunTest, shouldMeasureAgainWhatIsWorseUntilItIsNot) {
  EXPECT_EQ(Run({9, 9, 1, 1}, 0).Report(), absl::OkStatus());
  EXPECT_EQ(rounds_, 4u);
}

TEST_F(SuiteRunTest, shouldRefuseWhatStaysWorse) {
  EXPECT_EQ(ExitCode("sample", Run({9}, 0).Report()), kExitFailed);
  EXPECT_EQ(rounds_, 6u);
}

TEST_F(SuiteRunTest, shouldBeUndecidedWhenTooFewRoundsAreQuiet) {
  EXPECT_EQ(ExitCode("sample", Run({9}, 1).Report()), kExitNotMeasured);
  EXPECT_EQ(rounds_, 6u);
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
  for (const char* line :
       {"sample time", "sample time one", "sample time 0", "sample time nan", "sample time 1.0 2.0",
        "sample time 1.0x", "sample time 1 2 3", "sample time 1 0.5 0.9", "sample time 1 0 2",
        "sample time 1 0.5 x", "sample time 1 0.5 1.5 2"}) {
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
  EXPECT_TRUE(IsNotMeasured(suite.CompareWith(path)));
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
