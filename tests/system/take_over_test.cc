// A new program is started as by a service manager, takes the shards over by itself, and its peers
// do not notice. A bad one gives them back.
#include <signal.h>
#include <sys/wait.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/harness/baton_command.h"
#include "tests/harness/wait_until.h"
#include "tests/system/upgrade_fixture.h"

namespace baton::upgrade {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

class TakeOverTest : public UpgradeTest {
 protected:
  void StartWatching(uint32_t window_ms) { Start({"--watch-window-ms", absl::StrCat(window_ms)}); }

  static harness::LedgerOptions Taker(int version) {
    harness::LedgerOptions options;
    options.version = version;
    options.arguments = {"--take-over"};
    return options;
  }
};

TEST_F(TakeOverTest, shouldUpgradeByStartingTheNewProgram) {
  ASSERT_NO_FATAL_FAILURE(StartWatching(kShortMs));
  std::unique_ptr<harness::LedgerWorker> serving = std::move(first_);
  uint64_t id = 0;
  for (const int version : {2, 1, 2}) {
    SCOPED_TRACE(version);
    auto taker = cluster_->StartLedger(Taker(version));
    ASSERT_OK(taker);
    v1::Upgrade upgrade;
    ASSERT_NO_FATAL_FAILURE(ExpectEnd(++id, v1::UPGRADE_PHASE_COMPLETED, &upgrade));
    EXPECT_THAT(upgrade.taken_over_by(), HasSubstr(absl::StrCat("worker ", (*taker)->id, " (")));
    EXPECT_EQ(upgrade.new_version(), absl::StrCat("v", version));
    EXPECT_TRUE(cluster_->OwnsAllShards((*taker)->id));
    ASSERT_NO_FATAL_FAILURE(ExpectServedBy(static_cast<uint32_t>(version)));
    ASSERT_NO_FATAL_FAILURE(ExpectEndedInOrder(*serving));
    ASSERT_NO_FATAL_FAILURE(ExpectWorkers({(*taker)->id}));
    serving = *std::move(taker);
  }
  const harness::CommandResult list =
      harness::RunBaton(*cluster_, {"upgrades", "list", "ledger", "-o", "wide"});
  EXPECT_EQ(list.status, 0) << list.err;
  EXPECT_THAT(list.out, AllOf(HasSubstr("take-over"), HasSubstr("took over by itself")));
  ExpectNothingLost();
}

TEST_F(TakeOverTest, shouldGoBackWhenTheNewProgramIsSick) {
  ASSERT_NO_FATAL_FAILURE(StartWatching(kLongMs));
  harness::LedgerOptions sick = Taker(2);
  sick.program = "ledger-faulty";
  sick.arguments.insert(sick.arguments.end(), {"--fault", "turn-unhealthy"});
  const auto taker = cluster_->StartLedger(sick);
  ASSERT_OK(taker);
  v1::Upgrade upgrade;
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(1, v1::UPGRADE_PHASE_ROLLED_BACK, &upgrade));
  EXPECT_THAT(upgrade.detail(), HasSubstr("unhealthy"));
  ASSERT_NO_FATAL_FAILURE(ExpectEndedInOrder(**taker));
  ASSERT_NO_FATAL_FAILURE(ExpectWorkers({first_->id}));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  ExpectNothingLost();
}

TEST_F(TakeOverTest, shouldGoBackWhenTheNewProgramDiesAndHoldItOff) {
  ASSERT_NO_FATAL_FAILURE(StartWatching(kLongMs));
  const auto taker = cluster_->StartLedger(Taker(2));
  ASSERT_OK(taker);
  ASSERT_NO_FATAL_FAILURE(WaitForPhase(1, v1::UPGRADE_PHASE_WATCHING));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(2));
  ASSERT_OK((*taker)->process->Kill());
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(1, v1::UPGRADE_PHASE_ROLLED_BACK));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  // A service manager starts it again.
  const auto again = cluster_->SpawnLedger(Taker(2));
  ASSERT_OK(again);
  const auto end = (*again)->WaitEnd(kTimeout);
  ASSERT_OK(end);
  EXPECT_TRUE(WIFEXITED(*end) && WEXITSTATUS(*end) == 1) << *end;
  EXPECT_THAT((*again)->LogTail(), HasSubstr("start another version"));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  ExpectNothingLost();
}

TEST_F(TakeOverTest, shouldNotStartWhereThePolicyForbidsIt) {
  ASSERT_NO_FATAL_FAILURE(StartWatching(kLongMs));
  ASSERT_EQ(harness::SetPolicy(*cluster_, "workers_may_take_over: false").status, 0);
  const auto taker = cluster_->SpawnLedger(Taker(2));
  ASSERT_OK(taker);
  const auto end = (*taker)->WaitEnd(kTimeout);
  ASSERT_OK(end);
  EXPECT_TRUE(WIFEXITED(*end) && WEXITSTATUS(*end) == 1) << *end;
  EXPECT_THAT((*taker)->LogTail(), HasSubstr("workers_may_take_over"));
  EXPECT_TRUE(cluster_->OwnsAllShards(first_->id));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(1));
  ExpectNothingLost();
}

TEST_F(TakeOverTest, shouldBeContinuedByTheKeeperThatFollows) {
  ASSERT_NO_FATAL_FAILURE(StartWatching(3000));
  const auto taker = cluster_->StartLedger(Taker(2));
  ASSERT_OK(taker);
  ASSERT_NO_FATAL_FAILURE(WaitForPhase(1, v1::UPGRADE_PHASE_WATCHING));
  ASSERT_NO_FATAL_FAILURE(ReplaceKeeper());
  v1::Upgrade upgrade;
  ASSERT_NO_FATAL_FAILURE(ExpectEnd(1, v1::UPGRADE_PHASE_COMPLETED, &upgrade));
  EXPECT_THAT(upgrade.taken_over_by(), HasSubstr("worker "));
  ASSERT_NO_FATAL_FAILURE(ExpectEndedInOrder(*first_));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(2));
  ExpectNothingLost();
}

// The keeper dies while the worker asks, while the upgrade begins, or while the shards are on their
// way. In the last case they go back.
TEST_F(TakeOverTest, shouldHaveAnEndWheneverTheKeeperDies) {
  ASSERT_NO_FATAL_FAILURE(StartWatching(kShortMs));
  harness::LedgerOptions options = Taker(2);
  options.await_control = false;
  const auto before = cluster_->GetService();
  ASSERT_OK(before);
  const auto taker = cluster_->StartLedger(options);
  ASSERT_OK(taker);
  ASSERT_EQ(kill(before->service().keeper_pid(), SIGKILL), 0);
  const auto ended = cluster_->WaitUntilUpgradeEnds(1);
  ASSERT_OK(ended);
  const bool completed = ended->phase() == v1::UPGRADE_PHASE_COMPLETED;
  EXPECT_THAT(ended->phase(), AnyOf(v1::UPGRADE_PHASE_COMPLETED, v1::UPGRADE_PHASE_ROLLED_BACK))
      << ended->ShortDebugString();
  ASSERT_NO_FATAL_FAILURE(ExpectEndedInOrder(completed ? *first_ : **taker));
  ASSERT_NO_FATAL_FAILURE(ExpectServedBy(completed ? 2 : 1));
  ExpectNothingLost();
}

}  // namespace
}  // namespace baton::upgrade
