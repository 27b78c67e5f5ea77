// The failover suite in small: every figure that it promises is there. How large they are says
// nothing here.
#include <chrono>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/temp_directory.h"

namespace baton::harness {
namespace {

constexpr std::chrono::minutes kLimit{4};
constexpr const char* kEvents[] = {"handoff", "hot_crash", "cold_crash", "hang"};

class FailoverBenchTest : public ::testing::Test {
 protected:
  int Run(std::vector<std::string> arguments) {
    ChildOptions suite;
    suite.program = Binaries().Find("failover_bench").value();
    suite.arguments = std::move(arguments);
    suite.arguments.insert(suite.arguments.end(), {"--rounds", "1", "--events", "1", "--rate",
                                                   "1000", "--output", directory_.path()});
    return Run(suite);
  }

  // Returns its exit status.
  int Run(ChildOptions suite) {
    suite.log_path = directory_.File("log");
    const auto process = ChildProcess::Start(suite);
    EXPECT_TRUE(process.ok()) << process.status();
    const auto status = (*process)->WaitEnd(kLimit);
    EXPECT_TRUE(status.ok()) << status.status();
    log_ = (*process)->LogTail();
    return status.value_or(-1);
  }

  JsonObject Result() const {
    std::ifstream file(directory_.File("failover.json"));
    const auto json = JsonObject::Parse({std::istreambuf_iterator<char>(file), {}});
    EXPECT_TRUE(json.ok()) << json.status();
    return json.value();
  }

  static void ExpectFigures(const JsonObject& json, const std::string& name) {
    for (const char* figure : {"_ms", "_all_ms", "_longest_ms"}) {
      EXPECT_GT(json.Number(absl::StrCat("figures.", name, figure, ".value")), 0) << name << figure;
    }
    // A window may be so short that nothing is under way in it.
    EXPECT_TRUE(json.Has(absl::StrCat("figures.", name, "_quiet_ms.value"))) << name;
  }

  static void ExpectParts(const JsonObject& json, const std::string& name) {
    EXPECT_GT(json.Number(absl::StrCat("figures.", name, "_inside_ms.value")), 0) << name;
    for (const char* figure : {"_noticed_ms", "_reply_ms"}) {
      EXPECT_TRUE(json.Has(absl::StrCat("figures.", name, figure, ".value"))) << name << figure;
    }
  }

  const TempDirectory directory_ = TempDirectory::Create().value();
  std::string log_;
};

TEST_F(FailoverBenchTest, shouldMeasureEveryEventWithEveryNumberOfConnections) {
  ASSERT_EQ(Run({"--connections", "1,20", "--mapped-mib", "0"}), 0) << log_;
  const JsonObject json = Result();
  for (const char* size : {"_1", "_20"}) {
    for (const char* event : kEvents) {
      ExpectFigures(json, absl::StrCat(event, size));
      ExpectParts(json, absl::StrCat(event, size));
      EXPECT_GT(json.Number(absl::StrCat("ratios.", event, size, "_to_reconnect.value")), 0);
    }
    for (const char* without : {"reconnect", "standby", "drain"}) {
      ExpectFigures(json, absl::StrCat(without, size));
    }
    for (const char* ratio : {"hot_crash%s_to_standby", "handoff%s_to_drain"}) {
      const std::string name = absl::StrReplaceAll(ratio, {{"%s", size}});
      EXPECT_GT(json.Number(absl::StrCat("ratios.", name, ".value")), 0) << name;
    }
    EXPECT_FALSE(json.Has(absl::StrCat("ratios.handoff", size, "_to_standby.value")));
  }
  EXPECT_DOUBLE_EQ(json.Number("ratios.handoff_20_to_1.bar"), 1.5);
  EXPECT_TRUE(std::ifstream(directory_.File("failover-blackout.svg")).good());
}

TEST_F(FailoverBenchTest, shouldMeasureWithMemoryOfTheWorkersOwn) {
  ASSERT_EQ(Run({"--connections", "2", "--mapped-mib", "0,8", "--only", "hot_crash,reconnect"}), 0)
      << log_;
  const JsonObject json = Result();
  for (const char* size : {"_2", "_2_8MiB"}) {
    ExpectFigures(json, absl::StrCat("hot_crash", size));
    ExpectParts(json, absl::StrCat("hot_crash", size));
    EXPECT_GT(json.Number(absl::StrCat("ratios.hot_crash", size, "_to_reconnect.value")), 0);
  }
  EXPECT_DOUBLE_EQ(json.Number("ratios.hot_crash_8MiB_to_0.bar"), 3);
  EXPECT_GT(json.Number("ratios.hot_crash_8MiB_to_0.value"), 0);
}

TEST_F(FailoverBenchTest, shouldMeasureNoMoreThanIsWanted) {
  ASSERT_EQ(Run({"--connections", "2", "--mapped-mib", "0", "--only", "handoff"}), 0) << log_;
  const JsonObject json = Result();
  ExpectFigures(json, "handoff_2");
  EXPECT_FALSE(json.Has("figures.hot_crash_2_ms"));
  EXPECT_FALSE(json.Has("figures.reconnect_2_ms"));
}

TEST_F(FailoverBenchTest, shouldSayWhatManyConnectionsNeed) {
  ChildOptions limited;
  limited.program = "/bin/sh";
  limited.arguments = {"-c", "ulimit -n 1000 && exec \"$0\" --connections 2000",
                       Binaries().Find("failover_bench").value()};
  EXPECT_NE(Run(limited), 0);
  EXPECT_NE(log_.find("RLIMIT_NOFILE of 4256"), std::string::npos) << log_;
}

}  // namespace
}  // namespace baton::harness
