// The ledger killed at every named point of the worker library and of its own, under traffic, with
// a hot standby: no peer sees anything but a pause.
#include <sys/wait.h>

#include <cctype>
#include <chrono>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/harness/cluster.h"

namespace baton::harness {
namespace {

constexpr std::chrono::seconds kLong{30};

class LedgerCrashTest : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr uint32_t kConnections = 8;

  void SetUp() override {
    ClusterOptions options;
    options.shards = 2;
    options.max_connections = kConnections;
    auto cluster = Cluster::Start(std::move(options));
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }

  void TearDown() override {
    if (cluster_ != nullptr && HasFailure()) cluster_->DumpLogs();
  }

  std::unique_ptr<LedgerWorker> Start(int version, const std::string& crash_at = {}) {
    LedgerOptions options;
    options.version = version;
    options.crash_at = crash_at;
    auto worker = cluster_->StartLedger(options);
    EXPECT_TRUE(worker.ok()) << worker.status();
    return worker.ok() ? *std::move(worker) : nullptr;
  }

  std::unique_ptr<PeerProcess> StartPeer(uint64_t rate) {
    PeerOptions options;
    options.connections = kConnections;
    options.rate = rate;
    auto peer = cluster_->StartPeer(options);
    EXPECT_TRUE(peer.ok()) << peer.status();
    return peer.ok() ? *std::move(peer) : nullptr;
  }

  void ExpectClean(PeerProcess& peer) {
    auto result = peer.Stop();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->Flag("ok")) << result->text();
    EXPECT_GT(result->Count("messages"), 0u);
  }

  std::unique_ptr<Cluster> cluster_;
};

// The owner dies at the point; the standby goes on.
TEST_P(LedgerCrashTest, OwnerDiesThere) {
  const std::string point = GetParam();
  auto owner = Start(1, point);
  ASSERT_NE(owner, nullptr);
  ASSERT_TRUE(cluster_->WaitUntilOwner(owner->id).ok());
  auto standby = Start(2);
  ASSERT_NE(standby, nullptr);
  auto peer = StartPeer(4000);
  ASSERT_NE(peer, nullptr);
  auto ended = owner->process->WaitEnd(kLong);
  ASSERT_TRUE(ended.ok()) << point << " was never passed: " << ended.status();
  EXPECT_TRUE(WIFSIGNALED(*ended));
  ASSERT_TRUE(peer->Settle().ok());
  auto window = peer->Mark("after");
  ASSERT_TRUE(window.ok()) << window.status();
  EXPECT_EQ(window->last_versions[2], kConnections);
  EXPECT_TRUE(cluster_->WaitUntilOwner(standby->id).ok());
  ExpectClean(*peer);
}

INSTANTIATE_TEST_SUITE_P(
    Points, LedgerCrashTest,
    ::testing::Values("ledger-after-accept:3", "ledger-before-apply:100", "ledger-after-apply:100",
                      "ledger-after-stage:100", "ledger-before-state:100", "ledger-after-state:100",
                      "worker-receive-staged:500", "worker-send-staged:100",
                      "worker-state-staged:100", "commit-begin:50", "commit-entry-written:50",
                      "commit-before-publish:50", "commit-published:50", "commit-driver-woken:50",
                      "deliver-before-handler:100", "deliver-after-handler:100"),
    [](const auto& point) {
      std::string name = point.param;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
      return name;
    });

// The heir dies while it takes over, and the next worker has to.
TEST_F(LedgerCrashTest, HeirDiesWhileItAdopts) {
  for (const char* point : {"adopt-begin", "adopt-before-commit", "adopt-committed:2"}) {
    SCOPED_TRACE(point);
    auto owner = Start(1);
    ASSERT_NE(owner, nullptr);
    ASSERT_TRUE(cluster_->WaitUntilOwner(owner->id).ok());
    auto peer = StartPeer(4000);
    ASSERT_NE(peer, nullptr);
    auto heir = Start(2, point);
    ASSERT_NE(heir, nullptr);
    ASSERT_TRUE(cluster_->WaitUntilReady(heir->id).ok());
    ASSERT_TRUE(owner->process->Kill().ok());
    ASSERT_TRUE(heir->process->WaitEnd(kLong).ok()) << "the point was never passed";
    auto last = Start(1);
    ASSERT_NE(last, nullptr);
    ASSERT_TRUE(cluster_->WaitUntilOwner(last->id).ok());
    ASSERT_TRUE(peer->Settle().ok());
    ExpectClean(*peer);
    ASSERT_TRUE(last->process->Terminate(kLong).ok());
    ASSERT_TRUE(cluster_->WaitUntilGone(last->id).ok());
  }
}

// The owner dies in the middle of a planned handoff.
TEST_F(LedgerCrashTest, OwnerDiesWhileItReleases) {
  for (const char* point : {"release-begin", "release-published"}) {
    SCOPED_TRACE(point);
    auto owner = Start(1, point);
    ASSERT_NE(owner, nullptr);
    ASSERT_TRUE(cluster_->WaitUntilOwner(owner->id).ok());
    auto standby = Start(2);
    ASSERT_NE(standby, nullptr);
    auto peer = StartPeer(4000);
    ASSERT_NE(peer, nullptr);
    cluster_->Handoff(standby->id).IgnoreError();  // either answer is right
    ASSERT_TRUE(owner->process->WaitEnd(kLong).ok()) << "the point was never passed";
    ASSERT_TRUE(cluster_->WaitUntilOwner(standby->id).ok());
    ASSERT_TRUE(peer->Settle().ok());
    ExpectClean(*peer);
    ASSERT_TRUE(standby->process->Terminate(kLong).ok());
    ASSERT_TRUE(cluster_->WaitUntilGone(standby->id).ok());
  }
}

TEST_F(LedgerCrashTest, PeerThatMayReconnectNeverHasTo) {
  auto owner = Start(1);
  auto standby = Start(2);
  ASSERT_NE(standby, nullptr);
  PeerOptions options;
  options.connections = kConnections;
  options.rate = 4000;
  options.reconnect = true;
  auto peer = cluster_->StartPeer(options);
  ASSERT_TRUE(peer.ok()) << peer.status();
  ASSERT_TRUE((*peer)->Settle().ok());
  ASSERT_TRUE(owner->process->Kill().ok());
  ASSERT_TRUE((*peer)->Settle().ok());
  auto result = (*peer)->Stop();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->Count("disconnects"), 0u);
  EXPECT_TRUE(result->Flag("ok")) << result->text();
}

}  // namespace
}  // namespace baton::harness
