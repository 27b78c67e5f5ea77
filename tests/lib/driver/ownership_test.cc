#include "lib/driver/ownership.h"

#include <gtest/gtest.h>

#include "lib/arena/arena.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::driver {
namespace {

constexpr uint64_t kAnn = 11, kBob = 22;  // worker ids
constexpr uint32_t kAnnsSlot = 1, kBobsSlot = 2;

class OwnershipTest : public ::testing::Test {
 protected:
  arena::Arena arena = arena::Arena::Create(testing::TestShape(), "kv").value();
  Ownership ownership{&arena, 0};
  arena::OwnershipRecord& record = arena.shard(0).owner;
};

TEST_F(OwnershipTest, shouldBelongToNobodyAtFirst) {
  EXPECT_FALSE(ownership.owned());
  EXPECT_EQ(ownership.epoch(), 0u);
  EXPECT_EQ(ownership.owner_id(), 0u);
  EXPECT_TRUE(ownership.CanGive());
}

TEST_F(OwnershipTest, shouldBeginAnEpochWithAnEmptyBank) {
  arena.bank(0, 1).tail = ~uint64_t{0};
  arena.bank(0, 1).read_cursor = 99;
  arena.shard(0).acknowledged = 5;
  const uint64_t changes = arena.header().ownership_changes;
  ownership.GiveTo(kAnnsSlot, kAnn);
  EXPECT_TRUE(ownership.owned());
  EXPECT_EQ(ownership.epoch(), 1u);
  EXPECT_EQ(ownership.owner_slot(), kAnnsSlot);
  EXPECT_EQ(ownership.owner_id(), kAnn);
  EXPECT_EQ(arena.bank(0, 1).tail, arena::PackCursor(1, 0));
  EXPECT_EQ(arena.bank(0, 1).read_cursor, 5u);
  EXPECT_EQ(arena.shard(0).commit_head, arena::PackCursor(1, 0));
  EXPECT_NE(arena.header().ownership_changes, changes);
}

TEST_F(OwnershipTest, shouldRecordTheCutWhenAnEpochEnds) {
  ownership.GiveTo(kAnnsSlot, kAnn);
  arena.shard(0).commit_head = arena::PackCursor(1, 7);
  const uint64_t changes = arena.header().ownership_changes;
  ownership.End(/*released=*/false);
  EXPECT_FALSE(ownership.owned());
  EXPECT_EQ(ownership.epoch(), 1u);
  EXPECT_EQ(ownership.owner_id(), 0u);
  EXPECT_EQ(record.cut_epoch, 1u);
  EXPECT_EQ(record.cut_tail, 7u);
  EXPECT_NE(arena.header().ownership_changes, changes);
}

TEST_F(OwnershipTest, shouldGiveEachEpochTheNextBank) {
  for (uint64_t epoch = 1; epoch <= 10; ++epoch) {
    ownership.GiveTo(kAnnsSlot, kAnn);
    EXPECT_EQ(ownership.epoch(), epoch);
    ownership.End(/*released=*/true);
  }
}

TEST_F(OwnershipTest, shouldNotReuseABankBeforeItsWriterIsProvenDead) {
  for (uint64_t worker = 1; worker <= arena::kCommitBanks; ++worker) {
    ASSERT_TRUE(ownership.CanGive()) << worker;
    ownership.GiveTo(0, worker);
    ownership.End(/*released=*/false);
  }
  EXPECT_FALSE(ownership.CanGive());
  ownership.ProveDead(77);  // somebody else
  EXPECT_FALSE(ownership.CanGive());
  ownership.ProveDead(3);
  ASSERT_TRUE(ownership.CanGive());
  ownership.GiveTo(0, 9);
  // The banks of 1 (epoch 1) and 2 (epoch 2) are skipped: 7 is the next epoch of the third bank.
  EXPECT_EQ(ownership.epoch(), 7u);
  EXPECT_EQ(ownership.epoch() % arena::kCommitBanks, 3u);
  ownership.End(/*released=*/false);
  EXPECT_FALSE(ownership.CanGive());
}

TEST_F(OwnershipTest, shouldFreeEveryBankOfADeadWriter) {
  for (uint64_t i = 1; i <= arena::kCommitBanks; ++i) {
    ownership.GiveTo(0, i % 2 == 0 ? kAnn : kBob);
    ownership.End(/*released=*/false);
  }
  ownership.ProveDead(kAnn);
  ownership.GiveTo(0, 1);
  EXPECT_EQ(ownership.epoch(), 6u);
  ownership.End(/*released=*/true);
  ownership.GiveTo(0, 2);
  EXPECT_EQ(ownership.epoch() % 2, 0u);
}

TEST_F(OwnershipTest, shouldSkipTheBankOfAFencedOwner) {
  ownership.GiveTo(kAnnsSlot, kAnn);  // epoch 1
  ownership.End(/*released=*/false);
  for (uint64_t epoch : {2, 3, 4}) {
    ownership.GiveTo(kBobsSlot, kBob);
    EXPECT_EQ(ownership.epoch(), epoch);
    ownership.End(/*released=*/true);
  }
  ownership.GiveTo(kBobsSlot, kBob);
  EXPECT_EQ(ownership.epoch(), 6u);  // 5 would use Ann's bank
}

TEST_F(OwnershipTest, shouldBeKnownToTheDriverThatFollows) {
  for (uint64_t worker = 1; worker <= arena::kCommitBanks; ++worker) {
    ownership.GiveTo(0, worker);
    ownership.End(/*released=*/false);
  }
  Ownership next(&arena, 0);
  EXPECT_FALSE(next.CanGive());
  next.ProveDead(2);
  next.GiveTo(kAnnsSlot, kAnn);
  EXPECT_EQ(next.epoch(), 6u);
  EXPECT_EQ(Ownership(&arena, 0).owner_id(), kAnn);
}

// A driver that gives the shard to Ann dies between each two stores.
TEST_F(OwnershipTest, shouldGiveAgainWhatADeadDriverHasNotGiven) {
  ownership.GiveTo(0, 1);
  ownership.End(/*released=*/false);
  const uint64_t before = record.ownership;
  ownership.GiveTo(kAnnsSlot, kAnn);
  for (const bool writer_noted : {true, false}) {
    record.ownership = before;
    if (!writer_noted) arena.succession(0).writers[2] = 0;
    Ownership next(&arena, 0);
    ASSERT_TRUE(next.CanGive());
    next.GiveTo(kBobsSlot, kBob);
    EXPECT_EQ(next.epoch(), 2u);
    EXPECT_EQ(next.owner_id(), kBob);
    EXPECT_EQ(arena.succession(0).writers[2], kBob);
  }
}

// A bank before the prepared one has become free meanwhile: taking it would leave a writer behind.
TEST_F(OwnershipTest, shouldBeginTheEpochThatADeadDriverHasPrepared) {
  ownership.GiveTo(0, 1);
  ownership.End(/*released=*/false);
  arena.succession(0).writers[2] = kAnn;
  const uint64_t before = record.ownership;
  ownership.GiveTo(kBobsSlot, kBob);
  ASSERT_EQ(ownership.epoch(), 3u);
  record.ownership = before;
  Ownership next(&arena, 0);
  next.ProveDead(kAnn);
  next.GiveTo(kAnnsSlot, 30);
  EXPECT_EQ(next.epoch(), 3u);
  EXPECT_EQ(arena.succession(0).writers[3], 30u);
  EXPECT_EQ(arena.succession(0).writers[2], 0u);
}

// It had noted the release, and died before the word said so.
TEST_F(OwnershipTest, shouldEndAgainWhatADeadDriverHasEndedInPart) {
  ownership.GiveTo(kAnnsSlot, kAnn);
  const uint64_t before = record.ownership;
  ownership.End(/*released=*/true);
  record.ownership = before;
  Ownership next(&arena, 0);
  next.End(/*released=*/true);
  for (uint64_t epoch = 2; epoch <= 1 + arena::kCommitBanks; ++epoch) {
    next.GiveTo(kBobsSlot, kBob);
    EXPECT_EQ(next.epoch(), epoch);
    next.End(/*released=*/false);
  }
  EXPECT_FALSE(next.CanGive());
}

TEST_F(OwnershipTest, shouldAskTheEpochThatIsRunningForItsRelease) {
  ownership.GiveTo(kAnnsSlot, kAnn);
  ownership.End(/*released=*/true);
  ownership.GiveTo(kBobsSlot, kBob);
  EXPECT_FALSE(ownership.release_asked());
  ownership.AskRelease(2);
  EXPECT_TRUE(ownership.release_asked());
  EXPECT_EQ(record.release_requested, 2u);
  ownership.WithdrawRelease();
  EXPECT_FALSE(ownership.release_asked());
  ownership.AskRelease(2);
  ownership.End(/*released=*/true);
  EXPECT_FALSE(ownership.release_asked());
}

TEST_F(OwnershipTest, shouldNotAskTheOwnerOfAnotherEpoch) {
  ownership.GiveTo(kAnnsSlot, kAnn);
  ownership.End(/*released=*/true);
  ownership.GiveTo(kBobsSlot, kBob);
  ownership.AskRelease(1);
  EXPECT_FALSE(ownership.release_asked());
  EXPECT_EQ(record.release_requested, 0u);
  // It was asked in the moment in which its epoch ended.
  record.release_requested = 1;
  EXPECT_FALSE(ownership.release_asked());
}

TEST_F(OwnershipTest, shouldNameOneHeir) {
  ownership.NameHeir(kBob);
  EXPECT_EQ(ownership.heir_id(), kBob);
  ownership.NameHeir(0);
  EXPECT_EQ(ownership.heir_id(), 0u);
}

// ---------------------------------------------------------------- native services

TEST_F(OwnershipTest, shouldMoveByAClaim) {
  ownership.GiveTo(kAnnsSlot, kAnn);
  arena.shard(0).commit_head = arena::PackCursor(1, 7);
  const uint64_t changes = arena.header().ownership_changes;
  ASSERT_TRUE(ownership.Claim(ownership.word(), kBobsSlot));
  EXPECT_NE(arena.header().ownership_changes, changes);
  EXPECT_EQ(ownership.epoch(), 1u);
  EXPECT_EQ(ownership.owner_slot(), arena::kClaim | kBobsSlot);
  ASSERT_TRUE(ownership.TakeClaimed(kBobsSlot, kBob).ok());
  EXPECT_EQ(ownership.epoch(), 2u);
  EXPECT_EQ(ownership.owner_slot(), kBobsSlot);
  EXPECT_EQ(ownership.owner_id(), kBob);
  EXPECT_EQ(record.cut_epoch, 1u);
  EXPECT_EQ(record.cut_tail, 7u);
  EXPECT_EQ(arena.shard(0).commit_head, arena::PackCursor(2, 0));
}

// Bob claimed, began the next epoch, and died before the word said so.
TEST_F(OwnershipTest, shouldKeepTheCutOfAClaimantThatDied) {
  ownership.GiveTo(kAnnsSlot, kAnn);
  arena.shard(0).commit_head = arena::PackCursor(1, 7);
  ASSERT_TRUE(ownership.Claim(ownership.word(), kBobsSlot));
  const uint64_t claim = ownership.word();
  ASSERT_TRUE(ownership.TakeClaimed(kBobsSlot, kBob).ok());
  record.ownership = claim;
  ASSERT_TRUE(ownership.Claim(claim, kAnnsSlot));
  ASSERT_TRUE(ownership.TakeClaimed(kAnnsSlot, kAnn).ok());
  EXPECT_EQ(ownership.epoch(), 2u);
  EXPECT_EQ(record.cut_epoch, 1u);
  EXPECT_EQ(record.cut_tail, 7u);
}

// Another process of a native service has written it.
TEST_F(OwnershipTest, shouldNotTakeWhatAnotherHasClaimedMeanwhile) {
  ASSERT_TRUE(ownership.Claim(ownership.word(), kAnnsSlot));
  record.ownership = arena::PackOwnership(0, arena::kClaim | kBobsSlot);
  EXPECT_EQ(ownership.TakeClaimed(kAnnsSlot, kAnn).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ownership.owner_slot(), arena::kClaim | kBobsSlot);
  EXPECT_EQ(ownership.epoch(), 0u);
  EXPECT_EQ(ownership.owner_id(), 0u);
}

TEST_F(OwnershipTest, shouldHandOverToNobody) {
  ownership.GiveTo(kAnnsSlot, kAnn);
  ownership.AskRelease(1);
  ASSERT_TRUE(ownership.HandOver(ownership.word()));
  EXPECT_FALSE(ownership.owned());
  EXPECT_FALSE(ownership.release_asked());
  EXPECT_EQ(ownership.epoch(), 1u);
}

TEST_F(OwnershipTest, shouldNotHandOverWhatAnotherHasClaimed) {
  ownership.GiveTo(kAnnsSlot, kAnn);
  const uint64_t anns = ownership.word();
  ASSERT_TRUE(ownership.Claim(anns, kBobsSlot));
  EXPECT_FALSE(ownership.HandOver(anns));
  EXPECT_EQ(ownership.owner_slot(), arena::kClaim | kBobsSlot);
  EXPECT_EQ(ownership.owner_id(), kAnn);
}

}  // namespace
}  // namespace baton::driver
