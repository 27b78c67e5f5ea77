// Receives that the connections of a shard share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <set>
#include <string>

#include "lib/driver/device_needs.h"
#include "tests/lib/driver/queue_driver_fixture.h"

namespace baton::driver {
namespace {

using arena::CompletionEntry;
using arena::CompletionKind;
using arena::ConnectionState;
using arena::SharedReceiveState;
using ::testing::HasSubstr;
using testing::QueueDriverTest;
using testing::RawPeer;
using testing::TestShape;
using verbs::CompletionStatus;

constexpr uint32_t kSharedDepth = 4;

arena::Shape SharedShape(uint32_t shards = 1) {
  arena::Shape shape = TestShape(shards);
  shape.shared_receive_queue_depth = kSharedDepth;
  shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
  return shape;
}

class SharedReceiveTest : public QueueDriverTest {
 protected:
  void SetUp() override { Make(SharedShape()); }

  void Post(std::initializer_list<uint16_t> slots, uint32_t shard = 0) {
    for (const uint16_t slot : slots) writer(shard).SharedReceive(slot, Offset(slot), 1024);
    ASSERT_EQ(Commit(shard), CommitOutcome::kApplied) << error;
  }
  SharedReceiveState StateAt(uint32_t slot, uint32_t shard = 0) {
    return arena::StateOf(arena->shared_receive(shard, slot));
  }
  CompletionEntry ExpectReceived(uint32_t connection, std::string_view text) {
    const CompletionEntry entry = NextOfKind(CompletionKind::kReceive);
    EXPECT_EQ(entry.status, 0u);
    EXPECT_EQ(entry.connection, connection);
    EXPECT_EQ(Text(Offset(static_cast<int>(entry.sequence)), entry.byte_len), text);
    return entry;
  }
  void ExpectInvalid(std::string_view why) {
    EXPECT_EQ(Commit(), CommitOutcome::kInvalid);
    EXPECT_THAT(std::string(error.message()), HasSubstr(std::string(why)));
  }
  void Succeed() {
    Ownership ownership(&*arena, 0);
    ownership.GiveTo(0, 2);
    writer().Begin(ownership.epoch());
  }
  uint32_t posted(uint32_t shard = 0) { return arena->shard(shard).shared_receives_posted; }
};

TEST_F(SharedReceiveTest, shouldGoToWhicheverConnectionHasAMessage) {
  Post({0, 1, 2});
  EXPECT_EQ(posted(), 3u);
  RawPeer one, two;
  const uint32_t first = Established(one), second = Established(two);
  std::set<uint64_t> slots;
  two.Send("for two");
  slots.insert(ExpectReceived(second, "for two").sequence);
  one.Send("for one");
  slots.insert(ExpectReceived(first, "for one").sequence);
  two.Send("again");
  slots.insert(ExpectReceived(second, "again").sequence);
  EXPECT_EQ(slots, (std::set<uint64_t>{0, 1, 2}));
  EXPECT_EQ(posted(), 0u);
  EXPECT_EQ(arena->connection(second).receive.completed, 2u);
  EXPECT_EQ(arena->connection(first).bytes_received, 7u);
  const ShardCounters& counters = driver->counters(0);
  EXPECT_EQ(counters.receives_committed, 3u);
  EXPECT_EQ(counters.receives_posted, 3u);
  EXPECT_EQ(counters.receives_completed, 3u);
}

TEST_F(SharedReceiveTest, shouldKeepTheTagAndTheSlotUntilItsCompletionIsAcknowledged) {
  writer().SharedReceive(5, 0, 64).tag = 77;
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  EXPECT_EQ(StateAt(5), SharedReceiveState::kPosted);
  RawPeer peer;
  Established(peer);
  peer.Send("x");
  const CompletionEntry entry = NextOfKind(CompletionKind::kReceive);
  EXPECT_EQ(entry.tag, 77u);
  EXPECT_EQ(entry.sequence, 5u);
  EXPECT_EQ(StateAt(5), SharedReceiveState::kCompleted);
  writer().Acknowledge(read[0]).SharedReceive(4, 0, 64);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  EXPECT_EQ(StateAt(5), SharedReceiveState::kFree);
  Post({5});
  EXPECT_EQ(StateAt(5), SharedReceiveState::kPosted);
}

// Twice as many places as receives: what is acknowledged can be replaced in the same transaction.
TEST_F(SharedReceiveTest, shouldKeepAWholeWindowPostedForManyRounds) {
  Post({0, 1, 2, 3});
  RawPeer one, two;
  const uint32_t first = Established(one), second = Established(two);
  std::set<uint16_t> free = {4, 5, 6, 7};
  for (int round = 0; round < 300; ++round) {
    RawPeer& peer = round % 3 == 0 ? one : two;
    const std::string text = absl::StrCat("message ", round);
    peer.Send(text);
    const CompletionEntry entry = ExpectReceived(round % 3 == 0 ? first : second, text);
    const uint16_t next = *free.begin();
    free.erase(free.begin());
    writer().SharedReceive(next, Offset(next), 1024);
    AcknowledgeAll();
    EXPECT_EQ(posted(), kSharedDepth);
    free.insert(static_cast<uint16_t>(entry.sequence));
  }
}

TEST_F(SharedReceiveTest, shouldMakePeersWaitUntilOneIsPosted) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  peer.Send("early");
  for (int i = 0; i < 200; ++i) Turn();
  EXPECT_EQ(unread(), 0u);
  Post({3});
  ExpectReceived(connection, "early");
}

TEST_F(SharedReceiveTest, shouldBeOfTheirShardAlone) {
  Make(SharedShape(2));
  Post({0});
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  writer().Accept(connection, 1);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  NextOfKind(CompletionKind::kEstablished, 1);
  peer.Send("to the second");
  for (int i = 0; i < 200; ++i) Turn();
  EXPECT_EQ(unread(1), 0u);
  Post({7}, 1);
  const CompletionEntry entry = NextOfKind(CompletionKind::kReceive, 1);
  EXPECT_EQ(entry.sequence, 7u);
  EXPECT_EQ(posted(0), 1u);
  EXPECT_EQ(posted(1), 0u);
}

// ---- What a worker may ask for.

TEST_F(SharedReceiveTest, shouldGiveConnectionsToShardsThatCanReceive) {
  Make(SharedShape(2));
  arena->shard(0).shared_receives_refused = 1;
  EXPECT_FALSE(driver->AllBroken());
  RawPeer one, two;
  for (RawPeer* peer : {&one, &two}) {
    peers.push_back(peer);
    peer->Connect(port, {});
    const uint32_t connection = NextOfKind(CompletionKind::kConnectRequest, 1).connection;
    EXPECT_EQ(arena->connection(connection).shard, 1u);
  }
}

TEST_F(SharedReceiveTest, shouldRejectWhereNoShardCanReceive) {
  arena->shard(0).shared_receives_refused = 1;
  EXPECT_TRUE(driver->AllBroken());
  RawPeer peer;
  peers.push_back(&peer);
  peer.Connect(port, {});
  EXPECT_TRUE(Until([&] { return peer.rejected; }));
  EXPECT_EQ(unread(), 0u);
}

TEST_F(SharedReceiveTest, shouldRefuseASlotThatIsNotFree) {
  Post({0});
  writer().SharedReceive(1, 0, 64);
  writer().SharedReceive(0, 0, 64);
  ExpectInvalid("slots[1]: 0 is not free");
  EXPECT_EQ(StateAt(1), SharedReceiveState::kFree);
}

TEST_F(SharedReceiveTest, shouldRefuseASlotWhoseCompletionIsNotAcknowledged) {
  Post({0});
  RawPeer peer;
  Established(peer);
  peer.Send("x");
  NextOfKind(CompletionKind::kReceive);
  // Acknowledgements are applied last.
  writer().Acknowledge(read[0]).SharedReceive(0, 0, 64);
  ExpectInvalid("0 is not free");
}

TEST_F(SharedReceiveTest, shouldRefuseTheSameSlotTwice) {
  writer().SharedReceive(2, 0, 64);
  writer().Add(arena::CommitKind::kSharedReceives);
  writer().open().back() = writer().open().front();
  ExpectInvalid("2 appears twice");
}

TEST_F(SharedReceiveTest, shouldRefuseASlotThatDoesNotExist) {
  writer().SharedReceive(1, 0, 64);
  auto named = std::bit_cast<arena::SharedReceivesEntry>(writer().open().back());
  named.slots[0] = 2 * kSharedDepth;
  writer().open().back() = std::bit_cast<arena::CommitEntry>(named);
  ExpectInvalid("does not exist");
}

TEST_F(SharedReceiveTest, shouldRefuseMoreInAnEntryThanItHolds) {
  writer().SharedReceive(1, 0, 64);
  auto named = std::bit_cast<arena::SharedReceivesEntry>(writer().open().back());
  named.count = arena::kSharedReceivesPerEntry + 1;
  writer().open().back() = std::bit_cast<arena::CommitEntry>(named);
  ExpectInvalid("count: 31 is not between 1 and 30");
}

TEST_F(SharedReceiveTest, shouldRefuseAnEntryThatNamesNone) {
  writer().Add(arena::CommitKind::kSharedReceives);
  ExpectInvalid("count: 0 is not between 1 and 30");
}

TEST_F(SharedReceiveTest, shouldRefuseMoreThanTheDepth) {
  Post({0, 1});
  for (const uint16_t slot : {2, 3, 4}) writer().SharedReceive(slot, 0, 64);
  ExpectInvalid("exceed the shared queue, 2 are posted and it holds 4");
}

TEST_F(SharedReceiveTest, shouldRefuseBuffersOutsideOfTheServices) {
  writer().SharedReceive(1, arena->shape().buffer_bytes, 1);
  ExpectInvalid("shared receive 1: sges[0]");
}

TEST_F(SharedReceiveTest, shouldRefuseReceivesOfAConnection) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  writer().Connection(connection).receive_end = 1;
  ExpectInvalid("receives of the service are shared");
}

