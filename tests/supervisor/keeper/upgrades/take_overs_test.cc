// Workers that take shards over by themselves: real processes, with a keeper and without a control.
#include "supervisor/keeper/upgrades/take_overs.h"

#include <chrono>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/harness/child_process.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/keeper/keeper_thread.h"
#include "tests/supervisor/keeper/upgrades/upgrades_fixture.h"

namespace baton::keeper::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::chrono::seconds kTimeout(20);
constexpr int kAnswerMs = 20'000;

void Allow(v1::ServiceConfig* service) {
  service->mutable_policy()->set_workers_may_take_over(true);
}
void AllowAndWatchForLong(v1::ServiceConfig* service) {
  Allow(service);
  service->set_watch_window_ms(600'000);
}

class TakeOversTest : public UpgradesTest {
 protected:
  // Starts a worker that takes over. Returns what the keeper answered.
  std::string TakeOver(const Options& options, harness::ChildOptions child = {}) {
    child.program = program_;
    child.arguments = Arguments(options);
    child.arguments.emplace_back("--take-over");
    auto started = harness::ChildProcess::Start(child);
    if (!started.ok()) return started.status().ToString();
    takers_.push_back(*std::move(started));
    return takers_.back()->ReadLineWith("take over: ", kTimeout).value_or("nothing");
  }

  std::vector<std::string> EventsOfKind(const std::string& kind) {
    std::vector<std::string> messages;
    for (const v1::Event& event : keeper_.Events()) {
      if (event.kind() == kind) messages.push_back(event.message());
    }
    return messages;
  }

  void ExpectEndedInOrder(harness::ChildProcess& process) {
    EXPECT_EQ(process.WaitEnd(kTimeout).value_or(-1), 0);
  }

  std::vector<std::unique_ptr<harness::ChildProcess>> takers_;
};

TEST_F(TakeOversTest, shouldBeAnUpgradeAndLeaveAWayBack) {
  StartService(Allow);
  ASSERT_EQ(TakeOver({"--program-version", "2"}), "take over: OK");
  const v1::Upgrade upgrade = AwaitPhase(v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(OwnersVersion(), "2");
  EXPECT_EQ(AttachedWorkers(), 1);
  EXPECT_EQ(upgrade.old_version(), "1");
  EXPECT_EQ(upgrade.new_version(), "2");
  EXPECT_EQ(upgrade.old_worker_ids_size(), 1);
  ASSERT_EQ(upgrade.new_worker_ids_size(), 1);
  EXPECT_EQ(upgrade.taken_over_by(),
            "worker " + std::to_string(upgrade.new_worker_ids(0)) + " (upgrade_worker, 2)");
  EXPECT_THAT(upgrade.exec(), HasSubstr("upgrade_worker"));
  EXPECT_THAT(EventsOfKind("upgrade_started"),
              ElementsAre(AllOf(HasSubstr("took over by itself"), HasSubstr("of user "))));
  ExpectEndedInOrder(*worker_);
  // The program before is known, as after an operator's upgrade.
  ASSERT_TRUE(Rollback().ok());
  EXPECT_TRUE(AwaitPhase(v1::UPGRADE_PHASE_COMPLETED).rollback());
  EXPECT_EQ(OwnersVersion(), "1");
  ExpectEndedInOrder(*takers_[0]);
}

TEST_F(TakeOversTest, shouldGiveTheShardsBackWhenTheWorkerIsBad) {
  StartService(AllowAndWatchForLong);
  uint64_t last = 0;
  for (const char* const fault : {"crash", "hang", "turn-unhealthy", "refuse"}) {
    SCOPED_TRACE(fault);
    ASSERT_EQ(TakeOver({"--program-version", fault, "--fault", fault}), "take over: OK");
    const v1::Upgrade upgrade = AwaitPhase(v1::UPGRADE_PHASE_ROLLED_BACK);
    EXPECT_GT(upgrade.id(), std::exchange(last, upgrade.id()));
    EXPECT_EQ(OwnersVersion(), "1");
    EXPECT_EQ(AttachedWorkers(), 1);
  }
  EXPECT_FALSE(worker_->HasEnded());
}

TEST_F(TakeOversTest, shouldNotTakeShardsBeforeItIsHealthy) {
  StartService([](v1::ServiceConfig* service) {
    Allow(service);
    service->set_ready_timeout_ms(300);
  });
  const uint64_t before = keeper_.Describe().shards(0).epoch();
  ASSERT_EQ(TakeOver({"--fault", "unhealthy"}), "take over: OK");
  EXPECT_THAT(AwaitPhase(v1::UPGRADE_PHASE_FAILED).detail(), HasSubstr("unhealthy"));
  EXPECT_EQ(keeper_.Describe().shards(0).epoch(), before);
  ExpectEndedInOrder(*takers_[0]);
}

// Nobody knows yet whether the new worker can serve: a standby of the program that serves goes
// first.
TEST_F(TakeOversTest, shouldNotMakeTheNewWorkerAnHeirBeforeAnOldOne) {
  StartService(AllowAndWatchForLong);
  const std::unique_ptr<harness::ChildProcess> owner = std::move(worker_);
  StartWorker({"--program-version", "1"});
  ASSERT_EQ(TakeOver({"--program-version", "2", "--fault", "unhealthy"}), "take over: OK");
  const v1::Upgrade upgrade = AwaitPhase(v1::UPGRADE_PHASE_STARTING);
  ASSERT_EQ(upgrade.old_worker_ids_size(), 2);
  const internal::Description description = keeper_.Describe();
  for (const v1::Shard& shard : description.shards()) {
    EXPECT_THAT(upgrade.old_worker_ids(), Contains(shard.heir_worker_id())) << shard.index();
  }
}

TEST_F(TakeOversTest, shouldNotBeginAgainAtOnceByTheVersionThatWentBack) {
  StartService(AllowAndWatchForLong);
  ASSERT_EQ(TakeOver({"--program-version", "2", "--fault", "turn-unhealthy"}), "take over: OK");
  AwaitPhase(v1::UPGRADE_PHASE_ROLLED_BACK);
  EXPECT_THAT(TakeOver({"--program-version", "2"}),
              AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("start another version")));
  EXPECT_EQ(OwnersVersion(), "1");
  EXPECT_EQ(TakeOver({"--program-version", "3"}), "take over: OK");
  AwaitPhase(v1::UPGRADE_PHASE_WATCHING);
  EXPECT_EQ(OwnersVersion(), "3");
}

// Two units whose programs are both bad would otherwise move the shards by turns, for ever.
TEST_F(TakeOversTest, shouldNotBeginAgainAtOnceAfterAnotherVersionWentBack) {
  StartService(AllowAndWatchForLong);
  for (const char* const version : {"2", "3"}) {
    ASSERT_EQ(TakeOver({"--program-version", version, "--fault", "turn-unhealthy"}),
              "take over: OK");
    AwaitPhase(v1::UPGRADE_PHASE_ROLLED_BACK);
  }
  EXPECT_THAT(TakeOver({"--program-version", "2"}),
              AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("upgrade 1, ")));
  EXPECT_EQ(OwnersVersion(), "1");
}

