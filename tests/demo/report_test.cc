// What the demonstration says and draws of what it did, and of what it did not.
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "tests/demo/report.h"
#include "tests/demo/scenario.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/temp_directory.h"

namespace baton::demo {
namespace {

TEST(EventTest, StatisticsAreOfOneKind) {
  std::vector<Event> events;
  for (int i = 1; i <= 20; ++i) {
    events.push_back({EventKind::kHandoff, 0, i * 10.0, i == 7 ? "trouble" : ""});
    events.push_back({EventKind::kCrashHot, 0, 9999, ""});
  }
  const SilenceStatistics statistics = Summarize(events, EventKind::kHandoff);
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
  options.cold_crashes = options.driver_kills = options.control_kills = options.keeper_kills =
      options.baton_upgrades = options.batond_kills = options.baseline_runs = 0;
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
  EXPECT_NE(ToTable(result).find(
                "clients with a second connection          0.50            -         10.0\n"),
            std::string::npos)
      << ToTable(result);
}

TEST(ReportTest, TheSentenceSaysWhatWasShown) {
  DemoResult result = Asked();
  result.options.connections = 64;
  result.baton.events = {{EventKind::kHandoff, 0, 940, ""}, {EventKind::kPoison, 0, 100, ""}};
  result.baton.peer = *harness::JsonObject::Parse("{\"ok\":true,\"messages\":254843}");
  EXPECT_EQ(ToSentence(result),
            "2 times the service was replaced, killed or stopped under 64 connections: 254,843 "
            "messages, none lost, none twice, none out of order, no peer disconnected; the longest "
            "silence was 0.9 ms at a planned handoff.");
  result.options.baseline_runs = 1;
  result.baseline.events = {{EventKind::kBaseline, 0, 7300, ""}};
  result.baseline.peer = *harness::JsonObject::Parse("{\"disconnects\":64}");
  result.baseline.peer_finished = true;
  EXPECT_TRUE(ToSentence(result).ends_with(
      "; without Baton, 1 kill ended 64 connections and made silences of up to 7.3 ms."))
      << ToSentence(result);
}

TEST(ReportTest, AKillOfBatondIsReportedAsTheOtherEventsAre) {
  DemoResult result = Asked();
  result.options.poisons = 0;
  result.options.batond_kills = 2;
  result.baton.events.push_back({EventKind::kBatondKill, 0, 700, ""});
  EXPECT_FALSE(IsOk(result));
  result.baton.events.push_back({EventKind::kBatondKill, 0, 800, ""});
  EXPECT_TRUE(IsOk(result));
  auto json = harness::JsonObject::Parse(ToJson(result));
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->Count("batond_kill.count"), 2u);
  EXPECT_EQ(json->Count("batond_kill.ok"), 2u);
  EXPECT_EQ(json->Number("batond_kill.blackout_us.max"), 800);
  EXPECT_NE(ToTable(result).find("  batond killed                        2 of 2"),
            std::string::npos)
      << ToTable(result);
  EXPECT_TRUE(
      ToSentence(result).ends_with("0.1 ms at a planned handoff, 0.8 ms at a kill of "
                                   "batond."))
      << ToSentence(result);
}

TEST(ReportTest, TheSentenceSaysWhatFailed) {
  DemoResult result = Asked();
  result.options.connections = 64;
  result.baton.peer =
      *harness::JsonObject::Parse("{\"ok\":false,\"messages\":1000,\"lost\":3,\"disconnects\":2}");
  result.baton.events.push_back({EventKind::kPoison, 0, 100, "2 disconnects"});
  EXPECT_EQ(ToSentence(result),
            "It FAILED: 1 of 2 times the service was replaced, killed or stopped under 64 "
            "connections as expected; 1,000 messages: 3 lost, 2 peers disconnected; first problem: "
            "message that kills its readers: 2 disconnects.");
  result.baton = {};
  result.baton.status = absl::InternalError("batond does not start");
  EXPECT_EQ(ToSentence(result),
            "It FAILED: 0 of 2 times the service was replaced, killed or stopped under 64 "
            "connections as expected; what became of the messages is not known; first problem: "
            "batond does not start.");
}

TEST(ReportTest, TheTableHasNoTimeOfWhatWasNotDone) {
  const std::string table = ToTable(Asked());
  EXPECT_NE(
      table.find("  planned handoff to a standby         1 of 1            0.10         0.10\n"),
      std::string::npos)
      << table;
  EXPECT_NE(
      table.find("  message that kills its readers       0 of 1               -            -\n"),
      std::string::npos)
      << table;
}

TEST(ReportTest, NoLineOfTheTableIsWiderThanATerminal) {
  DemoResult result = Asked();
  result.options.baseline_runs = 1;
  result.baseline.peer = result.baton.peer;
  result.baseline.peer_finished = true;
  for (const absl::string_view line : absl::StrSplit(ToTable(result), '\n')) {
    EXPECT_LE(line.size(), 79u) << line;
  }
}

// Returns what is between `start` and the first `end` after it.
std::string Between(const std::string& text, const std::string& start, const std::string& end) {
  const size_t from = text.find(start);
  if (from == std::string::npos) return "";
  const size_t begin = from + start.size();
  return text.substr(begin, text.find(end, begin) - begin);
}

class PageTest : public testing::Test {
 protected:
  void SetUp() override {
    auto directory = harness::TempDirectory::Create();
    ASSERT_TRUE(directory.ok()) << directory.status();
    directory_ = std::make_unique<harness::TempDirectory>(*std::move(directory));
    std::ofstream(directory_->File(kBatonTimeline))
        << "monotonic_us,replies,max_silence_us,lost\n1000000,3,70,0,0,0,0,0,0\n"
           "1005000,4,80,0,0,0,0,0,0\n";
    result_.baton.start_us = 500'000;
    result_.baton.events = {{EventKind::kQuiet, 1'000'000, 70, ""},
                            {EventKind::kHandoff, 1'002'000, 80, "</script><b>&\"{{DATA}}"}};
  }
  std::string Page() { return ToPage(result_, directory_->File(".")); }
  nlohmann::json Data() {
    return nlohmann::json::parse(Between(Page(), "id=\"data\">", "</script>"));
  }

