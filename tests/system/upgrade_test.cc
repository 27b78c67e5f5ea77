// A service's program is replaced, and replaced again, and its peers do not notice.
#include <signal.h>

#include <chrono>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/harness/baton_command.h"
#include "tests/harness/wait_until.h"
#include "tests/system/upgrade_fixture.h"

namespace baton::upgrade {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

v1::RollbackRequest RollbackOf(const std::string& service) {
  v1::RollbackRequest request;
  request.set_service(service);
  request.set_watch_window_ms(kShortMs);
  return request;
}

TEST_F(UpgradeTest, shouldServeThroughSeveralGenerations) {
  ASSERT_NO_FATAL_FAILURE(Start());
  v1::Upgrade last;
  for (const uint32_t version : {2, 1, 2}) {
    SCOPED_TRACE(version);
    v1::Upgrade upgrade;
    ASSERT_NO_FATAL_FAILURE(
        Upgrade(To(absl::StrCat("ledger-v", version)), v1::UPGRADE_PHASE_COMPLETED, &upgrade));
    EXPECT_EQ(upgrade.old_version(), absl::StrCat("v", 3 - version));
    EXPECT_EQ(upgrade.new_version(), absl::StrCat("v", version));
    EXPECT_GT(upgrade.slowest_blackout_us(), 0);
    ASSERT_EQ(upgrade.new_worker_ids_size(), 1);
    EXPECT_TRUE(cluster_->OwnsAllShards(upgrade.new_worker_ids(0)));
    ASSERT_NO_FATAL_FAILURE(ExpectWorkers({upgrade.new_worker_ids(0)}));
    ASSERT_NO_FATAL_FAILURE(ExpectServedBy(version));
    last = upgrade;
  }
  ASSERT_NO_FATAL_FAILURE(ExpectEndedInOrder(*first_));
  EXPECT_THAT(first_->process->LogTail(), HasSubstr("asked to end"));
  // They were told nothing else than the first one was.
  EXPECT_THAT(std::vector<std::string>(last.arguments().begin(), last.arguments().end()),
              testing::Contains(cluster_->SocketPath()));
  const auto list = cluster_->operators().ListUpgrades("ledger");
  ASSERT_OK(list);
  ASSERT_EQ(list->upgrades_size(), 3);
  EXPECT_EQ(list->upgrades(0).id(), last.id());
  EXPECT_GT(list->upgrades(0).id(), list->upgrades(2).id());
  ExpectNothingLost();
}

TEST_F(UpgradeTest, shouldTellWhatHappens) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto started = cluster_->StartUpgrade(To("ledger-v2", kLongMs));
  ASSERT_OK(started);
  ASSERT_NO_FATAL_FAILURE(WaitForPhase(started->id(), v1::UPGRADE_PHASE_WATCHING));
  const auto service = cluster_->GetService();
  ASSERT_OK(service);
  EXPECT_EQ(service->service().upgrade().phase(), v1::UPGRADE_PHASE_WATCHING);
  EXPECT_GT(service->service().upgrade().watch_seconds_left(), 1);
  // The old one is warm and heir of every shard.
  for (const v1::Shard& shard : service->shards()) {
    EXPECT_EQ(shard.heir_worker_id(), first_->id) << shard.ShortDebugString();
  }
  ASSERT_OK(cluster_->operators().Rollback(RollbackOf("ledger")));
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(started->id(), v1::UPGRADE_PHASE_ROLLED_BACK));
  const auto after = cluster_->GetService();
  ASSERT_OK(after);
  EXPECT_FALSE(after->service().has_upgrade());
  ExpectNothingLost();
}

TEST_F(UpgradeTest, shouldRefuseOneDuringAnother) {
  ASSERT_NO_FATAL_FAILURE(Start());
  harness::UpgradeOptions never = ToFaulty({"--fault", "never-ready"});
  never.plan.set_ready_timeout_ms(kLongMs);
  const auto under_way = cluster_->StartUpgrade(never);
  ASSERT_OK(under_way);
  EXPECT_EQ(under_way->phase(), v1::UPGRADE_PHASE_STARTING);
  const auto refused = cluster_->StartUpgrade(To("ledger-v2"));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().ToString(),
              AllOf(HasSubstr(absl::StrCat("upgrade ", under_way->id())),
                    HasSubstr("baton rollback ledger")));
  // The cure works.
  ASSERT_OK(cluster_->operators().Rollback(RollbackOf("ledger")));
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(under_way->id(), v1::UPGRADE_PHASE_FAILED));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  ASSERT_NO_FATAL_FAILURE(Upgrade(To("ledger-v2"), v1::UPGRADE_PHASE_COMPLETED));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(2));
  ExpectNothingLost();
}

