// The ledger without Baton: it is what Baton is compared with, so it has to be right and quick. Its
// clients see disconnects, and nothing that is lost for good.
#include <signal.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
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
    ASSERT_TRUE(directory.ok()) << directory.status();
    directory_ = std::make_unique<TempDirectory>(*std::move(directory));
    server_ = StartServer({});
    ASSERT_NE(server_, nullptr);
    WaitUntilItListens(*server_);
  }

  std::unique_ptr<ChildProcess> StartServer(const std::vector<std::string>& more) {
    auto program = Binaries().Find("ledger-baseline");
    EXPECT_TRUE(program.ok()) << program.status();
    if (!program.ok()) return nullptr;
    ChildOptions options;
    options.program = *program;
    options.log_path = directory_->File("server.log");
    options.arguments = {"--listen", absl::StrCat("127.0.0.1:", port_)};
    options.arguments.insert(options.arguments.end(), more.begin(), more.end());
    auto child = ChildProcess::Start(options);
    EXPECT_TRUE(child.ok()) << child.status();
    return child.ok() ? *std::move(child) : nullptr;
  }

  void WaitUntilItListens(ChildProcess& server) {
    const std::string beginning = "ledger-baseline ready port=";
    auto line = server.ReadLineWith(beginning, kLong);
    ASSERT_TRUE(line.ok()) << line.status();
    port_ = static_cast<uint16_t>(std::stoi(line->substr(beginning.size())));
  }

  // Another one, with a port of its own.
  std::unique_ptr<ChildProcess> StartStandby(uint16_t* port, int version) {
    const uint16_t first = std::exchange(port_, *port);
    auto standby = StartServer({"--reply-version", absl::StrCat(version)});
    if (standby != nullptr) WaitUntilItListens(*standby);
    *port = std::exchange(port_, first);
    return standby;
  }

  // Until each of its connections has one to the standby.
  static void AwaitSpares(PeerProcess& peer) {
    const absl::Status status = WaitUntil("connections to the standby", [&] {
      const auto window = peer.Mark("spares");
      return window.ok() && window->spares == 8;
    });
    ASSERT_TRUE(status.ok()) << status;
  }

  std::unique_ptr<PeerProcess> StartPeer(uint64_t rate, bool reconnect, uint32_t active = 0,
                                         uint16_t standby = 0) {
    PeerOptions options;
    auto program = Binaries().Find("baton-peer");
    EXPECT_TRUE(program.ok()) << program.status();
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
    EXPECT_TRUE(peer.ok()) << peer.status();
    return peer.ok() ? *std::move(peer) : nullptr;
  }

  std::unique_ptr<TempDirectory> directory_;
  uint16_t port_ = 0;
  std::unique_ptr<ChildProcess> server_;
};

TEST_F(BaselineTest, ServesAtARateAndAtFullSpeed) {
  for (uint64_t rate : {uint64_t{0}, uint64_t{5000}}) {
    auto peer = StartPeer(rate, false);
    ASSERT_NE(peer, nullptr);
    ASSERT_TRUE(peer->Settle().ok());
    auto result = peer->Stop();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->Flag("ok")) << result->text();
    EXPECT_GE(result->Count("messages"), 8u);
  }
}

TEST_F(BaselineTest, ClientsResumeAtTheSuccessor) {
  auto peer = StartPeer(5000, true);
  ASSERT_NE(peer, nullptr);
  for (int kill = 1; kill <= 3; ++kill) {
    auto successor = StartServer({"--wait-for-pid", absl::StrCat(server_->pid()), "--reply-version",
                                  absl::StrCat(1 + kill % 2)});
    ASSERT_NE(successor, nullptr);
    ASSERT_TRUE(successor->ReadLineWith("ledger-baseline warm", kLong).ok());
    ASSERT_TRUE(peer->Settle().ok());
    ASSERT_TRUE(peer->Mark("before").ok());
    ASSERT_TRUE(server_->Kill().ok());
    WaitUntilItListens(*successor);
    ASSERT_TRUE(peer->Settle().ok());
    auto window = peer->Mark("gap");
    ASSERT_TRUE(window.ok()) << window.status();
    EXPECT_EQ(window->disconnects, 8u);
    EXPECT_EQ(window->connections_with_reply, 8u);
    EXPECT_EQ(window->last_versions[1 + kill % 2], 8u);
    EXPECT_GT(window->max_silence_us, 0);
    server_ = std::move(successor);
  }
  auto result = peer->Stop();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->Flag("ok")) << result->text();
  EXPECT_EQ(result->Count("disconnects"), 24u);
  EXPECT_EQ(result->Count("reconnects"), 24u);
}

