#include "supervisor/keeper/event_log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace baton::keeper {
namespace {

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
