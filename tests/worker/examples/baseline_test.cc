// The ledger without Baton: it is what Baton is compared with, so it has to be right and quick. Its
// clients see disconnects, and nothing that is lost for good.
#include <signal.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/expectations.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/temp_directory.h"
#include "tests/harness/wait_until.h"

namespace baton::harness {
namespace {

constexpr std::chrono::seconds kLong{30};

class BaselineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto directory = TempDirectory::Create();
    ASSERT_OK(directory);
    directory_ = std::make_unique<TempDirectory>(*std::move(directory));
    server_ = StartServer({});
    ASSERT_NE(server_, nullptr);
    WaitUntilItListens(*server_);
  }

  std::unique_ptr<ChildProcess> StartServer(const std::vector<std::string>& more) {
    auto program = Binaries().Find("ledger-baseline");
    EXPECT_OK(program);
    if (!program.ok()) return nullptr;
    ChildOptions options;
    options.program = *program;
    options.log_path = directory_->File("server.log");
    options.arguments = {"--listen", absl::StrCat("127.0.0.1:", port_)};
    options.arguments.insert(options.arguments.end(), more.begin(), more.end());
    auto child = ChildProcess::Start(options);
    EXPECT_OK(child);
    return child.ok() ? *std::move(child) : nullptr;
  }

  void WaitUntilItListens(ChildProcess& server) {
    const std::string beginning = "ledger-baseline ready port=";
    auto line = server.ReadLineWith(beginning, kLong);
    ASSERT_OK(line);
    port_ = static_cast<uint16_t>(std::stoi(line->substr(beginning.size())));
  }

  // One that listens at the same port when the server has ended.
  void StartSuccessor(int version, std::unique_ptr<ChildProcess>* successor) {
    *successor = StartServer(
        {"--wait-for-pid", absl::StrCat(server_->pid()), "--reply-version", absl::StrCat(version)});
    ASSERT_NE(*successor, nullptr);
    ASSERT_OK((*successor)->ReadLineWith("ledger-baseline warm", kLong));
  }

  // Another one, with a port of its own.
  std::unique_ptr<ChildProcess> StartStandby(uint16_t* port, int version) {
    const uint16_t first = std::exchange(port_, *port);
    auto standby = StartServer({"--reply-version", absl::StrCat(version)});
    if (standby != nullptr) WaitUntilItListens(*standby);
    *port = std::exchange(port_, first);
    return standby;
  }

  std::unique_ptr<PeerProcess> StartPeer(uint64_t rate, bool reconnect, uint32_t active = 0,
                                         uint16_t standby = 0) {
    PeerOptions options;
    auto program = Binaries().Find("baton-peer");
    EXPECT_OK(program);
    if (!program.ok()) return nullptr;
    options.program = *program;
    options.log_path = directory_->File("peer.log");
    options.port = port_;
    options.connections = 8;
    options.active = active;
    options.rate = rate;
    options.reconnect = reconnect;
    options.arguments = {"--drain-timeout-ms", "1000"};
    if (standby != 0) {
      options.arguments.insert(options.arguments.end(),
                               {"--standby", absl::StrCat("127.0.0.1:", standby)});
    }
    auto peer = PeerProcess::Start(options);
    EXPECT_OK(peer);
    return peer.ok() ? *std::move(peer) : nullptr;
  }

  // So many of the connections were answered in the window that ends now.
  static void ExpectReplies(PeerProcess& peer, uint32_t connections) {
    const auto window = peer.Mark("replies");
    ASSERT_OK(window);
    EXPECT_EQ(window->connections_with_reply, connections);
  }

  // All connections move to a standby and back again, at full speed, and with some that are asked
  // at a settle only. `leave` ends the server: the one of `version` serves then. The peer counts
  // nothing of what `none` names.
  void MoveThereAndBack(const std::function<void(PeerProcess&, ChildProcess&, int version)>& leave,
                        const std::vector<std::string>& none) {
    for (const uint64_t rate : {uint64_t{0}, uint64_t{5000}}) {
      uint16_t port = 0;
      auto standby = StartStandby(&port, /*version=*/2);
      ASSERT_NE(standby, nullptr);
      auto peer = StartPeer(rate, true, rate == 0 ? 0 : 3, port);
      ASSERT_NE(peer, nullptr);
      for (const int version : {2, 1}) {
        ASSERT_OK(peer->AwaitSpares(8));
        ASSERT_OK(peer->Settle());
        ASSERT_NO_FATAL_FAILURE(leave(*peer, *server_, version));
        std::swap(port, port_);
        server_ = std::exchange(standby, StartStandby(&port, 3 - version));
      }
      const auto result = peer->StopChecked();
      ASSERT_OK(result);
      for (const std::string& field : none) EXPECT_EQ(result->Count(field), 0u) << field;
    }
  }

  std::unique_ptr<TempDirectory> directory_;
  uint16_t port_ = 0;
  std::unique_ptr<ChildProcess> server_;
};

TEST_F(BaselineTest, ServesAtARateAndAtFullSpeed) {
  for (uint64_t rate : {uint64_t{0}, uint64_t{5000}}) {
    auto peer = StartPeer(rate, false);
    ASSERT_NE(peer, nullptr);
    ASSERT_OK(peer->Settle());
    const auto result = peer->StopChecked();
    ASSERT_OK(result);
    EXPECT_GE(result->Count("messages"), 8u);
  }
}