// At full speed, and with some that are asked at a settle only.
TEST_F(BaselineTest, ClientsGoOnOverTheConnectionsThatTheyHaveToAStandby) {
  for (const uint64_t rate : {uint64_t{0}, uint64_t{5000}}) {
    uint16_t port = 0;
    auto standby = StartStandby(&port, /*version=*/2);
    ASSERT_NE(standby, nullptr);
    auto peer = StartPeer(rate, true, rate == 0 ? 0 : 3, port);
    ASSERT_NE(peer, nullptr);
    // There and back again.
    for (const int version : {2, 1}) {
      AwaitSpares(*peer);
      ASSERT_TRUE(peer->Settle().ok());
      ASSERT_TRUE(server_->Kill().ok());
      ASSERT_TRUE(peer->Settle().ok());
      const auto window = peer->Mark("gap");
      ASSERT_TRUE(window.ok()) << window.status();
      EXPECT_EQ(window->last_versions[version], 8u);
      // The first tells the others.
      EXPECT_GE(window->disconnects, 1u);
      std::swap(port, port_);
      server_ = std::exchange(standby, StartStandby(&port, 3 - version));
    }
    const auto result = peer->Stop();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->Flag("ok")) << result->text();
    EXPECT_EQ(result->Count("reconnects"), 0u);
  }
}

TEST_F(BaselineTest, ClientsThatAreToldToMoveDoSoBetweenTheirRequests) {
  for (const uint64_t rate : {uint64_t{0}, uint64_t{5000}}) {
    uint16_t port = 0;
    auto standby = StartStandby(&port, /*version=*/2);
    ASSERT_NE(standby, nullptr);
    auto peer = StartPeer(rate, true, rate == 0 ? 0 : 3, port);
    ASSERT_NE(peer, nullptr);
    for (const int version : {2, 1}) {
      AwaitSpares(*peer);
      ASSERT_TRUE(peer->Settle().ok());
      ASSERT_TRUE(server_->Signal(SIGUSR1).ok());
      // The first replies tell, and the next are the standby's.
      ASSERT_TRUE(peer->Settle().ok());
      ASSERT_TRUE(peer->Settle().ok());
      const auto window = peer->Mark("gap");
      ASSERT_TRUE(window.ok()) << window.status();
      EXPECT_EQ(window->last_versions[version], 8u);
      ASSERT_TRUE(server_->Terminate(kLong).ok());
      std::swap(port, port_);
      server_ = std::exchange(standby, StartStandby(&port, 3 - version));
    }
    const auto result = peer->Stop();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->Flag("ok")) << result->text();
    EXPECT_EQ(result->Count("disconnects"), 0u);
    EXPECT_EQ(result->Count("retried"), 0u);
  }
}

TEST_F(BaselineTest, ConnectionsThatAreNotActiveAreAskedAtASettleOnly) {
  for (uint64_t rate : {uint64_t{0}, uint64_t{5000}}) {
    auto peer = StartPeer(rate, true, /*active=*/3);
    ASSERT_NE(peer, nullptr);
    ASSERT_TRUE(peer->SettleActive().ok());
    ASSERT_TRUE(peer->SettleActive().ok());
    auto window = peer->Mark("active");
    ASSERT_TRUE(window.ok()) << window.status();
    EXPECT_EQ(window->connections_with_reply, 3u);
    ASSERT_TRUE(peer->Settle().ok());
    window = peer->Mark("all");
    ASSERT_TRUE(window.ok()) << window.status();
    EXPECT_EQ(window->connections_with_reply, 8u);
    // They are asked also when they have to be connected anew for it.
    auto successor = StartServer({"--wait-for-pid", absl::StrCat(server_->pid())});
    ASSERT_NE(successor, nullptr);
    ASSERT_TRUE(successor->ReadLineWith("ledger-baseline warm", kLong).ok());
    ASSERT_TRUE(server_->Kill().ok());
    ASSERT_TRUE(peer->Settle().ok());
    window = peer->Mark("reconnected");
    ASSERT_TRUE(window.ok()) << window.status();
    EXPECT_EQ(window->connections_with_reply, 8u);
    auto result = peer->Stop();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->Flag("ok")) << result->text();
    WaitUntilItListens(*successor);
    server_ = std::move(successor);
  }
}

TEST_F(BaselineTest, PeerThatMayNotReconnectReportsTheLoss) {
  auto peer = StartPeer(5000, false);
  ASSERT_NE(peer, nullptr);
  ASSERT_TRUE(peer->Settle().ok());
  ASSERT_TRUE(server_->Kill().ok());
  auto result = peer->Stop();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->Flag("ok")) << result->text();
  EXPECT_GE(result->Count("disconnects"), 1u);
}

TEST_F(BaselineTest, PeerThatIsNotAnsweredReportsTheLoss) {
  auto peer = StartPeer(5000, false);
  ASSERT_NE(peer, nullptr);
  ASSERT_TRUE(peer->Settle().ok());
  ASSERT_TRUE(server_->Signal(SIGSTOP).ok());
  // A silence of this length means that requests are open.
  ASSERT_TRUE(WaitUntil("silence", [&] {
                auto window = peer->Mark("silence");
                return window.ok() && window->max_silence_us > 50'000;
              }).ok());
  auto result = peer->Stop();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->Flag("ok")) << result->text();
  EXPECT_GE(result->Count("lost"), 1u);
}

}  // namespace
}  // namespace baton::harness
