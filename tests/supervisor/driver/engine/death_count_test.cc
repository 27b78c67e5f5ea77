#include "supervisor/driver/engine/death_count.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/driver/ownership.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::driver_process {
namespace {

using Blame = DeathCount::Blame;
using ::testing::ElementsAre;

constexpr uint32_t kLimit = 3;

Death On(uint64_t completion, uint64_t acknowledged, uint64_t worker = 1) {
  Death death;
  death.worker_id = worker;
  death.acknowledged = acknowledged;
  death.handling = completion;
  return death;
}
Death InTheDark(uint64_t acknowledged, uint64_t worker = 1) {
  Death death;
  death.worker_id = worker;
  death.acknowledged = acknowledged;
  death.in_the_dark = true;
  return death;
}
Death Idle(uint64_t acknowledged) {
  Death death;
  death.acknowledged = acknowledged;
  return death;
}

class DeathCountTest : public testing::Test {
 protected:
  Blame Add(const Death& death) { return count.Add(death, kLimit); }
  DeathCount count;
};

TEST_F(DeathCountTest, shouldBlameTheCompletionOnWhichSoManyDied) {
  EXPECT_EQ(Add(On(12, 10, 7)), Blame::kNobody);
  EXPECT_EQ(Add(On(12, 10, 8)), Blame::kNobody);
  EXPECT_EQ(Add(On(12, 10, 9)), Blame::kSuspect);
  EXPECT_EQ(count.suspect(), 12u);
  EXPECT_EQ(count.DeathsOf(Blame::kSuspect), 3u);
  EXPECT_THAT(count.WorkersOf(Blame::kSuspect), ElementsAre(7, 8, 9));
}

TEST_F(DeathCountTest, shouldBlameAtTheFirstDeathWhenTheLimitIsOne) {
  EXPECT_EQ(count.Add(On(0, 0), 1), Blame::kSuspect);
}

TEST_F(DeathCountTest, shouldNeverBlameWithTheLargestLimit) {
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(count.Add(On(5, 5), UINT32_MAX), Blame::kNobody);
}

TEST_F(DeathCountTest, shouldStartAnewWhenThereWasProgress) {
  Add(On(12, 10));
  Add(On(12, 10));
  EXPECT_EQ(Add(On(40, 30)), Blame::kNobody);
  EXPECT_EQ(count.DeathsOf(Blame::kSuspect), 1u);
  EXPECT_EQ(Add(On(40, 30)), Blame::kNobody);
  EXPECT_EQ(Add(On(40, 30)), Blame::kSuspect);
  EXPECT_EQ(count.suspect(), 40u);
}

TEST_F(DeathCountTest, shouldKnowWhatWasThereAtEveryDeath) {
  for (const uint64_t logged : {12, 13, 20}) {
    Death death = InTheDark(10);
    death.logged = logged;
    EXPECT_EQ(Add(death), logged < 20 ? Blame::kNobody : Blame::kOldest);
    EXPECT_EQ(count.logged(), 12u);
  }
  count.Clear();
  Death later = InTheDark(10);
  later.logged = 20;
  Add(later);
  EXPECT_EQ(count.logged(), 20u);
}

// One commits after each batch, the next after each completion.
TEST_F(DeathCountTest, shouldNotTakeItForProgressThatAnOwnerComesNearerToTheSame) {
  Add(On(12, 10));
  Add(On(12, 12));
  EXPECT_EQ(Add(On(12, 12)), Blame::kSuspect);
}

// A coincidence does not make an innocent guilty, nor the guilty innocent.
TEST_F(DeathCountTest, shouldNotBlameOneOnWhichAnOwnerDiedOnce) {
  Add(On(12, 10, 1));
  Add(On(11, 10, 2));
  EXPECT_EQ(Add(On(12, 10, 3)), Blame::kNobody);
  EXPECT_EQ(Add(On(12, 10, 4)), Blame::kNobody);
  EXPECT_EQ(Add(On(12, 10, 5)), Blame::kSuspect);
  EXPECT_EQ(count.suspect(), 12u);
  EXPECT_THAT(count.WorkersOf(Blame::kSuspect), ElementsAre(3, 4, 5));
}

TEST_F(DeathCountTest, shouldBlameTheOldestWhenNobodyTellsWhatItDiedOn) {
  EXPECT_EQ(Add(InTheDark(10, 1)), Blame::kNobody);
  EXPECT_EQ(Add(InTheDark(10, 2)), Blame::kNobody);
  EXPECT_EQ(Add(InTheDark(10, 3)), Blame::kOldest);
  EXPECT_THAT(count.WorkersOf(Blame::kOldest), ElementsAre(1, 2, 3));
}

TEST_F(DeathCountTest, shouldStartAnewInTheDarkWhenThereWasProgress) {
  for (uint64_t i = 0; i < 20; ++i) ASSERT_EQ(Add(InTheDark(i)), Blame::kNobody);
}

TEST_F(DeathCountTest, shouldBlameTheOldestAtLastWhenOwnersTellDifferentThings) {
  for (uint64_t i = 0; i < 2 * kLimit - 1; ++i) ASSERT_EQ(Add(On(10 + i, 10)), Blame::kNobody);
  EXPECT_EQ(Add(On(30, 10)), Blame::kOldest);
}

// An upgrade may go back and forth between a version that tells and one that does not.
TEST_F(DeathCountTest, shouldBelieveTheOwnersThatTell) {
  Add(On(12, 10, 1));
  Add(InTheDark(10, 2));
  Add(On(12, 10, 3));
  Add(InTheDark(10, 4));
  EXPECT_EQ(Add(On(12, 10, 5)), Blame::kSuspect);
  EXPECT_THAT(count.WorkersOf(Blame::kSuspect), ElementsAre(1, 3, 5));
}

TEST_F(DeathCountTest, shouldNotCountOwnersThatDealtWithNothing) {
  for (int i = 0; i < 100; ++i) ASSERT_EQ(Add(Idle(10)), Blame::kNobody);
  Add(On(12, 10));
  Add(On(12, 10));
  EXPECT_EQ(Add(Idle(10)), Blame::kNobody);
  EXPECT_EQ(Add(On(12, 10)), Blame::kSuspect);
}

TEST_F(DeathCountTest, shouldRememberABoundedNumberOfWorkers) {
  for (uint64_t i = 0; i < 100; ++i) count.Add(On(12, 10, i), UINT32_MAX);
  EXPECT_EQ(count.WorkersOf(Blame::kSuspect).size(), DeathCount::kRemembered);
  EXPECT_EQ(count.WorkersOf(Blame::kSuspect).back(), 99u);
}

TEST_F(DeathCountTest, shouldForgetEverythingWhenItIsCleared) {
  Add(On(12, 10));
  Add(On(12, 10));
  count.Clear();
  EXPECT_EQ(Add(On(12, 10)), Blame::kNobody);
  EXPECT_EQ(count.DeathsOf(Blame::kSuspect), 1u);
}

// ---- What the arena says of a death.

class DescribeDeathTest : public testing::Test {
 protected:
  // An owner that adopted, with 10 completions acknowledged and 20 in the log.
  void SetUp() override {
    ownership.GiveTo(1, 77);
    arena.shard(0).commit_head = arena::PackCursor(1, 1);
    arena.shard(0).acknowledged = 10;
    arena.shard(0).completion_tail = 20;
    bank.read_cursor = 10;
  }
  Death Die() {
    ownership.End(/*released=*/false);
    return DescribeDeath(arena, 0, 1, 77, logged);
  }