TEST_F(UpgradeTest, shouldGoBackWithinTheWatchWindowWhenAskedTo) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (int i = 0; i < 3; ++i) {
    const auto started = cluster_->StartUpgrade(To("ledger-v2", kLongMs));
    ASSERT_OK(started);
    ASSERT_NO_FATAL_FAILURE(WaitForPhase(started->id(), v1::UPGRADE_PHASE_WATCHING));
    ASSERT_NO_FATAL_FAILURE(ExpectServedBy(2));
    ASSERT_OK(cluster_->operators().Rollback(RollbackOf("ledger")));
    v1::Upgrade upgrade;
    ASSERT_NO_FATAL_FAILURE(ExpectEnd(started->id(), v1::UPGRADE_PHASE_ROLLED_BACK, &upgrade));
    EXPECT_THAT(upgrade.detail(), HasSubstr("operator"));
    EXPECT_GT(upgrade.slowest_return_us(), 0);
    EXPECT_TRUE(cluster_->OwnsAllShards(first_->id));
    ASSERT_NO_FATAL_FAILURE(ExpectWorkers({first_->id}));
    ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  }
  ExpectNothingLost();
}

TEST_F(UpgradeTest, shouldBeContinuedByTheKeeperThatFollows) {
  ASSERT_NO_FATAL_FAILURE(Start());
  harness::UpgradeOptions options = To("ledger-v2", 3000);
  options.plan.add_canary_shards(0);
  options.plan.set_canary_window_ms(kLongMs);
  options.plan.set_pause_after_canary(true);
  const auto started = cluster_->StartUpgrade(options);
  ASSERT_OK(started);
  // Its processes start, or wait for their shards.
  ASSERT_NO_FATAL_FAILURE(ReplaceKeeper());
  ASSERT_NO_FATAL_FAILURE(WaitForPhase(started->id(), v1::UPGRADE_PHASE_CANARY));
  ASSERT_NO_FATAL_FAILURE(ReplaceKeeper());
  ASSERT_OK(cluster_->operators().Rollback(RollbackOf("ledger")));
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(started->id(), v1::UPGRADE_PHASE_ROLLED_BACK));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));

  const auto again = cluster_->StartUpgrade(To("ledger-v2", 3000));
  ASSERT_OK(again);
  ASSERT_NO_FATAL_FAILURE(WaitForPhase(again->id(), v1::UPGRADE_PHASE_WATCHING));
  ASSERT_NO_FATAL_FAILURE(ReplaceKeeper());
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(again->id(), v1::UPGRADE_PHASE_COMPLETED));
  ASSERT_NO_FATAL_FAILURE(ExpectEndedInOrder(*first_));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(2));
  // The keeper that follows knows the upgrades that the one before it had ended.
  ASSERT_NO_FATAL_FAILURE(ReplaceKeeper());
  const auto list = cluster_->operators().ListUpgrades("ledger");
  ASSERT_OK(list);
  EXPECT_EQ(list->upgrades_size(), 2);
  const auto back = cluster_->operators().Rollback(RollbackOf("ledger"));
  ASSERT_OK(back);
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(back->upgrade().id(), v1::UPGRADE_PHASE_COMPLETED));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  ExpectNothingLost();
}

TEST_F(UpgradeTest, shouldHoldItsTimeWhileItIsPausedUnderKeepersThatFollow) {
  constexpr double kPauseSeconds = 2;
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto started = cluster_->StartUpgrade(To("ledger-v2", kLongMs));
  ASSERT_OK(started);
  ASSERT_NO_FATAL_FAILURE(WaitForPhase(started->id(), v1::UPGRADE_PHASE_WATCHING));
  ASSERT_EQ(harness::RunBaton(*cluster_, {"upgrades", "pause", "ledger"}).status, 0);
  const auto seconds_left = [&] {
    const auto list = cluster_->operators().ListUpgrades("ledger");
    return list.ok() ? list->upgrades(0).watch_seconds_left() : -1;
  };
  const double before = seconds_left();
  const auto paused_at = std::chrono::steady_clock::now();
  ASSERT_OK(harness::WaitUntil("a pause", [&] {
    return std::chrono::steady_clock::now() - paused_at >
           std::chrono::duration<double>(kPauseSeconds);
  }));
  ASSERT_NO_FATAL_FAILURE(ReplaceKeeper());
  EXPECT_GT(seconds_left(), before - kPauseSeconds / 2);
  ASSERT_OK(cluster_->operators().Rollback(RollbackOf("ledger")));
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(started->id(), v1::UPGRADE_PHASE_ROLLED_BACK));
  ExpectNothingLost();
}

