// What the demonstration says of what it did, and of what it did not.
#include "tests/demo/report.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/harness/json_object.h"

namespace baton::demo {
namespace {

TEST(EventTest, StatisticsAreOfOneKind) {
  std::vector<Event> events;
  for (int i = 1; i <= 20; ++i) {
    events.push_back({EventKind::kHandoff, 0, i * 10.0, i == 7 ? "trouble" : ""});
    events.push_back({EventKind::kCrashHot, 0, 9999, ""});
  }
  const BlackoutStatistics statistics = Summarize(events, EventKind::kHandoff);
  EXPECT_EQ(statistics.count, 20u);
  EXPECT_EQ(statistics.ok, 19u);
  EXPECT_EQ(statistics.p50_us, 100);
  EXPECT_EQ(statistics.p99_us, 200);
  EXPECT_EQ(statistics.max_us, 200);
  EXPECT_EQ(Summarize(events, EventKind::kControlKill).max_us, 0);
}

// One handoff and one message that kills were asked for, and no more.
DemoResult Asked() {
  DemoResult result;
  DemoOptions& options = result.options;
  options.upgrades = options.bad_upgrades = options.crashes = options.hangs = 0;
  options.cold_crashes = options.control_kills = options.baseline_runs = 0;
  options.handoffs = options.poisons = 1;
  result.baton.events = {{EventKind::kHandoff, 0, 100, ""}};
  result.baton.peer = *harness::JsonObject::Parse("{\"ok\":true}");
  result.baton.peer_finished = true;
  return result;
}

TEST(ReportTest, WhatIsMissingIsNotOk) {
  DemoResult result = Asked();
  result.options.mode = Mode::kNative;
  EXPECT_FALSE(IsOk(result));
  auto json = harness::JsonObject::Parse(ToJson(result));
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_FALSE(json->Flag("all_run"));
  EXPECT_NE(json->text().find("\"mode\":\"native\""), std::string::npos);
  EXPECT_EQ(json->Count("poison.count"), 0u);
  EXPECT_EQ(json->Count("handoff.ok"), 1u);
  EXPECT_EQ(ToTable(result).find("\nOK\n"), std::string::npos);
  result.baton.events.push_back({EventKind::kPoison, 0, 100, ""});
  EXPECT_TRUE(IsOk(result));
  json = harness::JsonObject::Parse(ToJson(result));
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_TRUE(json->Flag("all_run"));
  EXPECT_NE(ToTable(result).find("\nOK\n"), std::string::npos);
}

// Clients that are told of a restart see no gap. So a handoff is compared with them, but a ratio is
// required of it to clients that connect anew, and of a crash to those that have a standby.
TEST(ReportTest, EachEventIsComparedWithWhatOneWouldDoWithoutBaton) {
  DemoResult result = Asked();
  result.options.baseline_runs = 1;
  result.baton.events.push_back({EventKind::kCrashHot, 0, 100, ""});
  result.baseline.events = {{EventKind::kBaseline, 0, 2000, ""}};
  result.standby.events = {{EventKind::kStandbyDrain, 0, 50, ""},
                           {EventKind::kStandbyCrash, 0, 1000, ""}};
  EXPECT_EQ(RatioToBaseline(result, EventKind::kHandoff), 20);
  EXPECT_EQ(RatioToBaseline(result, EventKind::kCrashHot), 20);
  EXPECT_EQ(RatioToStandby(result, EventKind::kHandoff), 0.5);
  EXPECT_EQ(RatioToStandby(result, EventKind::kCrashHot), 10);
  EXPECT_EQ(RatioToStandby(result, EventKind::kUpgrade), 0);
  result.options.required_ratio = 10;
  EXPECT_TRUE(HasRequiredRatio(result));
  result.options.required_ratio = 15;
  EXPECT_FALSE(HasRequiredRatio(result));
  EXPECT_NE(ToTable(result).find("handoff 0.50, upgrade 0.00, hot crash 10.0"), std::string::npos);
}

}  // namespace
}  // namespace baton::demo
