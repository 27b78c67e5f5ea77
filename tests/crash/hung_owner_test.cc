// An owner that hangs is killed and followed by its heir, whatever it hangs in; one that merely has
// nothing to do is not.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/crash/crash_fixture.h"
#include "tests/harness/wait_until.h"

namespace baton::crash {
namespace {

constexpr std::chrono::seconds kDeathTimeout{30};
constexpr double kHangTimeoutSeconds = 2;

class HungTest : public CrashTest {
 protected:
  using Worker = std::unique_ptr<harness::LedgerWorker>;

  void SetUp() override {
    harness::ClusterOptions options;
    options.batond_arguments = {"--heartbeat-ms", "50", "--hang-timeout-ms", "2000"};
    ASSERT_NO_FATAL_FAILURE(StartCluster(options));
  }

  static harness::LedgerOptions Hanging(std::vector<std::string> arguments) {
    harness::LedgerOptions options;
    options.program = "hanging-ledger";
    options.arguments = std::move(arguments);
    return options;
  }

  static void ExpectKilled(harness::ChildProcess& process) {
    const auto ended = process.WaitEnd(kDeathTimeout);
    ASSERT_OK(ended);
    EXPECT_TRUE(WIFSIGNALED(*ended) && WTERMSIG(*ended) == SIGKILL) << *ended;
  }

  // What the keeper has said of the end of `worker`; empty: nothing.
  std::string WhyKilled(uint64_t worker) {
    const auto events = cluster_->keeper().NewEvents();
    if (!events.ok()) return harness::ToText(events);
    for (const v1::Event& event : *events) {
      if (event.kind() == "worker_killed") reasons_[event.worker_id()] += event.message();
    }
    return reasons_[worker];
  }

  bool OwnsAll(uint64_t worker) {
    const auto description = cluster_->keeper().Describe();
    return description.ok() &&
           std::all_of(description->shards().begin(), description->shards().end(),
                       [&](const auto& shard) { return shard.owner_worker_id() == worker; });
  }

  // Asks the keeper itself: control may be dead.
  void AwaitOwner(uint64_t worker) {
    ASSERT_OK(harness::WaitUntil(absl::StrCat("worker ", worker, " to own every shard"),
                                 [&] { return OwnsAll(worker); }));
  }

  void AwaitHeir(uint64_t worker) {
    ASSERT_OK(harness::WaitUntil(absl::StrCat("heir ", worker), [&] {
      const auto description = cluster_->keeper().Describe();
      return description.ok() && description->shards(0).heir_worker_id() == worker;
    }));
  }

  std::map<uint64_t, std::string> reasons_;
};

// ---------------------------------------------------------------- what an owner hangs in

class HungOwnerTest : public HungTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(HungTest::SetUp());
    ASSERT_NO_FATAL_FAILURE(StartWorker(Hanging({}), &owner_));
    ASSERT_NO_FATAL_FAILURE(StartWorker(2, &standby_));
    ASSERT_NO_FATAL_FAILURE(StartPeer(2000));
    ASSERT_TRUE(cluster_->OwnsAllShards(owner_->id));
  }

  void ExpectFollowed() {
    ASSERT_NO_FATAL_FAILURE(ExpectKilled(*owner_->process));
    ASSERT_NO_FATAL_FAILURE(AwaitOwner(standby_->id));
    EXPECT_TRUE(absl::StrContains(WhyKilled(owner_->id), "no sign of life for 2000 ms"))
        << WhyKilled(owner_->id);
    ASSERT_OK(peer_->Settle());
    ExpectNothingLost();
  }

  Worker owner_, standby_;
};

TEST_F(HungOwnerTest, shouldBeKilledAndFollowedWhenItIsStopped) {
  ASSERT_OK(owner_->process->Signal(SIGSTOP));
  ExpectFollowed();
}

TEST_F(HungOwnerTest, shouldBeKilledAndFollowedWhenItsHandlerNeverReturns) {
  ASSERT_OK(owner_->process->WriteLine("spin 0"));
  ExpectFollowed();
}

TEST_F(HungOwnerTest, shouldBeKilledAndFollowedWhenItsHandlerWaitsForever) {
  ASSERT_OK(owner_->process->WriteLine("block 0"));
  ExpectFollowed();
}

