#include <string>

#include "gtest/gtest.h"
#include "lib/text/message_text.h"
#include "lib/text/text.h"
#include "proto/baton/internal/keeper.pb.h"

namespace baton {
namespace {

TEST(AsciiLineTest, shouldHaveNothingThatMetadataCannotCarry) {
  EXPECT_EQ(AsciiLine("kv: no keeper", 100), "kv: no keeper");
  EXPECT_EQ(AsciiLine("a\u00e4\n\x7f~", 100), "a????~");
  EXPECT_EQ(AsciiLine(std::string("a\0b\xff", 4), 100), "a?b?");
  EXPECT_EQ(AsciiLine("abcdef", 3), "abc");
  EXPECT_EQ(AsciiLine("", 3), "");
}

TEST(OneLineTest, shouldLeaveTextAsItIs) {
  EXPECT_EQ(OneLine("Grüße, 世界", 100), "Grüße, 世界");
  EXPECT_EQ(OneLine("", 100), "");
}

TEST(OneLineTest, shouldHaveNothingThatEndsALineOrCommandsATerminal) {
  EXPECT_EQ(OneLine("a\nb\r\tc\x1b[31m\x7f", 100), "a?b??c?[31m?");
  EXPECT_EQ(OneLine(std::string("a\0b", 3), 100), "a?b");
  EXPECT_EQ(OneLine("a\xc2\x9b"
                    "31mb\xc2\xa0",
                    100),
            "a?31mb\xc2\xa0");
}

TEST(OneLineTest, shouldBeValidUtf8OfAtMostSoManyBytes) {
  EXPECT_EQ(OneLine("ab\xff"
                    "c",
                    100),
            "ab?c");
  EXPECT_EQ(OneLine("aü", 2), "a");
  EXPECT_EQ(OneLine("abcdef", 3), "abc");
}

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

TEST(HostPort, shouldReadHostsAndPorts) {
  const auto name = ParseHostPort("kv1.example:7471");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->host, "kv1.example");
  EXPECT_EQ(name->port, 7471);
  const auto ipv6 = ParseHostPort("[fe80::1%eth0]:0");
  ASSERT_TRUE(ipv6);
  EXPECT_EQ(ipv6->host, "fe80::1%eth0");
  EXPECT_EQ(ipv6->port, 0);
  EXPECT_EQ(ParseHostPort("1.2.3.4:65535")->port, 65535);
}

TEST(HostPort, shouldRefuseWhatIsNone) {
  for (const char* text : {"", ":", "host", "host:", ":7471", "1.2.3.4:65536", "1.2.3.4:-1",
                           "1.2.3.4:+1", "1.2.3.4: 1", "1.2.3.4:1x", "::1:7471", "[::1]", "[]:1",
                           "[1.2.3.4]:1", "[::1:1", "::1]:1"}) {
    EXPECT_FALSE(ParseHostPort(text)) << text;
  }
}

const std::string kGood = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceParent, shouldTakeWhatTheStandardGivesAsAnExample) {
  EXPECT_EQ(CheckedTraceParent(kGood), kGood);
}

TEST(TraceParent, shouldTakeTheKnownFieldsOfALaterVersion) {
  EXPECT_EQ(CheckedTraceParent("01" + kGood.substr(2)), kGood);
  EXPECT_EQ(CheckedTraceParent("cc" + kGood.substr(2) + "-what-the-future-will-be-like"), kGood);
  EXPECT_EQ(CheckedTraceParent("cc" + kGood.substr(2) + ".what"), "");
}

TEST(TraceParent, shouldTakeNothingElse) {
  const auto with = [](size_t at, const std::string& text) {
    return std::string(kGood).replace(at, text.size(), text);
  };
  EXPECT_EQ(CheckedTraceParent(""), "");
  EXPECT_EQ(CheckedTraceParent(kGood.substr(0, kGood.size() - 1)), "") << "too short";
  EXPECT_EQ(CheckedTraceParent(kGood + "-more"), "") << "version 00 has no more";
  EXPECT_EQ(CheckedTraceParent(with(0, "ff")), "") << "no version";
  EXPECT_EQ(CheckedTraceParent(with(0, "0x")), "");
  EXPECT_EQ(CheckedTraceParent(with(3, std::string(32, '0'))), "") << "no trace";
  EXPECT_EQ(CheckedTraceParent(with(36, std::string(16, '0'))), "") << "no parent";
  EXPECT_EQ(CheckedTraceParent(with(3, "0AF7")), "") << "capitals";
  EXPECT_EQ(CheckedTraceParent(with(40, "\n")), "");
  EXPECT_EQ(CheckedTraceParent(with(53, "g0")), "");
  for (const size_t dash : {2, 35, 52}) EXPECT_EQ(CheckedTraceParent(with(dash, "_")), "") << dash;
}

}  // namespace
}  // namespace baton