TEST_F(TakeOversTest, shouldBePausedAndUndoneByOperators) {
  StartService(AllowAndWatchForLong);
  ASSERT_EQ(TakeOver({"--program-version", "2"}), "take over: OK");
  const v1::Upgrade watched = AwaitPhase(v1::UPGRADE_PHASE_WATCHING);
  const internal::Description description = keeper_.Describe();
  for (const v1::Shard& shard : description.shards()) {
    EXPECT_EQ(shard.heir_worker_id(), watched.old_worker_ids(0)) << shard.index();
  }
  ASSERT_TRUE(Hold(true).ok());
  ASSERT_TRUE(Hold(false).ok());
  ASSERT_TRUE(Rollback().ok());
  EXPECT_THAT(AwaitPhase(v1::UPGRADE_PHASE_ROLLED_BACK).detail(), HasSubstr("operator"));
  EXPECT_EQ(OwnersVersion(), "1");
  ExpectEndedInOrder(*takers_[0]);
}

TEST_F(TakeOversTest, shouldBeRefusedUnlessThePolicyAllowsIt) {
  StartService();
  EXPECT_THAT(TakeOver({"--program-version", "2"}),
              AllOf(HasSubstr("PERMISSION_DENIED"), HasSubstr("workers_may_take_over")));
  EXPECT_EQ(OwnersVersion(), "1");
  EXPECT_EQ(Newest().id(), 0u);
  EXPECT_THAT(EventsOfKind("take_over_refused"), ElementsAre(HasSubstr("workers_may_take_over")));
}

