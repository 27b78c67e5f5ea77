// Chapters 2, 6 and 7 of the guide: state of a connection and of a shard, across kills, handoffs
// and a change of its format, and the same program as an object for native workers.
#include "tests/worker/examples/guide/guide_fixture.h"

namespace baton::guide {
namespace {

using testing::HasSubstr;

// Where a worker dies while it deals with messages: the library's points (worker/*.cc).
const std::vector<std::string> kPoints = {"deliver-before-handler:5", "worker-state-staged:6",
                                          "worker-send-staged:7",     "commit-before-publish:8",
                                          "commit-published:9",       "deliver-after-handler:10"};

class CounterTest : public GuideTest {
 protected:
  // The messages of all clients and no other are the state of the one shard.
  void ExpectMessagesOfShard(uint64_t messages) {
    const auto client = Connect(cluster_->port());
    ASSERT_TRUE(client);
    const auto answer = client->Ask("0");
    ASSERT_OK(answer);
    EXPECT_EQ(*answer, absl::StrCat("0, message ", messages + 1, " of shard 0"));
  }
};

TEST_F(CounterTest, shouldCountEachMessageOnceWhereverItsOwnerDies) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::unique_ptr<GuideWorker> safe;
  ASSERT_NO_FATAL_FAILURE(StartWorker("counter", &safe));
  ASSERT_NO_FATAL_FAILURE(StartCounting(3));
  ASSERT_NO_FATAL_FAILURE(KillAt("counter-test-hooks", kPoints, *safe));
  ASSERT_NO_FATAL_FAILURE(ExpectMessagesOfShard(StopCounting()));
}

TEST_F(CounterTest, shouldCountEachMessageOnceOverHandoffsAndKills) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::unique_ptr<GuideWorker> owner;
  ASSERT_NO_FATAL_FAILURE(StartWorker("counter", &owner));
  ASSERT_NO_FATAL_FAILURE(StartCounting(3));
  for (int i = 0; i < 10; ++i) {
    SCOPED_TRACE(i);
    std::unique_ptr<GuideWorker> heir;
    ASSERT_NO_FATAL_FAILURE(StartWorker("counter", &heir));
    if (i % 2 == 0) ASSERT_OK(cluster_->Handoff(heir->id));
    ASSERT_OK(owner->process->Kill());
    ASSERT_OK(cluster_->WaitUntilOwner(heir->id));
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
    owner = std::move(heir);
  }
  ASSERT_NO_FATAL_FAILURE(ExpectMessagesOfShard(StopCounting()));
}

TEST_F(CounterTest, shouldDisconnectAPeerThatSendsNoNumber) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::unique_ptr<GuideWorker> worker;
  ASSERT_NO_FATAL_FAILURE(StartWorker("counter", &worker));
  ASSERT_NO_FATAL_FAILURE(StartCounting(1));
  const auto client = Connect(cluster_->port());
  ASSERT_TRUE(client);
  EXPECT_FALSE(client->Ask("x").ok());
  EXPECT_OK(client->WaitUntilDisconnected());
  ASSERT_NO_FATAL_FAILURE(ExpectMessagesOfShard(StopCounting()));  // the others, and not that one
}

TEST_F(CounterTest, shouldChangeTheFormatOfItsStateInTwoUpgrades) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::unique_ptr<GuideWorker> first;
  ASSERT_NO_FATAL_FAILURE(StartWorker("counter", &first));
  ASSERT_NO_FATAL_FAILURE(StartCounting(2));
  v1::Upgrade upgrade;
  ASSERT_NO_FATAL_FAILURE(Upgrade("formats", {"2"}, v1::UPGRADE_PHASE_FAILED, 100, &upgrade));
  EXPECT_THAT(upgrade.detail(), HasSubstr("writes state version 2, the old one reads 1 to 1"));
  ASSERT_NO_FATAL_FAILURE(Upgrade("formats", {"1"}, v1::UPGRADE_PHASE_COMPLETED));
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  ASSERT_NO_FATAL_FAILURE(Upgrade("formats", {"2"}, v1::UPGRADE_PHASE_COMPLETED));
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  // And back: what the program with the new format has written is read by the one before.
  ASSERT_NO_FATAL_FAILURE(Upgrade("formats", {"1"}, v1::UPGRADE_PHASE_COMPLETED));
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  StopCounting();
}

TEST_F(CounterTest, shouldCountEachMessageOnceAsAnObjectOfNativeWorkers) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({"--native", PathOf("counter.so"), "--native-argument=unused",
                    "--native-argument=127.0.0.1:0"}));
  ASSERT_OK(cluster_->WaitUntilListening());
  ASSERT_NO_FATAL_FAILURE(StartCounting(2));
  for (int i = 0; i < 3; ++i) {
    const auto service = cluster_->GetService();
    ASSERT_OK(service);
    const uint64_t owner = service->shards(0).owner_worker_id();
    ASSERT_OK(cluster_->operators().KillWorker(kService, owner));
    ASSERT_OK(cluster_->WaitUntilGone(owner));
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ASSERT_NO_FATAL_FAILURE(ExpectMessagesOfShard(StopCounting()));
}

// The clients are the check: they have to find a service that does not count.
TEST_F(CounterTest, shouldBeCaughtWhenItDoesNotCount) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::unique_ptr<GuideWorker> owner;
  ASSERT_NO_FATAL_FAILURE(StartWorker("loop", &owner));
  Counting client(cluster_->port());
  EXPECT_OK(harness::WaitUntil(
      "the client to find it", [&] { return client.failed(); }, kTimeout));
  EXPECT_EQ(client.Stop().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace baton::guide