TEST_F(HungOwnerTest, shouldBeKilledAndFollowedWhileControlIsDead) {
  const auto status = cluster_->operators().GetStatus();
  ASSERT_OK(status);
  ASSERT_EQ(kill(status->control_pid(), SIGSTOP), 0);
  ASSERT_OK(owner_->process->WriteLine("spin 0"));
  ASSERT_NO_FATAL_FAILURE(ExpectKilled(*owner_->process));
  ASSERT_NO_FATAL_FAILURE(AwaitOwner(standby_->id));
  ASSERT_EQ(kill(status->control_pid(), SIGKILL), 0);
  ExpectFollowed();
  ASSERT_OK(cluster_->WaitUntilOwner(standby_->id));  // the next control sees it as it is
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

// ---------------------------------------------------------------- standbys that hang

using HungStandbyTest = HungOwnerTest;

TEST_F(HungStandbyTest, shouldNotFollow) {
  ASSERT_OK(standby_->process->Signal(SIGSTOP));
  ASSERT_NO_FATAL_FAILURE(AwaitHeir(0));
  EXPECT_FALSE(cluster_->Handoff(standby_->id).ok());
  Worker other;
  ASSERT_NO_FATAL_FAILURE(StartWorker(2, &other));
  ASSERT_OK(owner_->process->Signal(SIGKILL));
  ASSERT_NO_FATAL_FAILURE(AwaitOwner(other->id));
  ASSERT_OK(peer_->Settle());
  ExpectNothingLost();
}

TEST_F(HungStandbyTest, shouldServeAgainWhenItWasOnlyStoppedForAWhile) {
  ASSERT_OK(standby_->process->Signal(SIGSTOP));
  ASSERT_NO_FATAL_FAILURE(AwaitHeir(0));
  ASSERT_OK(standby_->process->Signal(SIGCONT));
  ASSERT_NO_FATAL_FAILURE(AwaitHeir(standby_->id));
  ASSERT_OK(cluster_->Handoff(standby_->id));
  ASSERT_OK(peer_->Settle());
  ExpectNothingLost();
}

// The owner dies while its heir's hang has not been noticed yet: the shards are the heir's until it
// has been, and then the next one's.
TEST_F(HungStandbyTest, shouldBeFollowedByTheNextWhenItHangsAsItsOwnerDies) {
  ASSERT_OK(standby_->process->Signal(SIGSTOP));
  ASSERT_OK(owner_->process->Signal(SIGKILL));
  ASSERT_NO_FATAL_FAILURE(ExpectKilled(*standby_->process));
  Worker other;
  ASSERT_NO_FATAL_FAILURE(StartWorker(1, &other));
  ASSERT_NO_FATAL_FAILURE(AwaitOwner(other->id));
  ASSERT_OK(peer_->Settle());
  ExpectNothingLost();
}

// ---------------------------------------------------------------- a thread beside healthy ones

TEST_F(HungTest, shouldLoseNothingOfTwoThreadsWhenOneOfThemBlocks) {
  Worker first;
  ASSERT_NO_FATAL_FAILURE(StartWorker(Hanging({"--threads", "2"}), &first));
  const auto line = first->process->ReadLineWith("ledger ready", kDeathTimeout);
  ASSERT_OK(line);
  unsigned long long second = 0;
  int second_thread = -1;
  ASSERT_EQ(std::sscanf(line->c_str(), "ledger ready version=%*d worker=%llu port=%*d thread=%d",
                        &second, &second_thread),
            2);
  ASSERT_OK(cluster_->WaitUntilReady(second));
  v1::HandoffRequest half;
  half.set_service("ledger");
  half.set_to_worker_id(second);
  half.add_shards(0);
  half.add_shards(1);
  ASSERT_OK(cluster_->operators().Handoff(half));
  half.set_to_worker_id(first->id);
  half.set_shards(0, 2);
  half.set_shards(1, 3);
  ASSERT_OK(cluster_->operators().Handoff(half));
  Worker standby;
  ASSERT_NO_FATAL_FAILURE(StartWorker(2, &standby));
  ASSERT_NO_FATAL_FAILURE(StartPeer(2000));
  ASSERT_OK(peer_->Settle());

  ASSERT_OK(first->process->WriteLine(absl::StrCat("block ", second_thread)));
  ASSERT_NO_FATAL_FAILURE(ExpectKilled(*first->process));
  ASSERT_NO_FATAL_FAILURE(AwaitOwner(standby->id));
  // Events tell why both workers were killed. The first had shown signs of life up to then.
  EXPECT_TRUE(absl::StrContains(WhyKilled(second), "no sign of life")) << WhyKilled(second);
  EXPECT_TRUE(absl::StrContains(WhyKilled(first->id),
                                absl::StrCat("worker ", second, ", of the same process")))
      << WhyKilled(first->id);
  ASSERT_OK(peer_->Settle());
  ExpectNothingLost();
}

// ---------------------------------------------------------------- before it serves

TEST_F(HungTest, shouldKillASuccessorThatHangsWhileItAdopts) {
  Worker owner, successor;
  ASSERT_NO_FATAL_FAILURE(StartWorker(1, &owner));
  ASSERT_NO_FATAL_FAILURE(StartWorker(Hanging({"--hang-in", "adopt"}), &successor));
  ASSERT_NO_FATAL_FAILURE(StartPeer(2000));
  EXPECT_FALSE(cluster_->Handoff(successor->id).ok());
  ASSERT_NO_FATAL_FAILURE(ExpectKilled(*successor->process));
  ASSERT_NO_FATAL_FAILURE(AwaitOwner(owner->id));
  EXPECT_TRUE(absl::StrContains(WhyKilled(successor->id), "no sign of life"));
  ASSERT_OK(peer_->Settle());
  ExpectNothingLost();
}

// It warms up for longer than a worker may be silent, and hangs before its first turn.
TEST_F(HungTest, shouldKillAnOwnerThatHasNeverShownASignOfLife) {
  const auto spawned = cluster_->SpawnLedger(Hanging({"--await-command", "--hang-in", "start"}));
  ASSERT_OK(spawned);
  harness::ChildProcess& process = **spawned;
  ASSERT_OK(process.ReadLineWith("ledger attached", kDeathTimeout));
  ASSERT_OK(harness::WaitUntil("a silence of twice the time-out", [&] {
    const auto description = cluster_->keeper().Describe();
    return description.ok() && description->workers_size() == 1 &&
           description->workers(0).seconds_since_heartbeat() > 2 * kHangTimeoutSeconds;
  }));
  EXPECT_FALSE(process.HasEnded()) << "it owned nothing, and was killed";
  ASSERT_OK(process.WriteLine("serve 0"));
  ExpectKilled(process);
}

}  // namespace
}  // namespace baton::crash
