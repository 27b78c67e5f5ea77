#include "lib/driver/completion_log.h"

#include <gtest/gtest.h>

#include "lib/arena/arena.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::driver {
namespace {

class CompletionLogTest : public ::testing::Test {
 protected:
  static arena::CompletionEntry Entry(uint64_t number) {
    arena::CompletionEntry entry = {};
    entry.wr_id = number;
    entry.tag = number + 1000;
    return entry;
  }

  arena::Arena arena = arena::Arena::Create(testing::TestShape(2, 1, 1), "kv").value();
  CompletionLog log{arena, 1};
  arena::ShardRecord& shard = arena.shard(1);
};

TEST_F(CompletionLogTest, shouldShowNothingBeforeItIsPublished) {
  EXPECT_TRUE(log.Append(Entry(1)));
  EXPECT_TRUE(log.Append(Entry(2)));
  EXPECT_EQ(shard.completion_tail, 0u);
  EXPECT_TRUE(log.Publish());
  EXPECT_EQ(shard.completion_tail, 2u);
  EXPECT_EQ(arena.completion(1, 1).tag, 1002u);
  EXPECT_FALSE(log.Publish());
  EXPECT_EQ(arena.shard(0).completion_tail, 0u);
}

TEST_F(CompletionLogTest, shouldMarkTheSlotBehindTheLastAsNotFilled) {
  const uint32_t entries = arena.shape().completion_log_entries;
  for (uint64_t i = 0; i < 3 * entries; ++i) {
    EXPECT_TRUE(log.Append(Entry(i)));
    EXPECT_EQ(arena.completion(1, i + 1).wr_id, arena::kInvalidWrId);
    shard.acknowledged = i + 1;
  }
}

TEST_F(CompletionLogTest, shouldGoOnWhereAFormerDriverPublished) {
  EXPECT_TRUE(log.Append(Entry(1)));
  log.Publish();
  EXPECT_TRUE(log.Append(Entry(2)));  // never published
  CompletionLog successor(arena, 1);
  EXPECT_TRUE(successor.Append(Entry(3)));
  successor.Publish();
  EXPECT_EQ(shard.completion_tail, 2u);
  EXPECT_EQ(arena.completion(1, 1).tag, 1003u);
}

// What another process of a native service has written over it ends its driver, and nothing else.
TEST_F(CompletionLogTest, shouldRatherBreakThanOverwriteWhatWasNotAcknowledged) {
  const uint32_t entries = arena.shape().completion_log_entries;
  for (uint64_t i = 0; i < entries; ++i) EXPECT_TRUE(log.Append(Entry(i)));
  EXPECT_TRUE(log.Publish());
  EXPECT_EQ(log.broken(), nullptr);
  for (uint64_t i = 0; i < 3; ++i) EXPECT_FALSE(log.Append(Entry(77)));
  EXPECT_NE(log.broken(), nullptr);
  EXPECT_FALSE(log.Publish());
  EXPECT_EQ(shard.completion_tail, entries);
  EXPECT_EQ(arena.completion(1, 1).wr_id, 1u);
  EXPECT_EQ(arena.completion(1, 1).tag, 1001u);
}

TEST_F(CompletionLogTest, shouldBreakWhenMoreIsAcknowledgedThanWasAppended) {
  shard.acknowledged = 1;
  EXPECT_EQ(log.oldest(), log.tail());
  EXPECT_FALSE(log.Append(Entry(1)));
  EXPECT_NE(log.broken(), nullptr);
  EXPECT_EQ(arena.completion(1, 0).tag, 0u);
}

// Another process of a native service may write it at any time.
TEST_F(CompletionLogTest, shouldAppendNoRunWhereMoreIsAcknowledgedThanWasAppended) {
  shard.acknowledged = 1;
  EXPECT_EQ(CompletionLog::Run(log).Next(), nullptr);
  shard.acknowledged = uint64_t{1} << 60;
  EXPECT_EQ(CompletionLog::Run(log).Next(), nullptr);
  shard.acknowledged = 0;
  EXPECT_EQ(CompletionLog::Run(log).Next(), &arena.completion(1, 0));
}

TEST_F(CompletionLogTest, shouldEndARunWhereTheLogIsFull) {
  const uint32_t entries = arena.shape().completion_log_entries;
  CompletionLog::Run run(log);
  for (uint64_t i = 0; i < entries; ++i) {
    ASSERT_EQ(run.Next(), &arena.completion(1, i));
    run.Append(i);
  }
  EXPECT_EQ(run.Next(), nullptr);
  log.End(run);
  EXPECT_TRUE(log.Publish());
  EXPECT_EQ(shard.completion_tail, entries);
}

TEST_F(CompletionLogTest, shouldFindNoTailThatCannotBe) {
  const uint32_t entries = arena.shape().completion_log_entries;
  for (uint64_t i = 0; i < entries; ++i) arena.completion(1, i).wr_id = 1;
  for (const uint64_t acknowledged : {uint64_t{1}, uint64_t{1} << 60}) {
    shard.acknowledged = acknowledged;
    CompletionLog successor(arena, 1);
    successor.FindTail();
    EXPECT_NE(successor.broken(), nullptr);
  }
  shard.acknowledged = 0;
  CompletionLog successor(arena, 1);
  successor.FindTail();
  EXPECT_EQ(successor.broken(), nullptr);
  EXPECT_EQ(successor.tail(), entries - 1);
}

}  // namespace
}  // namespace baton::driver
