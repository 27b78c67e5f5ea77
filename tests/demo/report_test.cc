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

}  // namespace
}  // namespace baton::demo