  arena::Arena arena = arena::Arena::Create(driver::testing::TestShape(), "kv").value();
  driver::Ownership ownership{&arena, 0};
  arena::BankHeader& bank = arena.bank(0, 1);
  uint64_t logged = 20;
};

TEST_F(DescribeDeathTest, shouldNameTheCompletionInWhoseHandlerItWas) {
  bank.handling = 15;
  const Death death = Die();
  EXPECT_EQ(death.worker_id, 77u);
  EXPECT_EQ(death.acknowledged, 10u);
  EXPECT_EQ(death.handling, 14u);
  EXPECT_FALSE(death.in_the_dark);
}

TEST_F(DescribeDeathTest, shouldSayNothingOfAnOwnerThatDealtWithNothing) {
  bank.handling = 0;
  const Death death = Die();
  EXPECT_FALSE(death.handling);
  EXPECT_FALSE(death.in_the_dark);
}

TEST_F(DescribeDeathTest, shouldBeInTheDarkOutsideOfHandlers) {
  bank.handling = 0;
  bank.read_cursor = 13;
  EXPECT_TRUE(Die().in_the_dark);
}

TEST_F(DescribeDeathTest, shouldNotTakeWhatWasAcknowledgedForASuspect) {
  bank.handling = 10;
  const Death death = Die();
  EXPECT_FALSE(death.handling);
  EXPECT_FALSE(death.in_the_dark);
}

TEST_F(DescribeDeathTest, shouldNotBelieveWhatCannotBe) {
  for (const uint64_t handling : {uint64_t{21}, uint64_t{1} << 40, ~uint64_t{0} - 1}) {
    bank.handling = handling;
    EXPECT_FALSE(DescribeDeath(arena, 0, 1, 77, logged).handling);
  }
  bank.handling = 0;
  bank.read_cursor = ~uint64_t{0};
  arena.shard(0).completion_tail = 10;
  EXPECT_FALSE(Die().in_the_dark);
}

TEST_F(DescribeDeathTest, shouldBeInTheDarkAboutAWorkerOfLayoutVersionOne) {
  EXPECT_EQ(bank.handling, arena::kHandlingNotTold);
  EXPECT_TRUE(Die().in_the_dark);
}

// A successor logs the completions that it recovers before it counts the death.
TEST_F(DescribeDeathTest, shouldNotBeInTheDarkAboutCompletionsThatCameAfterIt) {
  logged = 10;
  EXPECT_FALSE(Die().in_the_dark);
}

TEST_F(DescribeDeathTest, shouldNotBelieveThatItHandledWhatCameAfterIt) {
  logged = 14;
  bank.handling = 15;
  EXPECT_FALSE(Die().handling);
}

TEST_F(DescribeDeathTest, shouldNotBlameCompletionsForADeathWhileItAdopted) {
  arena.shard(0).commit_head = arena::PackCursor(1, 0);
  bank.handling = 15;
  bank.read_cursor = 15;
  const Death death = Die();
  EXPECT_FALSE(death.handling);
  EXPECT_FALSE(death.in_the_dark);
}

TEST_F(DescribeDeathTest, shouldNotTakeAFormerOwnersWordForItsSuccessors) {
  bank.handling = 15;
  bank.read_cursor = 15;
  bank.heap_kept = bank.heap_scratch = bank.heap_held = bank.heap_largest = 64;
  bank.heap_free = bank.heap_rest = 64;
  ownership.End(/*released=*/true);
  for (uint32_t i = 0; i < arena::kCommitBanks; ++i) {
    if (ownership.owned()) ownership.End(/*released=*/true);
    ownership.GiveTo(1, 78);
  }
  ASSERT_EQ(&arena.bank(0, ownership.epoch()), &bank);
  EXPECT_EQ(bank.handling, arena::kHandlingNotTold);
  EXPECT_EQ(bank.read_cursor, 10u);
  EXPECT_EQ(bank.heap_kept + bank.heap_scratch + bank.heap_held + bank.heap_largest, 0u);
  EXPECT_EQ(bank.heap_free + bank.heap_rest, 0u);
}

}  // namespace
}  // namespace baton::driver_process
