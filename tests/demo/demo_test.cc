// The demonstration, small: it does what it says, and its JSON has what others read from it.
#include <sys/wait.h>

#include <filesystem>
#include <string>

#include "gtest/gtest.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/json_object.h"
#include "tests/harness/temp_directory.h"

namespace baton::demo {
namespace {

constexpr std::chrono::seconds kLong{120};

void ShowEverything(const char* mode) {
  auto directory = harness::TempDirectory::Create();
  ASSERT_TRUE(directory.ok()) << directory.status();
  auto program = harness::Binaries().Find("demo");
  ASSERT_TRUE(program.ok()) << program.status();
  harness::ChildOptions options;
  options.program = *program;
  options.log_path = directory->File("log");
  options.arguments = {"--mode",
                       mode,
                       "--json",
                       "--output",
                       directory->File("out"),
                       "--connections",
                       "8",
                       "--shards",
                       "2",
                       "--rate",
                       "4000",
                       "--handoffs",
                       "3",
                       "--upgrades",
                       "2",
                       "--bad-upgrades",
                       "3",
                       "--crashes",
                       "3",
                       "--hangs",
                       "1",
                       "--cold-crashes",
                       "1",
                       "--control-kills",
                       "1",
                       "--poisons",
                       "1",
                       "--baseline-runs",
                       "2"};
  auto demo = harness::ChildProcess::Start(options);
  ASSERT_TRUE(demo.ok()) << demo.status();
  auto line = (*demo)->ReadLine(kLong);
  ASSERT_TRUE(line.ok()) << line.status();
  auto status = (*demo)->WaitEnd(kLong);
  ASSERT_TRUE(status.ok()) << status.status();
  auto json = harness::JsonObject::Parse(*line);
  ASSERT_TRUE(json.ok()) << json.status();

  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << *line << (*demo)->LogTail();
  EXPECT_TRUE(json->Flag("ok"));
  EXPECT_NE(line->find(std::string("\"mode\":\"") + mode), std::string::npos) << *line;
  EXPECT_TRUE(json->Flag("all_run"));
  EXPECT_EQ(json->Count("connections"), 8u);
  EXPECT_GT(json->Count("messages"), 1000u);
  for (const char* name :
       {"lost", "duplicated", "reordered", "corrupt", "wrong_total", "disconnects"}) {
    EXPECT_TRUE(json->Has(name)) << name;
    EXPECT_EQ(json->Count(name), 0u) << name;
  }
  const std::pair<std::string, uint64_t> kinds[] = {
      {"handoff", 3}, {"upgrade", 2},    {"bad_upgrade", 3},  {"crash_hot", 3},
      {"hang", 1},    {"crash_cold", 1}, {"control_kill", 1}, {"poison", 1}};
  for (const auto& [kind, count] : kinds) {
    EXPECT_EQ(json->Count(kind + ".count"), count) << kind;
    EXPECT_EQ(json->Count(kind + ".ok"), count) << kind;
    for (const char* value : {"p50", "p99", "max"}) {
      EXPECT_GT(json->Number(kind + ".blackout_us." + value), 0) << kind;
    }
  }
  EXPECT_GT(json->Number("upgrade_start_us.max"), 0);
  EXPECT_EQ(json->Count("baseline.disconnects"), 16u);
  EXPECT_GT(json->Number("baseline.gap_us.max"), 0);
  for (const char* const event : {"drain", "crash"}) {
    const std::string kind = std::string("standby.") + event;
    EXPECT_EQ(json->Count(kind + ".count"), 2u) << kind;
    EXPECT_EQ(json->Count(kind + ".ok"), 2u) << kind;
    EXPECT_GT(json->Number(kind + ".blackout_us.max"), 0) << kind;
  }
  EXPECT_TRUE(std::filesystem::exists(directory->File("out") + "/timeline.svg"));
}

TEST(DemoTest, ShowsEveryEventAndLosesNothing) { ShowEverything("brokered"); }

TEST(DemoTest, ShowsTheSameOfNativeWorkers) { ShowEverything("native"); }

}  // namespace
}  // namespace baton::demo
