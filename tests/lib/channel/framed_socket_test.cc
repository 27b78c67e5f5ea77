#include "lib/channel/framed_socket.h"

#include <sys/resource.h>
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

class FramedSocketTest : public testing::Test {
 protected:
  explicit FramedSocketTest(const FramedSocket::Limits& limits = FramedSocket::Limits()) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    socket_ = std::make_shared<FramedSocket>(loop_, FileDescriptor(ends[0]), limits);
    other_ = std::make_unique<MessageChannel>(FileDescriptor(ends[1]));
    socket_->Start(
        [this]() -> absl::StatusOr<bool> {
          internal::BatondReply reply;
          absl::StatusOr<bool> whole = socket_->channel().NextFrame(&reply);
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
  std::shared_ptr<FramedSocket> socket_;
  std::unique_ptr<MessageChannel> other_;
  int frames_ = 0;
  std::optional<absl::Status> closed_;
};

TEST_F(FramedSocketTest, shouldHandleAFewFramesATurn) {
  constexpr int kFrames = 100;
  for (int i = 0; i < kFrames; ++i) ASSERT_TRUE(other_->Send(Reply()).ok());
  for (int turns = 1; frames_ < kFrames; ++turns) {
    ASSERT_EQ(loop_.run_one(), 1u);
    EXPECT_LE(frames_, 10 * turns);
  }
}

TEST_F(FramedSocketTest, shouldHandleWhatCameBeforeTheEndAndTellOfThatOnce) {
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(other_->Send(Reply()).ok());
  other_.reset();
  loop_.run();
  EXPECT_EQ(frames_, 20);
  ASSERT_TRUE(closed_.has_value());
  EXPECT_TRUE(absl::IsUnavailable(*closed_)) << *closed_;
}

TEST_F(FramedSocketTest, shouldCallNobodyOnceItIsClosed) {
  ASSERT_TRUE(other_->Send(Reply()).ok());
  other_.reset();
  socket_->Close();
  loop_.run();
  EXPECT_EQ(frames_, 0);
  EXPECT_FALSE(closed_.has_value());
}

// The system is short of memory for a moment.
TEST_F(FramedSocketTest, shouldGoOnAfterAMessageThatWasTriedAndDidNotGo) {
  const harness::ScriptedSends sends(socket_->channel().fd(),
                                     {harness::ScriptedSends::Failing(ENOBUFS)});
  EXPECT_TRUE(absl::IsResourceExhausted(socket_->TrySend(Reply("lost"))));
  EXPECT_TRUE(socket_->TrySend(Reply("sent")).ok());
  loop_.poll();
  EXPECT_FALSE(closed_.has_value());
  EXPECT_EQ(Received(), "sent");
}

TEST_F(FramedSocketTest, shouldEndWithAMessageThatHadToGoAndDidNot) {
  const harness::ScriptedSends sends(socket_->channel().fd(),
                                     {harness::ScriptedSends::Failing(ENOBUFS)});
  socket_->Send(Reply("lost"));
  EXPECT_FALSE(closed_.has_value());  // the caller does not expect it
  loop_.poll();
  ASSERT_TRUE(closed_.has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(*closed_)) << *closed_;
}

class BoundedSocketTest : public FramedSocketTest {
 protected:
  BoundedSocketTest() : FramedSocketTest({.queued_bytes = 10'000}) {}
};

TEST_F(BoundedSocketTest, shouldEndWithAReaderThatReadsNothing) {
  uint64_t sent = 0;
  while (!closed_.has_value() && sent < 10'000'000) {
    socket_->Send(Reply(std::string(1000, 'x')));
    sent += 1000;
    loop_.poll();
  }
  ASSERT_TRUE(closed_.has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(*closed_)) << *closed_;
}

class OneDescriptorSocketTest : public FramedSocketTest {
 protected:
  OneDescriptorSocketTest() : FramedSocketTest({.refuses_descriptors = true}) {}
};

// The sender is not to blame.
TEST_F(OneDescriptorSocketTest, shouldWaitUntilADescriptorIsFree) {
#if __has_feature(address_sanitizer)
  GTEST_SKIP() << "UndefinedBehaviorSanitizer looks at memory through a pipe: it needs descriptors";
#endif
  socket_->channel().TakeOneDescriptor();
  ASSERT_TRUE(other_->Send(Reply(), {other_->fd()}).ok());
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {3, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  loop_.run_one();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(frames_, 0);
  EXPECT_FALSE(closed_.has_value());
  while (frames_ == 0 && !closed_.has_value()) loop_.run_one();
  EXPECT_FALSE(closed_.has_value());
}

TEST_F(FramedSocketTest, shouldSendWhatTheSocketDidNotTakeAtOnce) {
  const std::string large(4 << 20, 'x');
  socket_->Send(Reply(large));
  EXPECT_TRUE(socket_->channel().pending());
  internal::BatondReply reply;
  absl::Status received = absl::DeadlineExceededError("not yet");
  while (absl::IsDeadlineExceeded(received)) {
    loop_.poll();
    received = other_->Receive(&reply, /*timeout_ms=*/0);
  }
  ASSERT_TRUE(received.ok()) << received;
  EXPECT_EQ(reply.status_message(), large);
}

TEST_F(FramedSocketTest, shouldMendTextThatIsNotUtf8) {
  socket_->Send(Reply("a\xff z"));
  EXPECT_EQ(Received(), "a? z");
}

class ShortTextSocketTest : public FramedSocketTest {
 protected:
  ShortTextSocketTest() : FramedSocketTest({.text_bytes = 3}) {}
};

TEST_F(ShortTextSocketTest, shouldCutALongerText) {
  socket_->Send(Reply("abcdef"));
  EXPECT_EQ(Received(), "abc");
}

}  // namespace
}  // namespace baton