  std::unique_ptr<harness::TempDirectory> directory_;
  DemoResult result_;
};

TEST_F(PageTest, HasTheTimelinesAndTheResult) {
  const nlohmann::json data = Data();
  EXPECT_EQ(data["result"]["connections"], 64);
  ASSERT_EQ(data["acts"].size(), 1u);  // the others have no timeline
  const nlohmann::json& act = data["acts"][0];
  EXPECT_EQ(act["replies"], nlohmann::json({3, 4}));
  EXPECT_EQ(act["silence_us"], nlohmann::json({70, 80}));
  EXPECT_EQ(act["first_seconds"], 0.5);
  ASSERT_EQ(act["events"].size(), 1u);  // and what nothing was done for is none
  EXPECT_EQ(act["events"][0]["kind"], "handoff");
  EXPECT_EQ(act["events"][0]["seconds"], 0.502);
  for (const EventKind kind : {EventKind::kHandoff, EventKind::kBatondKill}) {
    EXPECT_EQ(data["kinds"][EventKindName(kind)]["title"], EventTitle(kind));
  }
}

// A message of a program can hold anything.
TEST_F(PageTest, TextEndsNeitherTheDataNorTheTable) {
  EXPECT_EQ(Data()["acts"][0]["events"][0]["problem"], "</script><b>&\"{{DATA}}");
  EXPECT_EQ(Page().find("<b>"), std::string::npos);
  EXPECT_NE(Between(Page(), "<strong>", "</strong>").find("&lt;/script&gt;&lt;b&gt;&amp;"),
            std::string::npos);
}

TEST_F(PageTest, NeedsNothingElse) {
  const std::string page = Page();
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  for (const char* const outside :
       {"http:", "https:", "src=", "<link", "@import", "{{SENTENCE}}"}) {
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  }
}

TEST(TimelineTest, FollowsAFileThatGrows) {
  auto directory = harness::TempDirectory::Create();
  ASSERT_TRUE(directory.ok()) << directory.status();
  const std::string path = directory->File("timeline.csv");
  TimelineReader reader(path);
  EXPECT_TRUE(reader.Read().empty());
  FILE* const file = std::fopen(path.c_str(), "we");
  ASSERT_NE(file, nullptr);
  const auto write = [&](const char* text) {
    std::fputs(text, file);
    std::fflush(file);
  };
  write("monotonic_us,replies,max_silence_us,lost,duplicated\n5000,3,70,1,2,3,4,5,6\n10000,4,");
  std::vector<Bucket> buckets = reader.Read();
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].start_us, 5000u);
  EXPECT_EQ(buckets[0].replies, 3u);
  EXPECT_EQ(buckets[0].silence_us, 70u);
  EXPECT_EQ(buckets[0].counters.lost, 1u);
  EXPECT_EQ(buckets[0].counters.disconnects, 6u);
  write("80,0,0,0,0,0,0\n");
  buckets = reader.Read();
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].silence_us, 80u);
  std::fclose(file);
  EXPECT_EQ(ReadTimeline(path)->size(), 2u);
  EXPECT_FALSE(ReadTimeline(path + ".no").ok());
}

TEST(TimelineTest, ThinningKeepsRepliesAndTheLongestSilence) {
  std::vector<Bucket> buckets;
  for (uint64_t i = 0; i < 10; ++i) {
    buckets.push_back({i * Bucket::kMicroseconds, 1, i == 4 ? 900u : 10u, {.lost = i}});
  }
  uint64_t length = 0;
  const std::vector<Bucket> thin = Thin(buckets, 4, &length);
  EXPECT_EQ(length, 3 * Bucket::kMicroseconds);
  ASSERT_EQ(thin.size(), 3u);  // the tenth bucket alone would show a third of the replies
  EXPECT_EQ(thin[1].start_us, 3 * Bucket::kMicroseconds);
  EXPECT_EQ(thin[1].replies, 3u);
  EXPECT_EQ(thin[1].silence_us, 900u);
  EXPECT_EQ(thin[1].counters.lost, 5u);
  EXPECT_EQ(Thin(buckets, 100, &length).size(), 10u);
}

TEST(SvgTest, CompactingLeavesTheLines) {
  EXPECT_EQ(Compact("<svg>\n<defs>\n<circle id='gpDot' r='0.5'/>\n</defs>\n"
                    "<g stroke=\"gray\" stroke-linecap=\"butt\" stroke-linejoin=\"miter\">\n"
                    "<path d='M125.17,265.20 L7,8.5'/></g>\n"
                    "<g stroke=\"red\"><g>\n<text></text>\n</g>\n</g>\n</svg>\n"),
            "<svg>\n<g stroke=\"gray\">\n<path d='M125.1,265.2 L7,8.5'/></g>\n</svg>\n");
}

}  // namespace
}  // namespace baton::demo
