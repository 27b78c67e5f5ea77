#include "supervisor/driver/engine/arena_counters.h"
#include "gtest/gtest.h"
#include "lib/arena/arena.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::driver_process {
namespace {

arena::ConnectionRecord& Establish(arena::Arena& arena, uint32_t generation, uint32_t shard) {
  arena::ConnectionRecord& record = arena.connection(0);
  record = {};
  record.generation = generation;
  record.shard = shard;
  record.state = static_cast<uint32_t>(arena::ConnectionState::kEstablished);
  return record;
}

TEST(ArenaCountersTest, shouldFallInNoShardWhenAConnectionMoves) {
  arena::Arena arena = arena::Arena::Create(driver::testing::TestShape(2), "kv").value();
  ArenaCounters counters(&arena);
  arena::ConnectionRecord& record = Establish(arena, 1, 0);
  record.send.committed = 5;
  record.send.posted = 4;
  record.send.completed = 2;
  const driver::ShardCounters before = counters.Of(0);
  EXPECT_EQ(before.sends_committed, 5u);
  EXPECT_EQ(before.sends_posted, 4u);
  EXPECT_EQ(before.sends_completed, 2u);
  record.shard = 1;
  EXPECT_EQ(counters.Of(0).sends_posted, 4u);
  EXPECT_EQ(counters.Of(0).sends_completed, 4u);
  record.send.posted = 5;
  const driver::ShardCounters after = counters.Of(1);
  EXPECT_EQ(after.sends_posted, 1u);
  EXPECT_EQ(after.sends_posted - after.sends_completed, 3u);
}

TEST(ArenaCountersTest, shouldGoOnWithTheNextConnectionOfASlot) {
  arena::Arena arena = arena::Arena::Create(driver::testing::TestShape(1), "kv").value();
  ArenaCounters counters(&arena);
  Establish(arena, 1, 0).receive.posted = 7;
  counters.Look(0);
  Establish(arena, 2, 0).receive.posted = 3;
  EXPECT_EQ(counters.Of(0).receives_posted, 10u);
  arena.connection(0).receive.posted = 1;  // a worker can write anything
  EXPECT_EQ(counters.Of(0).receives_posted, 10u);
  arena.connection(0).shard = 1u << 20;
  EXPECT_EQ(counters.Of(0).receives_posted, 10u);
}

TEST(ArenaCountersTest, shouldCountTheBytesOfAShardWhoeverSentAndReceivedThem) {
  arena::Arena arena = arena::Arena::Create(driver::testing::TestShape(2), "kv").value();
  ArenaCounters counters(&arena);
  Establish(arena, 1, 0).bytes_received = 100;
  arena.shard(0).bytes_sent = 4096;
  EXPECT_EQ(counters.Of(0).bytes_received, 100u);
  EXPECT_EQ(counters.Of(0).bytes_sent, 4096u);
  Establish(arena, 2, 0).bytes_received = 10;
  EXPECT_EQ(counters.Of(0).bytes_received, 110u);
  arena.connection(0).shard = 1;
  arena.connection(0).bytes_received = 15;
  EXPECT_EQ(counters.Of(0).bytes_received, 110u);
  EXPECT_EQ(counters.Of(1).bytes_received, 5u);
  EXPECT_EQ(counters.Of(1).bytes_sent, 0u);
  arena.connection(0).bytes_received = 0;  // a worker can write anything
  arena.shard(0).bytes_sent = 1;
  EXPECT_EQ(counters.Of(1).bytes_received, 5u);
  EXPECT_EQ(counters.Of(0).bytes_sent, 4096u);
}

TEST(ArenaCountersTest, shouldNotFallWhileASharedReceiveIsOnItsWayToItsConnection) {
  arena::Shape shape = driver::testing::TestShape(1);
  shape.shared_receive_queue_depth = 64;
  shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
  arena::Arena arena = arena::Arena::Create(shape, "kv").value();
  ArenaCounters counters(&arena);
  arena::ConnectionRecord& record = Establish(arena, 1, 0);
  arena.shard(0).shared_receives_posted = 8;
  EXPECT_EQ(counters.Of(0).receives_posted, 8u);
  arena.shard(0).shared_receives_posted = 7;
  EXPECT_EQ(counters.Of(0).receives_posted, 8u);
  record.receive.completed = 1;
  arena.shard(0).shared_receives_posted = 8;
  EXPECT_EQ(counters.Of(0).receives_posted, 9u);
  EXPECT_EQ(counters.Of(0).receives_completed, 1u);
}

}  // namespace
}  // namespace baton::driver_process
