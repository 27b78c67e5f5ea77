// A changed configuration is put in force under load.
#include <signal.h>

#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "tests/harness/cluster.h"
#include "tests/harness/steady_load.h"
#include "tests/harness/wait_until.h"

namespace baton {
namespace {

using harness::Cluster;
using harness::ClusterOptions;
using harness::PeerOptions;

class ReloadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ClusterOptions options;
    options.by_file = true;
    auto cluster = Cluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    auto worker = cluster_->StartLedger(1);
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
  }

  // Has batond take the configuration with these fields of the service.
  void Reload(const std::string& service) {
    ASSERT_TRUE(cluster_->WriteConfig(service).ok());
    ASSERT_TRUE(cluster_->batond().Signal(SIGHUP).ok());
  }
  // Waits until the service has `count` listeners. Returns the port of the last; 0: in vain.
  uint16_t AwaitListeners(int count) {
    uint16_t port = 0;
    const absl::Status came = harness::WaitUntil("listeners", [&] {
      const auto service = cluster_->GetService();
      if (!service.ok() || service->service().listeners_size() != count) return false;
      port = static_cast<uint16_t>(service->service().listeners(count - 1).port());
      return true;
    });
    EXPECT_TRUE(came.ok()) << came;
    return port;
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<harness::LedgerWorker> worker_;
};

TEST_F(ReloadTest, shouldChangeListenersWhileOldAndNewPeersAreServed) {
  PeerOptions options = harness::SteadyLoad();
  auto peer = cluster_->StartPeer(options);
  ASSERT_TRUE(peer.ok()) << peer.status();
  const auto before = cluster_->operators().GetStatus();
  ASSERT_TRUE(before.ok()) << before.status();

  Reload("listeners { host: \"0.0.0.0\" }");
  options.port = AwaitListeners(2);
  ASSERT_NE(options.port, 0);
  auto newcomer = cluster_->StartPeer(options);
  ASSERT_TRUE(newcomer.ok()) << newcomer.status();
  ASSERT_TRUE((*newcomer)->Settle().ok());

  Reload("");
  AwaitListeners(1);
  ASSERT_TRUE((*newcomer)->Settle().ok());
  ASSERT_TRUE((*peer)->Settle().ok());
  const auto after = cluster_->operators().GetStatus();
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->services(0).keeper_pid(), before->services(0).keeper_pid());
  for (auto* const one : {&*peer, &*newcomer}) {
    const auto result = (*one)->Stop();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->Flag("ok")) << result->text();
  }
}

// batond is killed before it has read the configuration again.
TEST_F(ReloadTest, shouldBeDoneByTheNextBatondToo) {
  auto peer = cluster_->StartPeer(PeerOptions());
  ASSERT_TRUE(peer.ok()) << peer.status();
  ASSERT_TRUE(cluster_->KillBatond().ok());
  ASSERT_TRUE(cluster_->WriteConfig("listeners { host: \"0.0.0.0\" }").ok());
  ASSERT_TRUE(cluster_->StartBatondAgain().ok());
  EXPECT_NE(AwaitListeners(2), 0);
  ASSERT_TRUE((*peer)->Settle().ok());
  // A keeper that is started has what the running one took.
  Reload("");
  AwaitListeners(1);
  const auto result = (*peer)->Stop();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->Flag("ok")) << result->text();
}

}  // namespace
}  // namespace baton