TEST_F(UpgradeTest, shouldStillGoBackByItselfWhenAnotherKeeperHasFollowed) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto started = cluster_->StartUpgrade(To("ledger-v2", kLongMs));
  ASSERT_OK(started);
  ASSERT_NO_FATAL_FAILURE(WaitForPhase(started->id(), v1::UPGRADE_PHASE_WATCHING));
  const auto watched = cluster_->GetService();
  ASSERT_OK(watched);
  pid_t owner = 0;
  for (const v1::Worker& worker : watched->workers()) {
    if (worker.shards_size() > 0) owner = worker.pid();
  }
  // The new program's owner dies while there is no keeper.
  ASSERT_EQ(kill(watched->service().keeper_pid(), SIGSTOP), 0);
  ASSERT_EQ(kill(owner, SIGKILL), 0);
  ASSERT_EQ(kill(watched->service().keeper_pid(), SIGKILL), 0);
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(started->id(), v1::UPGRADE_PHASE_ROLLED_BACK));
  EXPECT_TRUE(cluster_->OwnsAllShards(first_->id));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  ExpectNothingLost();
}

TEST_F(UpgradeTest, shouldGoBackAfterTheOldProgramHasEnded) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Upgrade(To("ledger-v2"), v1::UPGRADE_PHASE_COMPLETED));
  ASSERT_NO_FATAL_FAILURE(ExpectEndedInOrder(*first_));
  const auto back = cluster_->operators().Rollback(RollbackOf("ledger"));
  ASSERT_OK(back);
  EXPECT_TRUE(back->upgrade().rollback());
  v1::Upgrade upgrade;
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(back->upgrade().id(), v1::UPGRADE_PHASE_COMPLETED, &upgrade));
  EXPECT_THAT(upgrade.exec(), testing::EndsWith("ledger-v1"));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  // Before that one there was none.
  const auto further = cluster_->operators().Rollback(RollbackOf("ledger"));
  EXPECT_EQ(further.status().code(), absl::StatusCode::kFailedPrecondition);
  ExpectNothingLost();
}

TEST_F(UpgradeTest, shouldReplaceSeveralOwnersAndTheirStandbys) {
  ASSERT_NO_FATAL_FAILURE(Start());
  auto second = cluster_->StartLedger(1);
  ASSERT_OK(second);
  auto standby = cluster_->StartLedger(1);
  ASSERT_OK(standby);
  v1::HandoffRequest half;
  half.set_service("ledger");
  half.add_shards(2);
  half.add_shards(3);
  half.set_to_worker_id((*second)->id);
  ASSERT_OK(cluster_->operators().Handoff(half));
  v1::Upgrade upgrade;
  ASSERT_NO_FATAL_FAILURE(Upgrade(To("ledger-v2"), v1::UPGRADE_PHASE_COMPLETED, &upgrade));
  EXPECT_EQ(upgrade.old_worker_ids_size(), 3);
  ASSERT_EQ(upgrade.new_worker_ids_size(), 3);
  ASSERT_NO_FATAL_FAILURE(
      ExpectWorkers({upgrade.new_worker_ids().begin(), upgrade.new_worker_ids().end()}));
  const auto service = cluster_->GetService();
  ASSERT_OK(service);
  std::set<uint64_t> owners;
  for (const v1::Shard& shard : service->shards()) owners.insert(shard.owner_worker_id());
  EXPECT_GT(owners.size(), 1u);
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(2));
  for (harness::LedgerWorker* old : {first_.get(), second->get(), standby->get()}) {
    ASSERT_NO_FATAL_FAILURE(ExpectEndedInOrder(*old));
  }
  // One of them is enough, when that is wanted.
  harness::UpgradeOptions alone = To("ledger-v1");
  alone.plan.set_workers(1);
  ASSERT_NO_FATAL_FAILURE(Upgrade(alone, v1::UPGRADE_PHASE_COMPLETED, &upgrade));
  EXPECT_EQ(upgrade.new_worker_ids_size(), 1);
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  ExpectNothingLost();
}