TEST_F(SharedReceiveTest, shouldRefuseSharedReceivesWhereThereAreNone) {
  Make(TestShape());
  writer().Add(arena::CommitKind::kSharedReceives);
  ExpectInvalid("shares no receives");
}

// ---- Ends.

TEST_F(SharedReceiveTest, shouldStayPostedWhenAConnectionEnds) {
  Post({0, 1});
  RawPeer one, two;
  const uint32_t first = Established(one), second = Established(two);
  one.Disconnect();
  EXPECT_EQ(NextOfKind(CompletionKind::kDisconnected).connection, first);
  EXPECT_FALSE(driver->objects()->connections[first].queue_pair);
  EXPECT_EQ(posted(), 2u);
  two.Send("goes on");
  ExpectReceived(second, "goes on");
  two.Send("and on");
  ExpectReceived(second, "and on");
}

TEST_F(SharedReceiveTest, shouldStayPostedWhenTheWorkerEndsAConnection) {
  Post({0, 1});
  RawPeer one, two;
  const uint32_t first = Established(one), second = Established(two);
  writer().Disconnect(first);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  EXPECT_EQ(NextOfKind(CompletionKind::kDisconnected).connection, first);
  AcknowledgeAll();
  EXPECT_EQ(state(first), ConnectionState::kFree);
  EXPECT_EQ(posted(), 2u);
  two.Send("goes on");
  ExpectReceived(second, "goes on");
  // The slot of the connection serves again.
  RawPeer three;
  const uint32_t third = Established(three);
  three.Send("anew");
  ExpectReceived(third, "anew");
}

