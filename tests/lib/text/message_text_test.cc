#include "lib/text/message_text.h"

#include <string>

#include "gtest/gtest.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton {
namespace {

TEST(MessageTextTest, shouldLeaveAMessageThatIsValid) {
  internal::ManagementReply reply;
  reply.set_status_message("gr\u00f6\u00dfer");
  reply.add_upgrades()->add_arguments("--fast");
  const std::string before = reply.SerializeAsString();
  EXPECT_TRUE(HasValidText(reply, 64));
  MakeTextValid(&reply, 64);
  EXPECT_EQ(reply.SerializeAsString(), before);
}

TEST(MessageTextTest, shouldMendTextAtAnyDepthSoThatTheReceiverParsesIt) {
  internal::ManagementReply reply;
  v1::Upgrade* upgrade = reply.add_upgrades();
  upgrade->set_exec("/opt/kv-\xff");
  upgrade->add_arguments("--fast");
  upgrade->add_arguments("\xfe\xff");
  reply.mutable_description()->mutable_service()->mutable_upgrade()->set_detail("\xc3");
  internal::ManagementReply received;
  ASSERT_FALSE(received.ParseFromString(reply.SerializeAsString()));
  EXPECT_FALSE(HasValidText(reply, 64));
  MakeTextValid(&reply, 64);
  EXPECT_TRUE(HasValidText(reply, 64));
  ASSERT_TRUE(received.ParseFromString(reply.SerializeAsString()));
  EXPECT_EQ(received.upgrades(0).exec(), "/opt/kv-?");
  EXPECT_EQ(received.upgrades(0).arguments(0), "--fast");
  EXPECT_EQ(received.upgrades(0).arguments(1), "??");
  EXPECT_EQ(received.description().service().upgrade().detail(), "?");
}

TEST(MessageTextTest, shouldCutTextBetweenCharacters) {
  internal::ManagementReply reply;
  reply.set_status_message("abc\u00e4");
  EXPECT_FALSE(HasValidText(reply, 4));
  MakeTextValid(&reply, 4);
  EXPECT_EQ(reply.status_message(), "abc");
}

TEST(MessageTextTest, shouldLeaveBytesAlone) {
  internal::Program program;
  program.add_arguments("\xff");
  EXPECT_TRUE(HasValidText(program, 64));
  MakeTextValid(&program, 64);
  EXPECT_EQ(program.arguments(0), "\xff");
}

}  // namespace
}  // namespace baton
