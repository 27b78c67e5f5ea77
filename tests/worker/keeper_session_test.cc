#include "worker/keeper_session.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <optional>
#include <thread>
#include <vector>

#include "lib/channel/message_channel.h"

namespace baton {
namespace {

class KeeperSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> pair;
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
    keeper.emplace(FileDescriptor(pair[0]));
    session.emplace(FileDescriptor(pair[1]));
  }

  internal::WorkerRequest Next() {
    internal::WorkerRequest request;
    EXPECT_EQ(keeper->Receive(&request, -1), absl::OkStatus());
    return request;
  }
  void ReplyWithToken() {
    internal::WorkerReply reply;
    reply.mutable_token()->set_token("a token");
    EXPECT_EQ(keeper->Send(reply), absl::OkStatus());
  }
  void ReplyWithPort() {
    internal::WorkerReply reply;
    reply.mutable_listening()->set_port(7471);
    EXPECT_EQ(keeper->Send(reply), absl::OkStatus());
  }

  std::optional<MessageChannel> keeper;
  std::optional<KeeperSession> session;
};

TEST_F(KeeperSessionTest, shouldWaitAsItWasTold) {
  std::vector<int> waited;
  session->WaitWith([&](pollfd socket, int timeout_ms) {
    EXPECT_GT(timeout_ms, 0);
    waited.push_back(socket.fd);
    if (waited.size() == 2) ReplyWithPort();
  });
  EXPECT_EQ(session->Listen("127.0.0.1", 0).value(), 7471);
  EXPECT_EQ(waited, std::vector<int>(2, session->fd()));
}

// A thread that drives queues waits in the same way for another thread's reply.
TEST_F(KeeperSessionTest, shouldWaitAsItWasToldWhileAnotherThreadAwaitsItsReply) {
  std::thread control([&] { EXPECT_EQ(session->NewToken().value(), "a token"); });
  EXPECT_TRUE(Next().has_new_token());
  std::vector<int> waited;
  session->WaitWith([&](pollfd socket, int) {
    if (waited.empty()) ReplyWithToken();
    waited.push_back(socket.fd);
    if (socket.fd < 0) return;
    EXPECT_TRUE(Next().has_listen());
    ReplyWithPort();
  });
  EXPECT_EQ(session->Listen("127.0.0.1", 0).value(), 7471);
  EXPECT_EQ(waited.front(), -1);
  EXPECT_EQ(waited.back(), session->fd());
  control.join();
}

TEST_F(KeeperSessionTest, shouldNotWaitForAKeeperThatIsGone) {
  keeper.reset();
  session->WaitWith([](pollfd, int) {});
  EXPECT_EQ(session->Listen("127.0.0.1", 0).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace baton
