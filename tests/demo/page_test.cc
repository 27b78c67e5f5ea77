// The page that --html writes.
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "gtest/gtest.h"
#include "tests/demo/report.h"
#include "tests/harness/temp_directory.h"

namespace baton::demo {
namespace {

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

}  // namespace
}  // namespace baton::demo
