// An owner that hangs is killed and followed by its heir; one that merely has nothing to do is not.
#include <sys/wait.h>

#include <chrono>
#include <string>

#include "tests/crash/crash_fixture.h"
#include "tests/harness/wait_until.h"

namespace baton::crash {
namespace {

constexpr std::chrono::seconds kDeathTimeout{30};

class HungOwnerTest : public CrashTest {
 protected:
  void SetUp() override {
    harness::ClusterOptions options;
    options.batond_arguments = {"--heartbeat-ms", "50", "--hang-timeout-ms", "500"};
    ASSERT_NO_FATAL_FAILURE(StartCluster(options));
    ASSERT_NO_FATAL_FAILURE(StartWorker(1, &owner_));
    ASSERT_NO_FATAL_FAILURE(StartWorker(2, &standby_));
    ASSERT_NO_FATAL_FAILURE(StartPeer(2000));
    ASSERT_TRUE(cluster_->OwnsAllShards(owner_->id));
  }

  void ExpectKilled(harness::LedgerWorker& worker) {
    const auto ended = worker.process->WaitEnd(kDeathTimeout);
    ASSERT_OK(ended);
    EXPECT_TRUE(WIFSIGNALED(*ended) && WTERMSIG(*ended) == SIGKILL) << *ended;
  }

  std::unique_ptr<harness::LedgerWorker> owner_, standby_;
};

TEST_F(HungOwnerTest, shouldBeKilledAndFollowedWhenItIsStopped) {
  ASSERT_OK(owner_->process->Signal(SIGSTOP));
  ASSERT_NO_FATAL_FAILURE(ExpectKilled(*owner_));
  ASSERT_OK(cluster_->WaitUntilOwner(standby_->id));
  ASSERT_OK(peer_->Settle());
  ExpectNothingLost();
}

TEST_F(HungOwnerTest, shouldNotBeFollowedByAStandbyThatHangsToo) {
  ASSERT_OK(standby_->process->Signal(SIGSTOP));
  const auto no_heir = [&] {
    const auto service = cluster_->GetService();
    return service.ok() && service->shards(0).heir_worker_id() == 0;
  };
  ASSERT_OK(harness::WaitUntil("the stopped standby to be nobody's heir", no_heir));
  std::unique_ptr<harness::LedgerWorker> other;
  ASSERT_NO_FATAL_FAILURE(StartWorker(2, &other));
  ASSERT_OK(owner_->process->Signal(SIGKILL));
  ASSERT_OK(cluster_->WaitUntilOwner(other->id));
  ASSERT_OK(peer_->Settle());
  ExpectNothingLost();
}

TEST_F(HungOwnerTest, shouldBeServedAgainByAStandbyThatWasOnlyStoppedForAWhile) {
  ASSERT_OK(standby_->process->Signal(SIGSTOP));
  const auto heir_is = [&](uint64_t id) {
    const auto service = cluster_->GetService();
    return service.ok() && service->shards(0).heir_worker_id() == id;
  };
  ASSERT_OK(harness::WaitUntil("no heir", [&] { return heir_is(0); }));
  ASSERT_OK(standby_->process->Signal(SIGCONT));
  ASSERT_OK(harness::WaitUntil("the heir again", [&] { return heir_is(standby_->id); }));
  ASSERT_OK(cluster_->Handoff(standby_->id));
  ASSERT_OK(peer_->Settle());
  ExpectNothingLost();
}

TEST_F(HungOwnerTest, shouldBeLeftAloneWhileItHasNothingToDo) {
  // Traffic ends; the owner sleeps for many times the time-out and is still the owner.
  ExpectNothingLost();
  const auto before = cluster_->GetService();
  ASSERT_OK(before);
  const uint64_t beats = before->workers(0).heartbeats();
  const auto many_beats_later = [&] {
    const auto now = cluster_->GetService();
    return now.ok() && now->workers(0).heartbeats() > beats + 30;
  };
  ASSERT_OK(harness::WaitUntil("thirty heartbeats", many_beats_later));
  EXPECT_TRUE(cluster_->OwnsAllShards(owner_->id));
  EXPECT_FALSE(owner_->process->HasEnded());
}

}  // namespace
}  // namespace baton::crash
