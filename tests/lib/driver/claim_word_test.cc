#include "lib/driver/claim_word.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace baton::driver {
namespace {

constexpr uint32_t kFormerSlot = 1, kLaterSlot = 2;

class ClaimWordTest : public ::testing::Test {
 protected:
  uint32_t sequence() const { return arena::OwnershipSequence(word.load()); }

  uint64_t value = arena::PackOwnership(0, arena::kNobody);
  uint64_t changes = 0;
  ClaimWord word{&value, &changes};
};

TEST_F(ClaimWordTest, shouldMoveByAClaim) {
  ASSERT_TRUE(word.Claim(word.load(), kLaterSlot));
  EXPECT_EQ(word.epoch(), 0u);
  EXPECT_EQ(word.slot(), arena::kClaim | kLaterSlot);
  const std::optional<uint64_t> taken = word.Take(word.load());
  ASSERT_TRUE(taken);
  EXPECT_EQ(*taken, word.load());
  EXPECT_EQ(word.epoch(), 1u);
  EXPECT_EQ(word.slot(), kLaterSlot);
}

TEST_F(ClaimWordTest, shouldRefuseWhatComesTooLate) {
  word.Store(1, kFormerSlot);
  const uint64_t seen = word.load();
  ASSERT_TRUE(word.Claim(seen, kLaterSlot));
  const uint64_t claim = word.load();
  EXPECT_FALSE(word.Claim(seen, kFormerSlot));
  EXPECT_FALSE(word.Vacate(seen));
  EXPECT_FALSE(word.Take(seen));
  EXPECT_EQ(word.load(), claim);
}

// A claimant has seen the claim of a dead process, and stops before its swap. Meanwhile
// `baton-driver` takes the dead one out of the word, and another process gets its slot and claims.
// The word has the same epoch and slot as before.
TEST_F(ClaimWordTest, shouldRefuseAClaimOnWhatTheWordSaysAgain) {
  ASSERT_TRUE(word.Claim(word.load(), kLaterSlot));
  const uint64_t seen = word.load();
  ASSERT_TRUE(word.Vacate(seen));
  EXPECT_EQ(word.slot(), arena::kNobody);
  ASSERT_TRUE(word.Claim(word.load(), kLaterSlot));
  ASSERT_EQ(arena::OwnershipEpoch(seen), word.epoch());
  ASSERT_EQ(arena::OwnershipSlot(seen), word.slot());
  EXPECT_FALSE(word.Claim(seen, kFormerSlot));
  EXPECT_FALSE(word.Vacate(seen));
  EXPECT_FALSE(word.Take(seen));
  EXPECT_EQ(word.slot(), arena::kClaim | kLaterSlot);
}

TEST_F(ClaimWordTest, shouldNeverForgetAClaim) {
  word.Store(1, kFormerSlot);
  EXPECT_EQ(sequence(), 0u);
  ASSERT_TRUE(word.Claim(word.load(), kLaterSlot));
  EXPECT_EQ(sequence(), 1u);
  ASSERT_TRUE(word.Take(word.load()));
  EXPECT_EQ(sequence(), 1u);
  ASSERT_TRUE(word.Vacate(word.load()));
  EXPECT_EQ(sequence(), 1u);
  ASSERT_TRUE(word.Claim(word.load(), kFormerSlot));
  ASSERT_TRUE(word.Vacate(word.load()));
  word.Store(9, kLaterSlot);
  EXPECT_EQ(sequence(), 2u);
}

TEST_F(ClaimWordTest, shouldCountEachChange) {
  ASSERT_TRUE(word.Claim(word.load(), kLaterSlot));
  EXPECT_EQ(changes, 1u);
  ASSERT_FALSE(word.Claim(0, kFormerSlot));
  EXPECT_EQ(changes, 1u);
  ASSERT_TRUE(word.Take(word.load()));
  ASSERT_TRUE(word.Vacate(word.load()));
  word.Store(7, kFormerSlot);
  word.Announce();
  EXPECT_EQ(changes, 5u);
}

// Each counts with the word in its hands, without any other protection.
TEST_F(ClaimWordTest, shouldBelongToOneAtATime) {
  constexpr uint32_t kThreads = 4, kTurns = 2000;
  uint32_t counted = 0;
  const auto count = [&](uint32_t slot) {
    for (uint32_t turn = 0; turn < kTurns;) {
      const uint64_t seen = word.load();
      if (arena::OwnershipSlot(seen) != arena::kNobody || !word.Claim(seen, slot)) {
        std::this_thread::yield();
        continue;
      }
      const std::optional<uint64_t> taken = word.Take(word.load());
      ++counted;
      ++turn;
      EXPECT_TRUE(taken && word.Vacate(*taken));
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t slot = 0; slot < kThreads; ++slot) threads.emplace_back(count, slot);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counted, kThreads * kTurns);
  EXPECT_EQ(word.epoch(), kThreads * kTurns);
  EXPECT_EQ(sequence(), kThreads * kTurns % arena::kClaimSequences);
  EXPECT_EQ(changes, 3 * kThreads * kTurns);
}

}  // namespace
}  // namespace baton::driver