TEST_F(SharedReceiveTest, shouldGiveBackTheReceiveOfAMessageThatIsTooLong) {
  writer().SharedReceive(0, 0, 4);
  writer().SharedReceive(1, 1024, 1024);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  RawPeer one, two;
  const uint32_t first = Established(one), second = Established(two);
  one.Send("too long");
  const CompletionEntry failed = NextOfKind(CompletionKind::kReceive);
  EXPECT_EQ(failed.connection, first);
  EXPECT_NE(failed.status, 0u);
  EXPECT_EQ(failed.sequence, 0u);
  EXPECT_EQ(NextOfKind(CompletionKind::kDisconnected).connection, first);
  AcknowledgeAll();
  EXPECT_EQ(StateAt(0), SharedReceiveState::kFree);
  two.Send("goes on");
  ExpectReceived(second, "goes on");
}

// None is lost, wherever the peer vanishes.
TEST_F(SharedReceiveTest, shouldLoseNoneWithPeersThatVanish) {
  Post({0, 1, 2, 3});
  std::set<uint16_t> free = {4, 5, 6, 7};
  for (int round = 0; round < 20; ++round) {
    auto peer = std::make_unique<RawPeer>();
    Established(*peer);
    for (int i = 0; i < round % 5; ++i) peer->Send(std::string(RawPeer::kSlotBytes, 'x'));
    for (int i = 0; i < round; ++i) Turn();
    peers.pop_back();
    peer.reset();
    for (bool ended = false; !ended;) {
      const CompletionEntry entry = Next();
      ended = CompletionKind(entry.kind) == CompletionKind::kDisconnected;
      if (CompletionKind(entry.kind) == CompletionKind::kReceive) {
        free.insert(static_cast<uint16_t>(entry.sequence));
      }
    }
    AcknowledgeAll();
    ASSERT_EQ(posted() + free.size(), 2 * kSharedDepth);
    while (posted() < kSharedDepth) {
      Post({*free.begin()});
      free.erase(free.begin());
    }
  }
}

