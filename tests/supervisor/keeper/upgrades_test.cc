// Upgrades as the keeper carries them out, without a control: with real processes as workers.
#include "supervisor/keeper/upgrades.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/keeper/keeper_thread.h"

namespace baton::keeper::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Options = std::vector<std::string>;

class UpgradesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    program_ = harness::Binaries().Find("upgrade_worker").value();
    keeper_.SetLauncher(harness::Binaries().Find("baton-launch").value());
  }

  void StartKeeper(const KeeperThread::Change& change = nullptr) {
    ASSERT_EQ(keeper_.Start([&](v1::ServiceConfig* service) {
      service->set_shards(3);
      service->set_max_workers(6);
      service->set_heartbeat_ms(20);
      service->set_hang_timeout_ms(400);
      service->set_ready_timeout_ms(20'000);
      service->set_watch_window_ms(200);
      service->set_stop_timeout_ms(20'000);
      if (change) change(service);
    }),
              absl::OkStatus());
  }

  // The worker that was there before: started as an operator would.
  void StartWorker(const Options& options) {
    harness::ChildOptions child;
    child.program = program_;
    child.arguments = Arguments(options);
    auto started = harness::ChildProcess::Start(child);
    ASSERT_TRUE(started.ok()) << started.status();
    const int ready = ReadyWorkers() + 1;
    worker_ = *std::move(started);
    ASSERT_EQ(harness::WaitUntil("a worker to be ready", [&] { return ReadyWorkers() == ready; }),
              absl::OkStatus());
  }

  Options Arguments(const Options& options) const {
    Options arguments = {"--socket", keeper_.socket()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return arguments;
  }

  int ReadyWorkers() { return static_cast<int>(keeper_.Describe().service().ready_workers()); }

  v1::UpgradePlan Plan(const Options& options) const {
    v1::UpgradePlan plan;
    plan.set_exec(program_);
    plan.set_replace_arguments(true);
    for (const std::string& argument : Arguments(options)) plan.add_arguments(argument);
    return plan;
  }

  absl::StatusOr<v1::Upgrade> Upgrade(const v1::UpgradePlan& plan) {
    internal::ManagementRequest request;
    *request.mutable_upgrade() = plan;
    const auto reply = keeper_.Ask(std::move(request));
    if (!reply.ok()) return reply.status();
    return reply->upgrades(0);
  }

  absl::StatusOr<v1::Upgrade> Rollback() {
    internal::ManagementRequest request;
    request.mutable_rollback();
    const auto reply = keeper_.Ask(std::move(request));
    if (!reply.ok()) return reply.status();
    return reply->upgrades(0);
  }

  v1::Upgrade Newest() {
    internal::ManagementRequest request;
    request.mutable_list_upgrades();
    const auto reply = keeper_.Ask(std::move(request));
    return reply.ok() && reply->upgrades_size() > 0 ? reply->upgrades(0) : v1::Upgrade();
  }

  v1::Upgrade AwaitPhase(v1::UpgradePhase phase) {
    v1::Upgrade upgrade;
    const absl::Status reached = harness::WaitUntil(
        v1::UpgradePhase_Name(phase),
        [&] {
          upgrade = Newest();
          return upgrade.phase() == phase || upgrade.ended_unix_micros() != 0;
        },
        std::chrono::seconds(40));
    EXPECT_EQ(reached, absl::OkStatus()) << upgrade.DebugString();
    EXPECT_EQ(upgrade.phase(), phase) << upgrade.DebugString();
    return upgrade;
  }

  v1::Upgrade UpgradeTo(const Options& options, v1::UpgradePhase end) {
    const auto started = Upgrade(Plan(options));
    EXPECT_TRUE(started.ok()) << started.status();
    return AwaitPhase(end);
  }

  // The version of the program that owns every shard; empty: not all have the same.
  std::string OwnersVersion() {
    const internal::Description description = keeper_.Describe();
    std::string version;
    for (const v1::Shard& shard : description.shards()) {
      std::string of_shard;
      for (const v1::Worker& worker : description.workers()) {
        if (worker.id() == shard.owner_worker_id()) of_shard = worker.version();
      }
      if (shard.index() > 0 && of_shard != version) return "";
      version = of_shard;
    }
    return version;
  }

  int AttachedWorkers() { return keeper_.Describe().workers_size(); }

  KeeperThread keeper_;
  std::string program_;
  std::unique_ptr<harness::ChildProcess> worker_;
};

TEST_F(UpgradesTest, shouldReplaceTheWorkersAndEndThem) {
  StartKeeper();
  StartWorker({"--program-version", "1"});
  const v1::Upgrade upgrade = UpgradeTo({"--program-version", "2"}, v1::UPGRADE_PHASE_COMPLETED);
  EXPECT_EQ(OwnersVersion(), "2");
  EXPECT_EQ(AttachedWorkers(), 1);
  EXPECT_EQ(upgrade.old_version(), "1");
  EXPECT_EQ(upgrade.new_version(), "2");
  EXPECT_GT(upgrade.slowest_blackout_us(), 0);
  EXPECT_EQ(worker_->WaitEnd(std::chrono::seconds(20)).value_or(-1), 0);
}

TEST_F(UpgradesTest, shouldInheritArgumentsAndStartAsManyWorkersAsThereWere) {
  StartKeeper();
  StartWorker({"--program-version", "1"});
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
  StartKeeper();
  StartWorker({"--program-version", "1"});
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
  StartKeeper();
  StartWorker({"--program-version", "1"});
  const v1::Upgrade upgrade =
      UpgradeTo({"--program-version", "2", "--fault", "crash"}, v1::UPGRADE_PHASE_ROLLED_BACK);
  // Where this machine is slow, it is dead before all of its shards are its.
  EXPECT_THAT(upgrade.detail(), AnyOf(HasSubstr("signal 6"), HasSubstr("successor died")));
  EXPECT_EQ(OwnersVersion(), "1");
  EXPECT_EQ(AttachedWorkers(), 1);
}

TEST_F(UpgradesTest, shouldReturnWhenOneOfSeveralNewWorkersCrashes) {
  StartKeeper([](v1::ServiceConfig* service) { service->set_watch_window_ms(60'000); });
  StartWorker({"--program-version", "1"});
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
  AwaitPhase(v1::UPGRADE_PHASE_ROLLED_BACK);
  EXPECT_EQ(OwnersVersion(), "1");
  EXPECT_EQ(AttachedWorkers(), 1);
}

TEST_F(UpgradesTest, shouldNameTheOldWorkersHeirsWhileItWatches) {
  StartKeeper([](v1::ServiceConfig* service) { service->set_watch_window_ms(60'000); });
  StartWorker({"--program-version", "1"});
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

TEST_F(UpgradesTest, shouldReturnWhenTheNewProgramHangs) {
  StartKeeper([](v1::ServiceConfig* service) { service->set_watch_window_ms(60'000); });
  StartWorker({"--program-version", "1"});
  const v1::Upgrade upgrade =
      UpgradeTo({"--program-version", "2", "--fault", "hang"}, v1::UPGRADE_PHASE_ROLLED_BACK);
  EXPECT_THAT(upgrade.detail(), HasSubstr("no sign of life"));
  EXPECT_EQ(OwnersVersion(), "1");
}

TEST_F(UpgradesTest, shouldReturnWhenTheNewProgramTurnsUnhealthy) {
  StartKeeper([](v1::ServiceConfig* service) { service->set_watch_window_ms(60'000); });
  StartWorker({"--program-version", "1"});
  const v1::Upgrade upgrade = UpgradeTo({"--program-version", "2", "--fault", "turn-unhealthy"},
                                        v1::UPGRADE_PHASE_ROLLED_BACK);
  EXPECT_THAT(upgrade.detail(), HasSubstr("unhealthy"));
  EXPECT_EQ(OwnersVersion(), "1");
  EXPECT_EQ(AttachedWorkers(), 1);
}

TEST_F(UpgradesTest, shouldReturnWhenTheNewProgramRefusesAShard) {
  StartKeeper();
  StartWorker({"--program-version", "1"});
  const v1::Upgrade upgrade =
      UpgradeTo({"--program-version", "2", "--fault", "refuse"}, v1::UPGRADE_PHASE_ROLLED_BACK);
  EXPECT_THAT(upgrade.detail(), HasSubstr("gave it back"));
  EXPECT_EQ(OwnersVersion(), "1");
}

TEST_F(UpgradesTest, shouldNotTouchTheShardsBeforeTheNewProgramIsReadyAndHealthy) {
  StartKeeper([](v1::ServiceConfig* service) { service->set_ready_timeout_ms(300); });
  StartWorker({"--program-version", "1"});
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
  StartKeeper([](v1::ServiceConfig* service) {
    service->set_ready_timeout_ms(300);
    service->set_stop_timeout_ms(100);
  });
  StartWorker({"--program-version", "1"});
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
  StartKeeper([](v1::ServiceConfig* service) { service->set_watch_window_ms(60'000); });
  StartWorker({"--program-version", "1"});
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
  StartKeeper([](v1::ServiceConfig* service) { service->set_watch_window_ms(60'000); });
  StartWorker({"--program-version", "1"});
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
  StartKeeper([](v1::ServiceConfig* service) { service->set_watch_window_ms(60'000); });
  StartWorker({"--program-version", "1"});
  ASSERT_TRUE(Upgrade(Plan({"--program-version", "2"})).ok());
  AwaitPhase(v1::UPGRADE_PHASE_WATCHING);
  ASSERT_EQ(worker_->Kill(), absl::OkStatus());
  ASSERT_EQ(harness::WaitUntil("its death", [&] { return AttachedWorkers() == 1; }),
            absl::OkStatus());
  ASSERT_TRUE(Rollback().ok());
  EXPECT_THAT(AwaitPhase(v1::UPGRADE_PHASE_FAILED).detail(), HasSubstr("the new ones stay"));
  EXPECT_EQ(OwnersVersion(), "2");
}

}  // namespace
}  // namespace baton::keeper::testing
