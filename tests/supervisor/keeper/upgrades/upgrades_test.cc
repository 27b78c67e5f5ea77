// Upgrades as the keeper carries them out, without a control: with real processes as workers.
#include "supervisor/keeper/upgrades/upgrades.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "proto/baton/internal/driver.pb.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/keeper/keeper_thread.h"
#include "tests/supervisor/keeper/upgrades/upgrades_fixture.h"

namespace baton::keeper::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(UpgradesTest, shouldReplaceTheWorkersAndEndThem) {
  StartService();
  const v1::Upgrade upgrade = UpgradeTo({"--program-version", "2"}, v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(OwnersVersion(), "2");
  EXPECT_EQ(AttachedWorkers(), 1);
  EXPECT_EQ(upgrade.old_version(), "1");
  EXPECT_EQ(upgrade.new_version(), "2");
  EXPECT_GT(upgrade.slowest_blackout_us(), 0);
  EXPECT_EQ(worker_->WaitEnd(std::chrono::seconds(20)).value_or(-1), 0);
}

TEST_F(UpgradesTest, shouldBeShownThoughArgumentsOfItsWorkersAreNoText) {
  StartKeeper();
  StartWorker({"--program-version", "1", "--fault", "\xff\xfe"});
  v1::UpgradePlan plan;
  plan.set_exec(program_);
  const auto started = Upgrade(plan);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(started->arguments(started->arguments_size() - 1), "??");
  AwaitPhase(v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(OwnersVersion(), "1");
}

TEST_F(UpgradesTest, shouldShowABoundedPartOfItsArguments) {
  StartService();
  v1::UpgradePlan plan = Plan({"--program-version", "2", "--fault", std::string(100'000, 'x')});
  for (int i = 0; i < 200; ++i) plan.add_arguments("--deaf");
  const auto started = Upgrade(plan);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(started->arguments_size(), 128);
  EXPECT_EQ(started->arguments(5), std::string(1024, 'x'));
}

TEST_F(UpgradesTest, shouldInheritArgumentsAndStartAsManyWorkersAsThereWere) {
  StartService();
  const auto first = std::move(worker_);
  StartWorker({"--program-version", "1"});
  v1::UpgradePlan plan;
  plan.set_exec(program_);
  ASSERT_TRUE(Upgrade(plan).ok());
  const v1::Upgrade upgrade = AwaitPhase(v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(upgrade.new_worker_ids_size(), 2);
  EXPECT_EQ(OwnersVersion(), "1");
  EXPECT_EQ(AttachedWorkers(), 2);
}

TEST_F(UpgradesTest, shouldGoOverSeveralGenerationsAndComeBack) {
  StartService();
  UpgradeTo({"--program-version", "2"}, v1::UPGRADE_PHASE_COMPLETED);
  UpgradeTo({"--program-version", "3"}, v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(OwnersVersion(), "3");
  ASSERT_TRUE(Rollback().ok());
  EXPECT_TRUE(AwaitPhase(v1::UPGRADE_PHASE_COMPLETED).rollback());
  EXPECT_EQ(OwnersVersion(), "2");
  ASSERT_TRUE(Rollback().ok());
  AwaitPhase(v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(OwnersVersion(), "1");
  EXPECT_EQ(Rollback().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(UpgradesTest, shouldReturnWhenTheNewProgramCrashes) {
  StartService();
  const v1::Upgrade upgrade =
      UpgradeTo({"--program-version", "2", "--fault", "crash"}, v1::UPGRADE_PHASE_ROLLED_BACK);
  // Also where this machine is slow, and it is dead before it has all shards, or any.
  EXPECT_THAT(upgrade.detail(), HasSubstr("signal 6"));
  EXPECT_EQ(OwnersVersion(), "1");
  EXPECT_EQ(AttachedWorkers(), 1);
}

TEST_F(UpgradesTest, shouldReturnWhenOneOfSeveralNewWorkersCrashes) {
  StartService([](v1::ServiceConfig* service) { service->set_watch_window_ms(60'000); });
  v1::UpgradePlan plan = Plan({"--program-version", "2"});
  plan.set_workers(3);
  ASSERT_TRUE(Upgrade(plan).ok());
  const v1::Upgrade watched = AwaitPhase(v1::UPGRADE_PHASE_WATCHING);
  ASSERT_EQ(watched.new_worker_ids_size(), 3);
  const internal::Description description = keeper_.Describe();
  for (const v1::Worker& worker : description.workers()) {
    if (worker.id() != watched.new_worker_ids(1)) continue;
    ASSERT_EQ(kill(worker.pid(), SIGKILL), 0);
  }
  ExpectReturnToTheOldWorker();
}

TEST_F(UpgradesTest, shouldNameTheOldWorkersHeirsWhileItWatches) {
  StartService([](v1::ServiceConfig* service) { service->set_watch_window_ms(60'000); });
  v1::UpgradePlan plan = Plan({"--program-version", "2"});
  plan.set_workers(2);
  ASSERT_TRUE(Upgrade(plan).ok());
  const v1::Upgrade upgrade = AwaitPhase(v1::UPGRADE_PHASE_WATCHING);
  EXPECT_EQ(OwnersVersion(), "2");
  EXPECT_GT(upgrade.watch_seconds_left(), 0);
  const internal::Description description = keeper_.Describe();
  for (const v1::Shard& shard : description.shards()) {
    EXPECT_EQ(shard.heir_worker_id(), upgrade.old_worker_ids(0)) << shard.index();
  }
}

// Each thread of a process that attaches is a worker.
TEST_F(UpgradesTest, shouldWatchAndEndEveryWorkerOfAProcess) {
  StartService([](v1::ServiceConfig* service) { service->set_watch_window_ms(60'000); });
  v1::UpgradePlan plan = Plan({"--program-version", "2", "--threads", "3"});
  ASSERT_TRUE(Upgrade(plan).ok());
  const v1::Upgrade upgrade = AwaitPhase(v1::UPGRADE_PHASE_WATCHING);
  EXPECT_EQ(OwnersVersion(), "2");
  ASSERT_EQ(harness::WaitUntil("its other threads", [&] { return AttachedWorkers() == 4; }),
            absl::OkStatus());
  const internal::Description description = keeper_.Describe();
  for (const v1::Shard& shard : description.shards()) {
    EXPECT_EQ(shard.heir_worker_id(), upgrade.old_worker_ids(0)) << shard.index();
  }
  EXPECT_EQ(Newest().new_worker_ids_size(), 3);
  ASSERT_TRUE(Rollback().ok());
  ExpectReturnToTheOldWorker();
}

TEST_F(UpgradesTest, shouldRefuseAProgramThatTheNextKeeperCouldNotKnow) {
  StartService();
  v1::UpgradePlan plan = Plan({"--program-version", "2"});
  for (int i = 0; i < 20; ++i) plan.add_arguments("--fault=" + std::string(100'000, 'x'));
  const absl::Status refused = Upgrade(plan).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("1048576 can be kept"));
}

TEST_F(UpgradesTest, shouldReturnWhenTheNewProgramHangs) {
  StartService([](v1::ServiceConfig* service) { service->set_watch_window_ms(60'000); });
  const v1::Upgrade upgrade =
      UpgradeTo({"--program-version", "2", "--fault", "hang"}, v1::UPGRADE_PHASE_ROLLED_BACK);
  // Where this machine is slow, it is dead before all of its shards are its.
  EXPECT_THAT(upgrade.detail(), AnyOf(HasSubstr("no sign of life"), HasSubstr("successor died")));
  EXPECT_EQ(OwnersVersion(), "1");
}

// The policy spares workers that hang, and the upgrade is rolled back all the same.
TEST_F(UpgradesTest, shouldReturnWhenTheNewProgramHangsAndThePolicyKillsNobodyForThat) {
  StartService([](v1::ServiceConfig* service) {
    service->set_watch_window_ms(60'000);
    service->set_handoff_timeout_ms(2000);
    service->mutable_policy()->set_on_hang(v1::ON_HANG_REPORT);
  });
  const v1::Upgrade upgrade =
      UpgradeTo({"--program-version", "2", "--fault", "hang"}, v1::UPGRADE_PHASE_ROLLED_BACK);
  // On a slow machine the new program hangs before it owns all of its shards.
  EXPECT_THAT(upgrade.detail(), AnyOf(HasSubstr("no sign of life"), HasSubstr("did not move")));
  EXPECT_EQ(OwnersVersion(), "1");
}

TEST_F(UpgradesTest, shouldReturnWhenTheNewProgramTurnsUnhealthy) {
  StartService([](v1::ServiceConfig* service) { service->set_watch_window_ms(60'000); });
  const v1::Upgrade upgrade = UpgradeTo({"--program-version", "2", "--fault", "turn-unhealthy"},
                                        v1::UPGRADE_PHASE_ROLLED_BACK);
  EXPECT_THAT(upgrade.detail(), HasSubstr("unhealthy"));
  EXPECT_EQ(OwnersVersion(), "1");
  EXPECT_EQ(AttachedWorkers(), 1);
}

TEST_F(UpgradesTest, shouldReturnWhenTheNewProgramRefusesAShard) {
  StartService();
  const v1::Upgrade upgrade =
      UpgradeTo({"--program-version", "2", "--fault", "refuse"}, v1::UPGRADE_PHASE_ROLLED_BACK);
  EXPECT_THAT(upgrade.detail(), HasSubstr("gave it back"));
  EXPECT_EQ(OwnersVersion(), "1");
}

TEST_F(UpgradesTest, shouldNotTouchTheShardsBeforeTheNewProgramIsReadyAndHealthy) {
  StartService([](v1::ServiceConfig* service) { service->set_ready_timeout_ms(3000); });
  const auto epoch = [this] { return keeper_.Describe().shards(0).epoch(); };
  const uint64_t before = epoch();
  EXPECT_THAT(UpgradeTo({"--fault", "unhealthy"}, v1::UPGRADE_PHASE_FAILED).detail(),
              HasSubstr("unhealthy"));
  EXPECT_THAT(UpgradeTo({"--fault", "exit"}, v1::UPGRADE_PHASE_FAILED).detail(),
              HasSubstr("ended with status 3"));
  EXPECT_EQ(epoch(), before);
  EXPECT_EQ(AttachedWorkers(), 1);
}

TEST_F(UpgradesTest, shouldKillANewProgramThatNeverGetsReadyAndDoesNotEnd) {
  StartService([](v1::ServiceConfig* service) {
    service->set_ready_timeout_ms(3000);
    service->set_stop_timeout_ms(100);
  });
  EXPECT_THAT(UpgradeTo({"--fault", "never-ready"}, v1::UPGRADE_PHASE_FAILED).detail(),
              HasSubstr("not ready"));
  EXPECT_EQ(AttachedWorkers(), 1);
  EXPECT_EQ(OwnersVersion(), "1");
}

TEST_F(UpgradesTest, shouldKillAnOldWorkerThatDoesNotEnd) {
  StartKeeper([](v1::ServiceConfig* service) { service->set_stop_timeout_ms(100); });
  StartWorker({"--program-version", "1", "--deaf"});
  UpgradeTo({"--program-version", "2"}, v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(OwnersVersion(), "2");
  EXPECT_EQ(AttachedWorkers(), 1);
}

// It knows nothing of the arena's request to end, and gets the signal.
TEST_F(UpgradesTest, shouldUpgradeAWorkerOfThePreviousLayoutAndReturnToOne) {
  StartKeeper();
  ASSERT_EQ(setenv("BATON_PREVIOUS_LAYOUT", "1", 1), 0);
  StartWorker({"--program-version", "1"});
  unsetenv("BATON_PREVIOUS_LAYOUT");
  UpgradeTo({"--program-version", "2"}, v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(OwnersVersion(), "2");
  EXPECT_EQ(worker_->WaitEnd(std::chrono::seconds(20)).value_or(-1), 0);
  ASSERT_TRUE(Rollback().ok());
  AwaitPhase(v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(OwnersVersion(), "1");
}

TEST_F(UpgradesTest, shouldBeUndoneWithinItsWindow) {
  StartService([](v1::ServiceConfig* service) { service->set_watch_window_ms(60'000); });
  ASSERT_TRUE(Upgrade(Plan({"--program-version", "2"})).ok());
  AwaitPhase(v1::UPGRADE_PHASE_WATCHING);
  EXPECT_EQ(OwnersVersion(), "2");
  ASSERT_TRUE(Rollback().ok());
  const v1::Upgrade upgrade = AwaitPhase(v1::UPGRADE_PHASE_ROLLED_BACK);
  EXPECT_THAT(upgrade.detail(), HasSubstr("operator"));
  EXPECT_EQ(OwnersVersion(), "1");
  EXPECT_EQ(AttachedWorkers(), 1);
}

TEST_F(UpgradesTest, shouldBeTheOnlyOneAndKeepItsShards) {
  StartService([](v1::ServiceConfig* service) { service->set_watch_window_ms(60'000); });
  const auto first = Upgrade(Plan({"--program-version", "2"}));
  ASSERT_TRUE(first.ok());
  AwaitPhase(v1::UPGRADE_PHASE_WATCHING);
  const absl::Status second = Upgrade(Plan({"--program-version", "3"})).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.message()), HasSubstr("upgrade 1"));
  EXPECT_THAT(std::string(second.message()), HasSubstr("watch window"));
  EXPECT_THAT(std::string(second.message()), HasSubstr("baton rollback kv"));
  EXPECT_EQ(keeper_.Handoff(first->old_worker_ids(0)).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(keeper_.Describe().service().upgrade().id(), first->id());
}

TEST_F(UpgradesTest, shouldRefuseAProgramWhoseStateTheOldOneCannotRead) {
  StartKeeper();
  StartWorker({"--program-version", "1", "--reads-min", "1", "--reads-max", "1", "--writes", "1"});
  const Options second = {"--program-version", "2", "--reads-min", "1",
                          "--reads-max",       "2", "--writes",    "2"};
  const v1::Upgrade refused = UpgradeTo(second, v1::UPGRADE_PHASE_FAILED);
  EXPECT_THAT(refused.detail(), HasSubstr("writes state version 2"));
  EXPECT_THAT(refused.detail(), HasSubstr("--no-rollback"));
  EXPECT_EQ(OwnersVersion(), "1");
  v1::UpgradePlan plan = Plan(second);
  plan.set_no_rollback(true);
  ASSERT_TRUE(Upgrade(plan).ok());
  AwaitPhase(v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(OwnersVersion(), "2");
}

TEST_F(UpgradesTest, shouldRefuseAProgramThatCannotReadTheState) {
  StartKeeper();
  StartWorker({"--program-version", "1", "--reads-min", "1", "--reads-max", "1", "--writes", "1"});
  v1::UpgradePlan plan = Plan({"--reads-min", "2", "--reads-max", "2", "--writes", "2"});
  plan.set_no_rollback(true);
  ASSERT_TRUE(Upgrade(plan).ok());
  EXPECT_THAT(AwaitPhase(v1::UPGRADE_PHASE_FAILED).detail(), HasSubstr("reads state versions 2"));
  EXPECT_EQ(OwnersVersion(), "1");
}

// Its file system does not answer, for example. The loop goes on: others are answered, and refused.
TEST_F(UpgradesTest, shouldAnswerOthersWhileAProgramIsNotEntered) {
  StartKeeperWithLauncher([](const std::string& real, const std::string& wait) {
    return "test $# = 0 || exec " + real + " $1\n" + wait + "\nexec " + real + "\n";
  });
  absl::StatusOr<v1::Upgrade> begun;
  std::thread asking([&] { begun = Upgrade(Plan({"--program-version", "2"})); });
  std::ofstream word(fifo_);  // waits for the launcher to read it
  EXPECT_EQ(ReadyWorkers(), 1);
  const absl::Status second = Upgrade(Plan({})).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition) << second;
  EXPECT_EQ(Rollback().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(keeper_.Describe().service().has_upgrade());
  word << "go\n" << std::flush;
  asking.join();
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(begun->phase(), v1::UPGRADE_PHASE_STARTING);
  AwaitPhase(v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(OwnersVersion(), "2");
}

// The memory that the worker has its command line in does not come, for example.
TEST_F(UpgradesTest, shouldAnswerOthersWhileTheProgramThatServesIsRead) {
  StartKeeperWithLauncher([](const std::string& real, const std::string& wait) {
    return "test $# = 0 && exec " + real + "\n" + wait + "\nexec " + real + " $1\n";
  });
  absl::StatusOr<v1::Upgrade> begun;
  std::thread asking([&] { begun = Upgrade(Plan({"--program-version", "2"})); });
  std::ofstream word(fifo_);  // waits for the launcher to read it
  EXPECT_EQ(ReadyWorkers(), 1);
  EXPECT_FALSE(keeper_.Describe().service().has_upgrade());
  word << "go\n" << std::flush;
  asking.join();
  ASSERT_TRUE(begun.ok()) << begun.status();
  AwaitPhase(v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(OwnersVersion(), "2");
}

TEST_F(UpgradesTest, shouldSayWhatIsWrongWithAPlan) {
  StartKeeper();
  v1::UpgradePlan plan = Plan({});
  EXPECT_THAT(std::string(Upgrade(plan).status().message()), HasSubstr("no worker"));
  StartWorker({"--program-version", "1"});
  for (const char* path : {"", "worker", "/nowhere/worker", "/etc/passwd", "/tmp"}) {
    plan.set_exec(path);
    const absl::Status status = Upgrade(plan).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_THAT(std::string(status.message()), HasSubstr("exec: ")) << path;
  }
  plan = Plan({});
  plan.set_workers(100);
  EXPECT_EQ(Upgrade(plan).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Rollback().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(keeper_.Describe().service().upgrade().exec(), IsEmpty());
}

TEST_F(UpgradesTest, shouldKeepTheNewWorkersWhenTheOldOnesAreGone) {
  StartService([](v1::ServiceConfig* service) { service->set_watch_window_ms(60'000); });
  ASSERT_TRUE(Upgrade(Plan({"--program-version", "2"})).ok());
  AwaitPhase(v1::UPGRADE_PHASE_WATCHING);
  ASSERT_NO_FATAL_FAILURE(KillOldWorker());
  ASSERT_TRUE(Rollback().ok());
  EXPECT_THAT(AwaitPhase(v1::UPGRADE_PHASE_FAILED).detail(), HasSubstr("the new ones stay"));
  EXPECT_EQ(OwnersVersion(), "2");
}

// Its unit does that.
TEST_F(UpgradesTest, shouldReturnToAnOldWorkerThatIsStartedAgain) {
  StartService([](v1::ServiceConfig* service) { service->set_watch_window_ms(60'000); });
  ASSERT_TRUE(Upgrade(Plan({"--program-version", "2"})).ok());
  AwaitPhase(v1::UPGRADE_PHASE_WATCHING);
  ASSERT_NO_FATAL_FAILURE(KillOldWorker());
  StartWorker({"--program-version", "1"});
  ASSERT_TRUE(Rollback().ok());
  ExpectReturnToTheOldWorker();
}

TEST_F(UpgradesTest, shouldEndAnOldWorkerThatIsStartedMeanwhile) {
  StartService();
  const auto first = std::move(worker_);
  ASSERT_TRUE(Upgrade(Plan({"--program-version", "2"})).ok());
  ASSERT_TRUE(Hold(true).ok());
  ASSERT_EQ(harness::WaitUntil("the new worker", [&] { return ReadyWorkers() == 2; }),
            absl::OkStatus());
  StartWorker({"--program-version", "1"});
  ASSERT_TRUE(Hold(false).ok());
  AwaitPhase(v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(OwnersVersion(), "2");
  EXPECT_EQ(AttachedWorkers(), 1);
  EXPECT_EQ(worker_->WaitEnd(std::chrono::seconds(20)).value_or(-1), 0);
}

// Nobody knows what it runs.
TEST_F(UpgradesTest, shouldPreferTheNewWorkersToOthersThatAttachedMeanwhile) {
  StartService();
  const auto first = std::move(worker_);
  v1::UpgradePlan plan = Plan({"--program-version", "2"});
  plan.set_workers(2);
  ASSERT_TRUE(Upgrade(plan).ok());
  ASSERT_TRUE(Hold(true).ok());
  ASSERT_EQ(harness::WaitUntil("the new workers", [&] { return ReadyWorkers() == 3; }),
            absl::OkStatus());
  StartWorker({"--program-version", "3"});
  ASSERT_TRUE(Hold(false).ok());
  const v1::Upgrade upgrade = AwaitPhase(v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(OwnersVersion(), "2");
  EXPECT_EQ(AttachedWorkers(), 3);
  const internal::Description description = keeper_.Describe();
  for (const v1::Shard& shard : description.shards()) {
    EXPECT_THAT(upgrade.new_worker_ids(), Contains(shard.heir_worker_id())) << shard.index();
  }
}

// The next keeper looks whether the shards that are on their way have arrived.
TEST_F(UpgradesTest, shouldTellTheNextKeeperAtOnceWhichShardsAreOnTheirWay) {
  const auto told = std::make_shared<std::atomic<int>>(0);
  const auto told_without = std::make_shared<std::atomic<int>>(0);
  keeper_.WatchOrders([=](const internal::DriverOrder& order) {
    internal::HeldUpgrades held;
    if (order.hold().key() != "upgrades" || !held.ParseFromString(order.hold().value())) return;
    if (held.under_way().status().phase() != v1::UPGRADE_PHASE_HANDING_OVER) return;
    ++*told;
    if (held.under_way().on_their_way().empty()) ++*told_without;
  });
  StartService();
  UpgradeTo({"--program-version", "2"}, v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_GT(*told, 0);
  EXPECT_EQ(*told_without, 0);
}

// ---- In steps.

TEST_F(UpgradesTest, shouldMoveTheCanaryShardsFirst) {
  StartService();
  v1::UpgradePlan plan = CanaryPlan({"--program-version", "2"}, {1});
  plan.set_canary_window_ms(60'000);
  plan.set_watch_window_ms(1);
  ASSERT_TRUE(Upgrade(plan).ok());
  const v1::Upgrade upgrade = AwaitPhase(v1::UPGRADE_PHASE_CANARY);
  EXPECT_THAT(upgrade.canary_shards(), ::testing::ElementsAre(1));
  EXPECT_GT(upgrade.watch_seconds_left(), 0);
  EXPECT_THAT(OwnersVersions(), ::testing::ElementsAre("1", "2", "1"));
  ASSERT_TRUE(Rollback().ok());
  ExpectReturnToTheOldWorker();
}

TEST_F(UpgradesTest, shouldMoveTheOthersWhenTheCanaryWindowIsOver) {
  StartService();
  v1::UpgradePlan plan = CanaryPlan({"--program-version", "2"}, {0, 2});
  plan.set_canary_window_ms(20);
  ASSERT_TRUE(Upgrade(plan).ok());
  AwaitPhase(v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(OwnersVersion(), "2");
  std::vector<std::string> kinds;
  for (const v1::Event& event : keeper_.Events()) {
    if (event.kind().starts_with("upgrade_")) kinds.push_back(event.kind());
  }
  EXPECT_THAT(kinds, ::testing::ElementsAre("upgrade_started", "upgrade_canary",
                                            "upgrade_handed_over", "upgrade_completed"));
}

TEST_F(UpgradesTest, shouldTakeTheCanaryShardsBackWhenTheirOwnerCrashes) {
  StartService();
  v1::UpgradePlan plan = CanaryPlan({"--program-version", "2", "--fault", "crash"}, {0});
  plan.set_canary_window_ms(60'000);
  const internal::Description before = keeper_.Describe();
  ASSERT_TRUE(Upgrade(plan).ok());
  AwaitPhase(v1::UPGRADE_PHASE_ROLLED_BACK);
  EXPECT_EQ(OwnersVersion(), "1");
  // What was no canary's has never moved.
  EXPECT_EQ(keeper_.Describe().shards(1).epoch(), before.shards(1).epoch());
}

TEST_F(UpgradesTest, shouldWaitToBeResumedAfterItsCanaryWindow) {
  StartService();
  v1::UpgradePlan plan = CanaryPlan({"--program-version", "2"}, {0});
  plan.set_canary_window_ms(20);
  plan.set_pause_after_canary(true);
  ASSERT_TRUE(Upgrade(plan).ok());
  ASSERT_EQ(harness::WaitUntil("it to pause", [&] { return Newest().paused(); }), absl::OkStatus());
  EXPECT_EQ(Newest().phase(), v1::UPGRADE_PHASE_CANARY);
  EXPECT_THAT(OwnersVersions(), ::testing::ElementsAre("2", "1", "1"));
  ASSERT_TRUE(Hold(false).ok());
  AwaitPhase(v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(OwnersVersion(), "2");
}

TEST_F(UpgradesTest, shouldNotHandOverWhileItIsPaused) {
  StartService();
  EXPECT_EQ(Hold(true).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Upgrade(Plan({"--program-version", "2"})).ok());
  ASSERT_TRUE(Hold(true).ok());
  EXPECT_TRUE(Hold(true)->paused());
  ASSERT_EQ(harness::WaitUntil("the new worker", [&] { return ReadyWorkers() == 2; }),
            absl::OkStatus());
  // It would be there long ago: the window is 200 ms, and this is asked again and again.
  for (int i = 0; i < 100; ++i) ASSERT_EQ(Newest().phase(), v1::UPGRADE_PHASE_STARTING);
  EXPECT_EQ(OwnersVersion(), "1");
  ASSERT_TRUE(Hold(false).ok());
  EXPECT_EQ(Hold(false).status().code(), absl::StatusCode::kFailedPrecondition);
  AwaitPhase(v1::UPGRADE_PHASE_COMPLETED);
}

TEST_F(UpgradesTest, shouldReturnThoughItIsPaused) {
  StartService([](v1::ServiceConfig* service) { service->set_watch_window_ms(60'000); });
  ASSERT_TRUE(Upgrade(Plan({"--program-version", "2"})).ok());
  const v1::Upgrade watched = AwaitPhase(v1::UPGRADE_PHASE_WATCHING);
  ASSERT_TRUE(Hold(true).ok());
  const internal::Description description = keeper_.Describe();
  for (const v1::Worker& worker : description.workers()) {
    if (worker.id() == watched.new_worker_ids(0)) {
      ASSERT_EQ(kill(worker.pid(), SIGKILL), 0);
    }
  }
  EXPECT_FALSE(AwaitPhase(v1::UPGRADE_PHASE_ROLLED_BACK).paused());
  EXPECT_EQ(OwnersVersion(), "1");
}

TEST_F(UpgradesTest, shouldReturnAtAGate) {
  StartService();
  v1::UpgradePlan slow = Plan({"--program-version", "2"});
  slow.mutable_gates()->set_max_blackout_us(0.001);
  ASSERT_TRUE(Upgrade(slow).ok());
  EXPECT_THAT(AwaitPhase(v1::UPGRADE_PHASE_ROLLED_BACK).detail(), HasSubstr("gate: a shard"));
  EXPECT_EQ(OwnersVersion(), "1");
  // Nobody sends anything here. In steps, the first window judges.
  v1::UpgradePlan canary = CanaryPlan({"--program-version", "2"}, {1});
  canary.set_canary_window_ms(20);
  canary.mutable_gates()->set_min_completions(1);
  ASSERT_TRUE(Upgrade(canary).ok());
  EXPECT_THAT(AwaitPhase(v1::UPGRADE_PHASE_ROLLED_BACK).detail(), HasSubstr("dealt with 0"));
  v1::UpgradePlan idle = Plan({"--program-version", "2"});
  idle.mutable_gates()->set_min_completions(1);
  ASSERT_TRUE(Upgrade(idle).ok());
  EXPECT_THAT(AwaitPhase(v1::UPGRADE_PHASE_ROLLED_BACK).detail(), HasSubstr("dealt with 0"));
  EXPECT_EQ(OwnersVersion(), "1");
}

TEST_F(UpgradesTest, shouldNameTheFieldOfStepsThatDoNotFit) {
  StartService();
  const auto refused = [&](const std::function<void(v1::UpgradePlan*)>& change) {
    v1::UpgradePlan plan = Plan({});
    change(&plan);
    const absl::Status status = Upgrade(plan).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused([](auto* plan) { plan->add_canary_shards(3); }),
              HasSubstr("canary_shards: there is no shard 3"));
  EXPECT_THAT(refused([](auto* plan) {
                for (const uint32_t shard : {0, 1, 2}) plan->add_canary_shards(shard);
              }),
              HasSubstr("canary_shards: all 3"));
  EXPECT_THAT(refused([](auto* plan) { plan->set_canary_window_ms(5); }),
              HasSubstr("canary_window_ms: there are no canary_shards"));
  EXPECT_THAT(refused([](auto* plan) { plan->set_pause_after_canary(true); }),
              HasSubstr("pause_after_canary: there are no canary_shards"));
  EXPECT_THAT(refused([](auto* plan) { plan->mutable_gates()->set_max_blackout_us(-1); }),
              HasSubstr("gates.max_blackout_us"));
  EXPECT_THAT(refused([](auto* plan) {
                plan->add_canary_shards(0);
                plan->set_no_rollback(true);
              }),
              HasSubstr("no_rollback"));
  EXPECT_EQ(AttachedWorkers(), 1);
}

// ---- What is known of each change of owner.

TEST_F(UpgradesTest, shouldLeaveAHistoryOfItsMoves) {
  StartService();
  UpgradeTo({"--program-version", "2"}, v1::UPGRADE_PHASE_COMPLETED);
  internal::ManagementRequest request;
  request.mutable_list_shard_moves()->set_shard(-1);
  const auto all = keeper_.Ask(request);
  ASSERT_TRUE(all.ok());
  ASSERT_EQ(all->shard_moves_size(), 3);
  for (const v1::ShardMove& move : all->shard_moves()) {
    EXPECT_TRUE(move.planned());
    EXPECT_GT(move.blackout_us(), 0);
    EXPECT_EQ(move.report().former_worker_id(), 1u);
    EXPECT_EQ(move.report().successor_worker_id(), 2u);
    EXPECT_EQ(move.report().cause(), "handoff");
  }
  request.mutable_list_shard_moves()->set_shard(2);
  EXPECT_EQ(keeper_.Ask(request)->shard_moves_size(), 1);
  request.mutable_list_shard_moves()->set_shard(3);
  EXPECT_EQ(keeper_.Ask(request).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace baton::keeper::testing
