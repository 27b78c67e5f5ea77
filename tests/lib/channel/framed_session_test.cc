#include "lib/channel/framed_session.h"

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/batond.pb.h"
#include "tests/harness/scripted_sends.h"

namespace baton {
namespace {

class FramedSessionTest : public testing::Test {
 protected:
  explicit FramedSessionTest(const FramedSession::Limits& limits = FramedSession::Limits()) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    session_ = std::make_shared<FramedSession>(loop_, FileDescriptor(ends[0]), limits);
    other_ = std::make_unique<MessageChannel>(FileDescriptor(ends[1]));
    session_->Start(
        [this]() -> absl::StatusOr<bool> {
          internal::BatondReply reply;
          absl::StatusOr<bool> whole = session_->channel().NextFrame(&reply);
          if (whole.ok() && *whole) ++frames_;
          return whole;
        },
        [this](const absl::Status& why) {
          EXPECT_FALSE(closed_.has_value());
          closed_ = why;
        });
  }

  static internal::BatondReply Reply(const std::string& text = "") {
    internal::BatondReply reply;
    reply.set_status_message(text);
    return reply;
  }
  std::string Received() {
    internal::BatondReply reply;
    const absl::Status status = other_->Receive(&reply, 10'000);
    EXPECT_TRUE(status.ok()) << status;
    return reply.status_message();
  }

  boost::asio::io_context loop_;
  std::shared_ptr<FramedSession> session_;
  std::unique_ptr<MessageChannel> other_;
  int frames_ = 0;
  std::optional<absl::Status> closed_;
};

TEST_F(FramedSessionTest, shouldHandleAFewFramesATurn) {
  constexpr int kFrames = 100;
  for (int i = 0; i < kFrames; ++i) ASSERT_TRUE(other_->Send(Reply()).ok());
  for (int turns = 1; frames_ < kFrames; ++turns) {
    ASSERT_EQ(loop_.run_one(), 1u);
    EXPECT_LE(frames_, 10 * turns);
  }
}

TEST_F(FramedSessionTest, shouldHandleWhatCameBeforeTheEndAndTellOfThatOnce) {
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(other_->Send(Reply()).ok());
  other_.reset();
  loop_.run();
  EXPECT_EQ(frames_, 20);
  ASSERT_TRUE(closed_.has_value());
  EXPECT_TRUE(absl::IsUnavailable(*closed_)) << *closed_;
}

TEST_F(FramedSessionTest, shouldCallNobodyOnceItIsClosed) {
  ASSERT_TRUE(other_->Send(Reply()).ok());
  other_.reset();
  session_->Close();
  loop_.run();
  EXPECT_EQ(frames_, 0);
  EXPECT_FALSE(closed_.has_value());
}

// The system is short of memory for a moment.
TEST_F(FramedSessionTest, shouldGoOnAfterAMessageThatWasTriedAndDidNotGo) {
  const harness::ScriptedSends sends(session_->channel().fd(),
                                     {harness::ScriptedSends::Failing(ENOBUFS)});
  EXPECT_TRUE(absl::IsResourceExhausted(session_->TrySend(Reply("lost"))));
  EXPECT_TRUE(session_->TrySend(Reply("sent")).ok());
  loop_.poll();
  EXPECT_FALSE(closed_.has_value());
  EXPECT_EQ(Received(), "sent");
}

TEST_F(FramedSessionTest, shouldEndWithAMessageThatHadToGoAndDidNot) {
  const harness::ScriptedSends sends(session_->channel().fd(),
                                     {harness::ScriptedSends::Failing(ENOBUFS)});
  session_->Send(Reply("lost"));
  EXPECT_FALSE(closed_.has_value());  // the caller does not expect it
  loop_.poll();
  ASSERT_TRUE(closed_.has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(*closed_)) << *closed_;
}

TEST_F(FramedSessionTest, shouldSendWhatTheSocketDidNotTakeAtOnce) {
  const std::string large(4 << 20, 'x');
  session_->Send(Reply(large));
  EXPECT_TRUE(session_->channel().pending());
  internal::BatondReply reply;
  absl::Status received = absl::DeadlineExceededError("not yet");
  while (absl::IsDeadlineExceeded(received)) {
    loop_.poll();
    received = other_->Receive(&reply, /*timeout_ms=*/0);
  }
  ASSERT_TRUE(received.ok()) << received;
  EXPECT_EQ(reply.status_message(), large);
}

TEST_F(FramedSessionTest, shouldMendTextThatIsNotUtf8) {
  session_->Send(Reply("a\xff z"));
  EXPECT_EQ(Received(), "a? z");
}

class ShortTextSessionTest : public FramedSessionTest {
 protected:
  ShortTextSessionTest() : FramedSessionTest({.text_bytes = 3}) {}
};

TEST_F(ShortTextSessionTest, shouldCutALongerText) {
  session_->Send(Reply("abcdef"));
  EXPECT_EQ(Received(), "abc");
}

}  // namespace
}  // namespace baton
