// A whole Baton keeps a standby of its service, whatever becomes of its workers, and peers do not
// notice.
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "tests/harness/baton_command.h"
#include "tests/harness/child_process.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/wait_until.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

// One owner of everything, and one who stands by.
struct Pair {
  v1::Worker owner, standby;
};

class StandbysTest : public harness::ClusterFixture {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(cluster_, harness::Cluster::Start(harness::ClusterOptions()));
  }

  void SetPolicy(const std::string& policy) {
    const harness::CommandResult result = harness::SetPolicy(*cluster_, policy);
    ASSERT_EQ(result.status, 0) << result.err;
  }
  std::string Events(const std::string& kind) {
    return harness::RunBaton(*cluster_, {"events", "ledger", "--kind", kind}).out;
  }
  bool IsWarned() {
    const auto service = cluster_->GetService();
    return !service.ok() || service->service().accounts().warnings_size() != 0;
  }

  bool Look(Pair* pair) {
    const auto service = cluster_->GetService();
    if (!service.ok() || service->workers_size() != 2) return false;
    for (const v1::Worker& worker : service->workers()) {
      if (worker.state() != v1::WORKER_STATE_READY) return false;
      (worker.shards().empty() ? pair->standby : pair->owner) = worker;
    }
    return pair->owner.shards_size() == static_cast<int>(service->service().shard_count()) &&
           pair->standby.id() != 0 && pair->standby.id() != pair->owner.id();
  }
  // Waits until there are an owner and a standby, and neither of them is `gone`.
  void AwaitPair(uint64_t gone, Pair* pair) {
    ASSERT_OK(harness::WaitUntil(
        "an owner and a standby",
        [&] {
          *pair = {};
          return Look(pair) && pair->owner.id() != gone && pair->standby.id() != gone;
        },
        std::chrono::seconds(40)));
  }
  // Starts an owner, which gets a standby.
  void StartPair(Pair* pair) {
    ASSERT_NO_FATAL_FAILURE(SetPolicy("hot_standbys: 1"));
    ASSERT_OK_AND_ASSIGN(first_, cluster_->StartLedger(1));
    ASSERT_NO_FATAL_FAILURE(AwaitPair(0, pair));
  }

  std::unique_ptr<harness::LedgerWorker> first_;
};

TEST_F(StandbysTest, shouldBeThereAfterEachDeathAndUpgradeUntilNoneIsWanted) {
  ASSERT_NO_FATAL_FAILURE(SetPolicy("hot_standbys: 1"));
  EXPECT_TRUE(IsWarned());
  const auto first = cluster_->StartLedger(1);
  ASSERT_OK(first);
  harness::PeerOptions options = harness::SteadyLoad();
  const auto peer = cluster_->StartPeer(options);
  ASSERT_OK(peer);
  Pair now;
  ASSERT_NO_FATAL_FAILURE(AwaitPair(0, &now));
  EXPECT_EQ(now.owner.id(), (*first)->id);
  EXPECT_FALSE(IsWarned());

  // Each owner but the first was a standby, and started by the keeper.
  for (int i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    const Pair before = now;
    ASSERT_OK(cluster_->operators().KillWorker("ledger", before.owner.id()));
    ASSERT_NO_FATAL_FAILURE(AwaitPair(before.owner.id(), &now));
    EXPECT_EQ(now.owner.id(), before.standby.id());
    EXPECT_EQ(now.standby.version(), "v1");
    ASSERT_OK((*peer)->Settle());
  }
  EXPECT_EQ(Events("standby_failed").find("was killed"), std::string::npos);

  const Pair before = now;
  ASSERT_EQ(kill(before.standby.pid(), SIGKILL), 0);
  ASSERT_NO_FATAL_FAILURE(AwaitPair(before.standby.id(), &now));
  EXPECT_EQ(now.owner.id(), before.owner.id());
  EXPECT_THAT(Events("standby_failed"), HasSubstr("was killed by signal 9"));

  harness::UpgradeOptions upgrade;
  upgrade.program = "ledger-v2";
  upgrade.plan.set_watch_window_ms(150);
  const auto started = cluster_->StartUpgrade(upgrade);
  ASSERT_OK(started);
  const auto ended = cluster_->WaitUntilUpgradeEnds(started->id());
  ASSERT_OK(ended);
  EXPECT_EQ(ended->phase(), v1::UPGRADE_PHASE_COMPLETED) << ended->detail();
  ASSERT_NO_FATAL_FAILURE(AwaitPair(now.owner.id(), &now));
  EXPECT_EQ(now.owner.version(), "v2");
  EXPECT_EQ(now.standby.version(), "v2");
  // The new program's standby takes over, and another of its is started.
  const uint64_t heir = now.standby.id();
  ASSERT_OK(cluster_->operators().KillWorker("ledger", now.owner.id()));
  ASSERT_NO_FATAL_FAILURE(AwaitPair(now.owner.id(), &now));
  EXPECT_EQ(now.owner.id(), heir);
  EXPECT_EQ(now.standby.version(), "v2");

  ASSERT_NO_FATAL_FAILURE(SetPolicy(""));
  ASSERT_OK(cluster_->WaitUntilGone(now.standby.id()));
  EXPECT_TRUE(cluster_->OwnsAllShards(now.owner.id()));
  harness::ExpectNothingLost(**peer);
}