TEST_F(BaselineTest, ClientsResumeAtTheSuccessor) {
  auto peer = StartPeer(5000, true);
  ASSERT_NE(peer, nullptr);
  for (int kill = 1; kill <= 3; ++kill) {
    std::unique_ptr<ChildProcess> successor;
    ASSERT_NO_FATAL_FAILURE(StartSuccessor(1 + kill % 2, &successor));
    ASSERT_OK(peer->Settle());
    ASSERT_OK(peer->Mark("before"));
    ASSERT_OK(server_->Kill());
    WaitUntilItListens(*successor);
    ASSERT_OK(peer->Settle());
    auto window = peer->Mark("gap");
    ASSERT_OK(window);
    EXPECT_EQ(window->disconnects, 8u);
    EXPECT_EQ(window->connections_with_reply, 8u);
    EXPECT_EQ(window->last_versions[1 + kill % 2], 8u);
    EXPECT_GT(window->max_silence_us, 0);
    server_ = std::move(successor);
  }
  const auto result = peer->StopChecked();
  ASSERT_OK(result);
  EXPECT_EQ(result->Count("disconnects"), 24u);
  EXPECT_EQ(result->Count("reconnects"), 24u);
}

TEST_F(BaselineTest, ClientsGoOnOverTheConnectionsThatTheyHaveToAStandby) {
  MoveThereAndBack(
      [](PeerProcess& peer, ChildProcess& server, int version) {
        ASSERT_OK(server.Kill());
        ASSERT_OK(peer.Settle());
        const auto window = peer.Mark("gap");
        ASSERT_OK(window);
        EXPECT_EQ(window->last_versions[version], 8u);
        // The first tells the others.
        EXPECT_GE(window->disconnects, 1u);
      },
      {"reconnects"});
}

TEST_F(BaselineTest, ClientsThatAreToldToMoveDoSoBetweenTheirRequests) {
  MoveThereAndBack(
      [](PeerProcess& peer, ChildProcess& server, int version) {
        ASSERT_OK(server.Signal(SIGUSR1));
        // The first replies tell, and the next are the standby's.
        ASSERT_OK(peer.Settle());
        ASSERT_OK(peer.Settle());
        const auto window = peer.Mark("gap");
        ASSERT_OK(window);
        EXPECT_EQ(window->last_versions[version], 8u);
        ASSERT_OK(server.Terminate(kLong));
      },
      {"disconnects", "retried"});
}

TEST_F(BaselineTest, ConnectionsThatAreNotActiveAreAskedAtASettleOnly) {
  for (uint64_t rate : {uint64_t{0}, uint64_t{5000}}) {
    auto peer = StartPeer(rate, true, /*active=*/3);
    ASSERT_NE(peer, nullptr);
    ASSERT_OK(peer->SettleActive());
    ASSERT_OK(peer->SettleActive());
    ASSERT_NO_FATAL_FAILURE(ExpectReplies(*peer, 3));
    ASSERT_OK(peer->Settle());
    ASSERT_NO_FATAL_FAILURE(ExpectReplies(*peer, 8));
    // They are asked also when they have to be connected anew for it.
    std::unique_ptr<ChildProcess> successor;
    ASSERT_NO_FATAL_FAILURE(StartSuccessor(/*version=*/1, &successor));
    ASSERT_OK(server_->Kill());
    ASSERT_OK(peer->Settle());
    ASSERT_NO_FATAL_FAILURE(ExpectReplies(*peer, 8));
    ASSERT_OK(peer->StopChecked());
    WaitUntilItListens(*successor);
    server_ = std::move(successor);
  }
}

TEST_F(BaselineTest, PeerThatMayNotReconnectReportsTheLoss) {
  auto peer = StartPeer(5000, false);
  ASSERT_NE(peer, nullptr);
  ASSERT_OK(peer->Settle());
  ASSERT_OK(server_->Kill());
  // It stops by itself when it has learnt that no connection is left.
  ASSERT_OK(WaitUntil("the peer's end", [&] { return !peer->Mark("loss").ok(); }));
  const auto result = peer->Stop();
  ASSERT_OK(result);
  EXPECT_FALSE(result->Flag("ok")) << result->text();
  EXPECT_EQ(result->Count("disconnects"), result->Count("connections"));
}

TEST_F(BaselineTest, PeerThatIsNotAnsweredReportsTheLoss) {
  auto peer = StartPeer(5000, false);
  ASSERT_NE(peer, nullptr);
  ASSERT_OK(peer->Settle());
  ASSERT_OK(server_->Signal(SIGSTOP));
  // A silence of this length means that requests are open.
  ASSERT_OK(WaitUntil("silence", [&] {
    auto window = peer->Mark("silence");
    return window.ok() && window->max_silence_us > 50'000;
  }));
  const auto result = peer->Stop();
  ASSERT_OK(result);
  EXPECT_FALSE(result->Flag("ok")) << result->text();
  EXPECT_GE(result->Count("lost"), 1u);
}

}  // namespace
}  // namespace baton::harness