TEST_F(UpgradeTest, shouldReplaceTheProgramOfAServiceWithOutsideEffects) {
  ASSERT_NO_FATAL_FAILURE(Start({"--outside-effects"}));
  ASSERT_NO_FATAL_FAILURE(Upgrade(To("ledger-v2"), v1::UPGRADE_PHASE_COMPLETED));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(2));
  ASSERT_NO_FATAL_FAILURE(Upgrade(ToFaulty({"--fault", "crash"}), v1::UPGRADE_PHASE_ROLLED_BACK));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(2));
  ASSERT_NO_FATAL_FAILURE(Upgrade(To("ledger-v1"), v1::UPGRADE_PHASE_COMPLETED));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  ExpectNothingLost();
}

TEST_F(UpgradeTest, shouldReplaceAProgramOfTheLayoutBeforeAndReturnToIt) {
  harness::LedgerOptions before;
  before.previous_layout = true;
  ASSERT_NO_FATAL_FAILURE(Start({}, before));
  // Within the watch window, and after it.
  const auto watched = cluster_->StartUpgrade(To("ledger-v2", kLongMs));
  ASSERT_OK(watched);
  ASSERT_NO_FATAL_FAILURE(WaitForPhase(watched->id(), v1::UPGRADE_PHASE_WATCHING));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(2));
  ASSERT_OK(cluster_->operators().Rollback(RollbackOf("ledger")));
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(watched->id(), v1::UPGRADE_PHASE_ROLLED_BACK));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  ASSERT_NO_FATAL_FAILURE(Upgrade(To("ledger-v2"), v1::UPGRADE_PHASE_COMPLETED));
  ASSERT_NO_FATAL_FAILURE(ExpectEndedInOrder(*first_));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(2));
  // It does not know the place in the arena where others are asked to end.
  EXPECT_THAT(first_->process->LogTail(), Not(HasSubstr("asked to end")));
  // The program before is started with the environment that makes it one of the layout before.
  const auto back = cluster_->operators().Rollback(RollbackOf("ledger"));
  ASSERT_OK(back);
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(back->upgrade().id(), v1::UPGRADE_PHASE_COMPLETED));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  ASSERT_NO_FATAL_FAILURE(Upgrade(To("ledger-v2"), v1::UPGRADE_PHASE_COMPLETED));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(2));
  ExpectNothingLost();
}

TEST_F(UpgradeTest, shouldNotWriteStateThatTheOldProgramCannotReadUnlessToldTo) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const std::vector<std::string> writes_two = {"--reads-state-version-max", "2",
                                               "--writes-state-version", "2"};
  v1::Upgrade upgrade;
  ASSERT_NO_FATAL_FAILURE(Upgrade(ToFaulty(writes_two), v1::UPGRADE_PHASE_FAILED, &upgrade));
  EXPECT_THAT(upgrade.detail(),
              AllOf(HasSubstr("writes state version 2"), HasSubstr("--no-rollback")));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  // Nor one that cannot read what is there, whatever it is told.
  harness::UpgradeOptions blind =
      ToFaulty({"--reads-state-version-min", "2", "--reads-state-version-max", "2",
                "--writes-state-version", "2"});
  blind.plan.set_no_rollback(true);
  ASSERT_NO_FATAL_FAILURE(Upgrade(blind, v1::UPGRADE_PHASE_FAILED, &upgrade));
  EXPECT_THAT(upgrade.detail(), HasSubstr("state"));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  // Both can: it reads what is there, and nobody goes back.
  harness::UpgradeOptions told = ToFaulty(writes_two);
  told.plan.set_no_rollback(true);
  ASSERT_NO_FATAL_FAILURE(Upgrade(told, v1::UPGRADE_PHASE_COMPLETED, &upgrade));
  EXPECT_TRUE(upgrade.no_rollback());
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(2));
  ASSERT_NO_FATAL_FAILURE(ExpectEndedInOrder(*first_));
  // The program before does not read the accounts any more.
  const auto back = cluster_->operators().Rollback(RollbackOf("ledger"));
  ASSERT_OK(back);
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(back->upgrade().id(), v1::UPGRADE_PHASE_FAILED, &upgrade));
  EXPECT_THAT(upgrade.detail(), HasSubstr("2"));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(2));
  ExpectNothingLost();
}