// ---- Poison.

TEST_F(SharedReceiveTest, shouldGiveBackThePoisonedReceiveAsAFlushError) {
  Post({0, 1});
  RawPeer peer;
  const uint32_t connection = Established(peer);
  peer.Send("poison");
  ExpectReceived(connection, "poison");
  Ownership(&*arena, 0).End(/*released=*/true);
  const CompletionEntry blamed = driver->Poison(0, read[0] - 1, "test").value();
  EXPECT_EQ(blamed.sequence, 0u);
  const CompletionEntry& rewritten = arena->completion(0, read[0] - 1);
  EXPECT_EQ(rewritten.status, static_cast<uint8_t>(CompletionStatus::kFlushError));
  EXPECT_EQ(rewritten.sequence, 0u);
  NextOfKind(CompletionKind::kDisconnected);
  Succeed();
  AcknowledgeAll();
  EXPECT_EQ(StateAt(0), SharedReceiveState::kFree);
  EXPECT_EQ(posted(), 1u);
}

// Its owner was told nothing, and takes it for posted.
TEST_F(SharedReceiveTest, shouldPostTheVoidReceiveAgain) {
  Post({0});
  RawPeer peer, other;
  const uint32_t connection = Established(peer);
  peer.Send("poison");
  ExpectReceived(connection, "poison");
  const uint64_t receive = read[0] - 1;
  peer.Disconnect();
  NextOfKind(CompletionKind::kDisconnected);
  Ownership(&*arena, 0).End(/*released=*/true);
  ASSERT_TRUE(
      driver->Poison(0, read[0] - 1, "test").ok());  // the end: nothing of the connection is told
  EXPECT_NE(arena->completion(0, receive).flags & arena::kCompletionVoid, 0);
  Succeed();
  AcknowledgeAll();
  EXPECT_EQ(StateAt(0), SharedReceiveState::kPosted);
  EXPECT_EQ(posted(), 1u);
  const uint32_t second = Established(other);
  other.Send("fine");
  EXPECT_EQ(ExpectReceived(second, "fine").sequence, 0u);
}

// ---- What it takes of a device.

TEST(SharedReceiveNeeds, shouldAskForAQueueOfAllSlotsForEachShard) {
  const arena::Shape shape = SharedShape(2);
  const DeviceNeeds needs = NeedsOf(shape);
  EXPECT_EQ(needs.shared_receive_queues, 2u);
  EXPECT_EQ(needs.shared_receive_requests, 2 * kSharedDepth);
  EXPECT_EQ(needs.receive_requests, 0u);
  EXPECT_EQ(needs.completion_queue_entries,
            4 * 8 + 2 * kSharedDepth + arena::kShardMarkers + arena::kSpares);
  verbs::DeviceLimits limits =
      verbs::testing::OpenDevice(verbs::testing::FabricUnderTest()).value()->limits();
  EXPECT_TRUE(CheckLimits(needs, limits, "dev").ok());
  limits.max_shared_receive_requests = 7;
  EXPECT_THAT(std::string(CheckLimits(needs, limits, "dev").message()),
              HasSubstr("shared_receive_queue_depth"));
  limits = {};
  EXPECT_THAT(std::string(CheckLimits(needs, limits, "dev").message()),
              HasSubstr("2 shared receive queues, one for each shard, of which it has 0"));
}

}  // namespace
}  // namespace baton::driver