TEST_F(TakeOversTest, shouldServeAloneWhateverThePolicyIs) {
  StartKeeper();
  EXPECT_EQ(TakeOver({"--program-version", "1"}), "take over: OK");
  EXPECT_EQ(harness::WaitUntil("it to own the shards", [&] { return OwnersVersion() == "1"; }),
            absl::OkStatus());
  EXPECT_EQ(Newest().id(), 0u);
}

TEST_F(TakeOversTest, shouldBeRefusedDuringAnUpgradeThatIsPaused) {
  StartService([](v1::ServiceConfig* service) {
    Allow(service);
    service->set_stop_timeout_ms(100);
  });
  ASSERT_TRUE(Upgrade(Plan({"--program-version", "2", "--fault", "never-ready"})).ok());
  ASSERT_TRUE(Hold(true).ok());
  EXPECT_THAT(TakeOver({"--program-version", "3"}),
              AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("is under way")));
  ASSERT_TRUE(Rollback().ok());
  AwaitPhase(v1::UPGRADE_PHASE_FAILED);
  EXPECT_EQ(OwnersVersion(), "1");
}

TEST_F(TakeOversTest, shouldBeRefusedWhileTheServiceIsDrained) {
  StartService(Allow);
  internal::ManagementRequest drain;
  drain.mutable_drain_service();
  ASSERT_TRUE(keeper_.Ask(drain).ok());
  EXPECT_THAT(TakeOver({"--program-version", "2"}),
              AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("drained")));
  EXPECT_EQ(OwnersVersion(), "1");
}

TEST_F(TakeOversTest, shouldBeRefusedWhereFormatsDoNotFit) {
  StartKeeper(Allow);
  StartWorker({"--program-version", "1", "--reads-min", "1", "--reads-max", "1", "--writes", "1"});
  EXPECT_THAT(TakeOver({"--reads-min", "2", "--reads-max", "2", "--writes", "2"}),
              AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("reads state versions 2 to 2")));
  EXPECT_THAT(TakeOver({"--reads-min", "1", "--reads-max", "2", "--writes", "2"}),
              AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("writes state version 2")));
  EXPECT_EQ(OwnersVersion(), "1");
}

// Each thread of the process has a worker that asks. The second asks while the keeper reads what
// the processes run.
TEST_F(TakeOversTest, shouldBeginOnceForAllWorkersOfAProcess) {
  StartKeeperWithLauncher([](const std::string& real, const std::string& wait) {
    return "test $# = 0 && exec " + real + "\n" + wait + "\nexec " + real + " $1\n";
  });
  internal::ManagementRequest policy;
  policy.mutable_set_policy()->mutable_policy()->set_workers_may_take_over(true);
  ASSERT_TRUE(keeper_.Ask(policy).ok());
  RawClient first(keeper_.socket());
  RawClient second(keeper_.socket());
  RawClient never_ready(keeper_.socket());  // so that no shard moves
  for (RawClient* const client : {&first, &second, &never_ready}) {
    ASSERT_EQ(client->AttachAndShowItself(), absl::OkStatus());
  }
  internal::WorkerRequest ready;
  ready.mutable_set_ready();
  internal::WorkerRequest take_over;
  take_over.mutable_take_over();
  for (RawClient* const client : {&first, &second}) ASSERT_TRUE(client->Ask(ready).ok());
  ASSERT_EQ(first.channel().Send(take_over), absl::OkStatus());
  std::ofstream word(fifo_);  // waits for a launcher to read it
  EXPECT_EQ(second.Ask(take_over).status(), absl::OkStatus());
  word << "go\ngo\n" << std::flush;  // a line for each process that is read
  internal::WorkerReply begun;
  ASSERT_EQ(first.channel().Receive(&begun, kAnswerMs), absl::OkStatus());
  EXPECT_EQ(begun.status_code(), 0) << begun.status_message();
  EXPECT_EQ(AwaitPhase(v1::UPGRADE_PHASE_STARTING).new_worker_ids_size(), 3);
  EXPECT_EQ(Newest().id(), 1u);
  ASSERT_TRUE(Rollback().ok());
  for (RawClient* const client : {&first, &second, &never_ready}) {
    EXPECT_EQ(client->Detach(), absl::OkStatus());
  }
  AwaitPhase(v1::UPGRADE_PHASE_FAILED);
  EXPECT_EQ(OwnersVersion(), "1");
}

