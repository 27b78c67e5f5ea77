#include "supervisor/control/keepers.h"

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/keeper.pb.h"
#include "tests/harness/scripted_sends.h"
#include "tests/harness/temp_directory.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr int kTimeoutMs = 10'000;
constexpr uint64_t kTimeoutNs = 10'000'000'000;

// The keeper is the test, and the loop runs when that says so.
class KeeperClientTest : public ::testing::Test {
 protected:
  void TearDown() override { client_.Stop(); }

  // The number of the next descriptor that this process opens: the lowest that is free.
  int NextDescriptor() const { return FileDescriptor(dup(listening_.get())).get(); }

  void RunUntil(const std::function<bool()>& done) {
    for (int i = 0; i < kTimeoutMs / 10 && !done(); ++i) {
      loop_.restart();
      loop_.run_one_for(std::chrono::milliseconds(10));
    }
  }

  // The next connection of the client; null: there is none.
  std::unique_ptr<MessageChannel> Accept() {
    FileDescriptor socket;
    RunUntil([&] {
      socket.Reset(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      return static_cast<bool>(socket);
    });
    return socket ? std::make_unique<MessageChannel>(std::move(socket)) : nullptr;
  }

  KeeperClient::Observer MakeObserver() {
    KeeperClient::Observer observer;
    observer.on_event = [this](const v1::Event& event) { events_.push_back(event.sequence()); };
    observer.on_connected = [this] { ++connected_; };
    return observer;
  }

  boost::asio::io_context loop_{1};
  harness::TempDirectory directory_ = harness::TempDirectory::Create().value();
  const std::string path_ = directory_.File("kv.keeper.sock");
  const FileDescriptor listening_ = ListenUnix(path_, 8, 0600).value();
  std::vector<uint64_t> events_;
  int connected_ = 0;
  KeeperClient client_{loop_, "kv", path_, MakeObserver()};
};

TEST_F(KeeperClientTest, shouldConnectAnewWhenItCouldNotSubscribe) {
  const harness::ScriptedSends sends(NextDescriptor(), {harness::ScriptedSends::Failing(ENOBUFS)});
  client_.Start();
  loop_.poll();
  ASSERT_TRUE(sends.done());
  EXPECT_EQ(connected_, 0);
  internal::ManagementRequest request;
  const auto first = Accept();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->Receive(&request, 0).code(), absl::StatusCode::kUnavailable);
  const auto second = Accept();
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->Receive(&request, kTimeoutMs), absl::OkStatus());
  EXPECT_TRUE(request.has_subscribe());
  EXPECT_EQ(connected_, 1);
  internal::ManagementReply reply;
  reply.mutable_event()->set_sequence(7);
  ASSERT_EQ(second->Send(reply), absl::OkStatus());
  RunUntil([this] { return !events_.empty(); });
  EXPECT_EQ(events_, std::vector<uint64_t>{7});
}

TEST_F(KeeperClientTest, shouldAskForNothingWhereItCouldNotSubscribe) {
  const harness::ScriptedSends sends(NextDescriptor(), {harness::ScriptedSends::Failing(ENOBUFS)});
  internal::ManagementRequest kill;
  kill.mutable_kill_worker()->set_worker_id(1);
  absl::Status answer;
  client_.Call(kill, kTimeoutNs, [&](const auto& reply) { answer = reply.status(); });
  loop_.poll();
  ASSERT_TRUE(sends.done());
  EXPECT_EQ(answer.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(answer.message()), HasSubstr("No buffer space"));
  internal::ManagementRequest request;
  const auto first = Accept();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->Receive(&request, 0).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace baton
