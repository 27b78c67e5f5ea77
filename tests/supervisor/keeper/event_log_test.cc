#include <boost/asio/io_context.hpp>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "supervisor/keeper/event_log.h"

namespace baton::keeper {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class EventLinesTest : public ::testing::Test {
 protected:
  EventLinesTest() {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(written_)));
  }
  void Write(const std::string& kind, const std::string& message) {
    v1::Event event;
    event.set_kind(kind);
    event.set_message(message);
    event.set_shard(-1);
    event.set_connection(-1);
    lines_.Write(event, "");
  }
  std::vector<std::string> Written() const {
    return absl::StrSplit(written_.str(), '\n', absl::SkipEmpty());
  }

  std::ostringstream written_;
  boost::asio::io_context loop_;
  EventLines lines_{loop_};
};

TEST_F(EventLinesTest, shouldWriteEachOfFew) {
  Write("shard_moved", "shard 3 moved");
  Write("connection", "connection 7 established");
  ASSERT_EQ(Written().size(), 2u);
  EXPECT_THAT(Written()[0], HasSubstr("shard_moved: shard 3 moved"));
  EXPECT_EQ(loop_.run(), 0u);  // nothing is to come
}

// So that a log of warnings has them.
TEST_F(EventLinesTest, shouldWarnOfTroubles) {
  spdlog::default_logger()->set_level(spdlog::level::warn);
  Write("worker_attached", "worker 2 attached");
  Write("worker_dead", "worker 1 is dead");
  ASSERT_EQ(Written().size(), 1u);
  EXPECT_THAT(Written()[0],
              AllOf(HasSubstr("warning"), HasSubstr("worker_dead: worker 1 is dead")));
}

TEST_F(EventLinesTest, shouldWritePartOfAFloodAndThenWhatItLacks) {
  constexpr uint32_t kFlood = 5000;
  for (uint32_t i = 0; i < kFlood; ++i) Write("connection", absl::StrCat("connection ", i));
  const size_t part = Written().size();
  EXPECT_GE(part, log::LineLimit::kBurst);
  EXPECT_LT(part, kFlood / 2);
  Write("shard_moved", "shard 3 moved");
  EXPECT_THAT(Written().back(), HasSubstr("shard 3 moved"));
  loop_.run();
  ASSERT_EQ(Written().size(), part + 2);
  EXPECT_THAT(Written().back(),
              AllOf(HasSubstr(absl::StrCat(" ", kFlood - part, " events \"connection\"")),
                    HasSubstr("`baton events`")));
}

// A host that a worker connects to, cut within a character, is in such a message.
TEST(EventLogTest, shouldHoldNoWordsThatControlCannotParseOrThatEndALine) {
  std::vector<v1::Event> told;
  EventLog log("kv", [&](const v1::Event& event) { told.push_back(event); });
  log.Add("conn\nection", "connection 1 with h\xc3:7 \n[info] forged", 1, 0, -1, -1);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].kind(), "conn?ection");
  EXPECT_EQ(told[0].message(), "connection 1 with h?:7 ?[info] forged");
  v1::Event parsed;
  EXPECT_TRUE(parsed.ParseFromString(told[0].SerializeAsString()));
}

TEST(EventLogTest, shouldBoundItsMessagesAndItself) {
  EventLog log("kv", [](const v1::Event&) {});
  for (size_t i = 0; i < EventLog::kCapacity + 1; ++i) {
    log.Add("kind", std::string(2 * EventLog::kMaxMessageBytes, 'x'), 1, 0, -1, -1);
  }
  EXPECT_EQ(log.events().size(), EventLog::kCapacity);
  EXPECT_EQ(log.events().front().sequence(), 2u);
  EXPECT_EQ(log.events().back().message().size(), EventLog::kMaxMessageBytes);
}

}  // namespace
}  // namespace baton::keeper