// The driver holds a bounded amount for the next keeper. A worker could fill it with its
// environment.
TEST_F(TakeOversTest, shouldNotRememberALargeProgram) {
  StartService(Allow);
  harness::ChildOptions child;
  for (const char* const name : {"LARGE_1", "LARGE_2", "LARGE_3"}) {
    child.environment.emplace_back(name, std::string(100'000, 'x'));
  }
  ASSERT_EQ(TakeOver({"--program-version", "2"}, child), "take over: OK");
  EXPECT_EQ(AwaitPhase(v1::UPGRADE_PHASE_COMPLETED).exec(), "");
  EXPECT_EQ(OwnersVersion(), "2");
  ASSERT_EQ(TakeOver({"--program-version", "3"}), "take over: OK");
  EXPECT_THAT(AwaitPhase(v1::UPGRADE_PHASE_COMPLETED).exec(), HasSubstr("upgrade_worker"));
  EXPECT_EQ(Rollback().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TakeOversTest, shouldMoveSomeShardsWithoutAWatch) {
  StartService(Allow);
  EXPECT_THAT(TakeOver({"--program-version", "2", "--shard", "7"}),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("shard 7")));
  ASSERT_EQ(TakeOver({"--program-version", "3", "--shard", "1"}), "take over: OK");
  EXPECT_EQ(harness::WaitUntil("its shard to move",
                               [&] {
                                 return OwnersVersions() == std::vector<std::string>{"1", "3", "1"};
                               }),
            absl::OkStatus());
  EXPECT_EQ(Newest().id(), 0u);
  EXPECT_EQ(AttachedWorkers(), 3);
  EXPECT_THAT(EventsOfKind("take_over"), ElementsAre(HasSubstr("takes over shard 1 by itself")));
}

TEST_F(TakeOversTest, shouldBeAnUpgradeWhenAllShardsAreNamed) {
  StartService(Allow);
  ASSERT_EQ(TakeOver({"--program-version", "2", "--shard", "2", "--shard", "0", "--shard", "1"}),
            "take over: OK");
  EXPECT_THAT(AwaitPhase(v1::UPGRADE_PHASE_COMPLETED).taken_over_by(), StartsWith("worker "));
  EXPECT_EQ(OwnersVersion(), "2");
}

// A program whose arguments make it take over is started by the keeper, too.
TEST_F(TakeOversTest, shouldNotBeTheWorkersToBeginWhereTheKeeperHasStartedIt) {
  StartService(Allow);
  ASSERT_TRUE(Upgrade(Plan({"--program-version", "2", "--take-over"})).ok());
  EXPECT_EQ(AwaitPhase(v1::UPGRADE_PHASE_COMPLETED).taken_over_by(), "");
  EXPECT_EQ(OwnersVersion(), "2");
  EXPECT_THAT(EventsOfKind("take_over_refused"), ElementsAre());
}

}  // namespace
}  // namespace baton::keeper::testing