class CommandLine : public UpgradeTest {
 protected:
  std::unique_ptr<harness::ChildProcess> Baton(std::vector<std::string> arguments) {
    harness::ChildOptions options;
    const auto program = harness::Binaries().Find("baton");
    EXPECT_TRUE(program.ok()) << program.status();
    if (!program.ok()) return nullptr;
    options.program = *program;
    options.log_path = absl::StrCat(cluster_->directory(), "/baton-", ++commands_, ".log");
    options.arguments = {"--socket", cluster_->OperatorSocketPath()};
    options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
    auto started = harness::ChildProcess::Start(options);
    EXPECT_TRUE(started.ok()) << started.status();
    return started.ok() ? *std::move(started) : nullptr;
  }

  static int ExitStatus(harness::ChildProcess& process) {
    const auto end = process.WaitEnd(kTimeout);
    EXPECT_TRUE(end.ok()) << end.status();
    return end.ok() && WIFEXITED(*end) ? WEXITSTATUS(*end) : -1;
  }

  std::string Program(const std::string& name) {
    const auto program = harness::Binaries().Find(name);
    EXPECT_TRUE(program.ok()) << program.status();
    return program.ok() ? *program : "";
  }

 private:
  int commands_ = 0;
};

TEST_F(CommandLine, shouldUpgradeAndGoBack) {
  ASSERT_NO_FATAL_FAILURE(Start());
  auto upgrade =
      Baton({"upgrade", "ledger", "--exec", Program("ledger-v2"), "--watch-window", "0.2"});
  ASSERT_TRUE(upgrade);
  EXPECT_EQ(ExitStatus(*upgrade), 0) << upgrade->LogTail();
  EXPECT_THAT(upgrade->LogTail(), HasSubstr("upgrade 1 of service ledger: completed\n"));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(2));
  auto rollback = Baton({"rollback", "ledger", "--watch-window", "0.2"});
  ASSERT_TRUE(rollback);
  EXPECT_EQ(ExitStatus(*rollback), 0) << rollback->LogTail();
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  auto history = Baton({"upgrades", "list", "ledger"});
  ASSERT_TRUE(history);
  EXPECT_EQ(ExitStatus(*history), 0) << history->LogTail();
  const auto title = history->ReadLine(kTimeout);
  ASSERT_OK(title);
  EXPECT_THAT(*title, StartsWith("UPGRADE  VERSIONS"));
  const auto newest = history->ReadLine(kTimeout);
  ASSERT_OK(newest);
  EXPECT_THAT(*newest, AllOf(StartsWith("      2  v2 -> v1"), HasSubstr("completed")));
  ExpectNothingLost();
}

TEST_F(CommandLine, shouldFailWithTheReasonWhenItWentBack) {
  ASSERT_NO_FATAL_FAILURE(Start());
  std::vector<std::string> arguments = {
      "upgrade", "ledger", "--exec", Program("ledger-faulty"), "--watch-window", "60", "--"};
  for (const std::string& argument : cluster_->LedgerArguments("ledger-faulty")) {
    arguments.push_back(argument);
  }
  arguments.insert(arguments.end(), {"--fault", "turn-unhealthy"});
  auto upgrade = Baton(arguments);
  ASSERT_TRUE(upgrade);
  EXPECT_EQ(ExitStatus(*upgrade), 1) << upgrade->LogTail();
  EXPECT_THAT(upgrade->LogTail(), AllOf(HasSubstr("upgrade 1 of service ledger: rolled back"),
                                        HasSubstr("says that it is unhealthy\n")));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  ExpectNothingLost();
}

TEST_F(CommandLine, shouldWaitOverADeathOfControl) {
  ASSERT_NO_FATAL_FAILURE(Start());
  auto upgrade =
      Baton({"upgrade", "ledger", "--exec", Program("ledger-v2"), "--watch-window", "3"});
  ASSERT_TRUE(upgrade);
  ASSERT_NO_FATAL_FAILURE(WaitForPhase(1, v1::UPGRADE_PHASE_WATCHING));
  const auto status = cluster_->operators().GetStatus();
  ASSERT_OK(status);
  ASSERT_EQ(kill(status->control_pid(), SIGKILL), 0);
  EXPECT_EQ(ExitStatus(*upgrade), 0) << upgrade->LogTail();
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(2));
  ExpectNothingLost();
}

}  // namespace
}  // namespace baton::upgrade