// The keeper that was told dies before it has ended the standby.
TEST_F(StandbysTest, shouldEndUnderTheNextKeeperWhenNoneIsWantedAnyMore) {
  Pair now;
  ASSERT_NO_FATAL_FAILURE(StartPair(&now));
  const auto service = cluster_->GetService();
  ASSERT_OK(service);
  ASSERT_NO_FATAL_FAILURE(SetPolicy(""));
  ASSERT_EQ(kill(service->service().keeper_pid(), SIGKILL), 0);
  ASSERT_OK(cluster_->WaitUntilGone(now.standby.id()));
  EXPECT_TRUE(cluster_->OwnsAllShards(now.owner.id()));
}

// A broker that is stopped could give the standby a shard. So the standby is asked to end when the
// broker is dead, and another has followed.
TEST_F(StandbysTest, shouldEndWhenABrokerIsStoppedAsNoneIsWantedAnyMore) {
  Pair now;
  ASSERT_NO_FATAL_FAILURE(StartPair(&now));
  const auto service = cluster_->GetService();
  ASSERT_OK(service);
  ASSERT_EQ(kill(service->service().broker_pid(), SIGSTOP), 0);
  ASSERT_NO_FATAL_FAILURE(SetPolicy(""));
  ASSERT_OK(cluster_->WaitUntilGone(now.standby.id()));
  EXPECT_TRUE(cluster_->OwnsAllShards(now.owner.id()));
}

// A standby ends as every worker does whose driver is gone. The next keeper starts none before a
// worker serves again.
TEST_F(StandbysTest, shouldEndWithTheDriverAndComeBackWithTheNextWorker) {
  Pair now;
  ASSERT_NO_FATAL_FAILURE(StartPair(&now));
  const auto before = cluster_->operators().GetStatus();
  ASSERT_OK(before);
  const int driver = before->services(0).driver_pid();
  const FileDescriptor standby(static_cast<int>(syscall(SYS_pidfd_open, now.standby.pid(), 0)));
  ASSERT_TRUE(standby);
  harness::KillUnfollowed(driver);
  ASSERT_OK(first_->process->WaitEnd(std::chrono::seconds(20)));
  ASSERT_OK(harness::WaitUntil("the standby's end", [&] {
    pollfd entry = {standby.get(), POLLIN, 0};
    return poll(&entry, 1, 0) > 0;
  }));
  ASSERT_OK(harness::WaitUntil("another driver", [&] {
    const auto status = cluster_->operators().GetStatus();
    return status.ok() && status->services(0).reachable() &&
           status->services(0).driver_pid() != driver;
  }));
  ASSERT_NO_FATAL_FAILURE(SetPolicy("hot_standbys: 1"));
  const auto second = cluster_->StartLedger(2);
  ASSERT_OK(second);
  ASSERT_NO_FATAL_FAILURE(AwaitPair(0, &now));
  EXPECT_EQ(now.standby.version(), "v2");
}

}  // namespace
}  // namespace baton
