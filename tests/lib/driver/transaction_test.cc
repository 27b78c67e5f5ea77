#include "lib/driver/transaction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <functional>
#include <string>
#include <utility>

#include "lib/arena/arena.h"
#include "lib/driver/ownership.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::driver {
namespace {

using arena::CommitEntry;
using arena::CommitKind;
using arena::ConnectionState;
using testing::CommitWriter;
using ::testing::HasSubstr;
using testing::TestShape;

constexpr uint64_t kEpoch = 1;
constexpr uint32_t kQueueDepth = 8;
constexpr uint32_t kArenaLkey = 77;

// Connections 0 and 1 are established in shard 0, 2 in shard 1, 3 is free. Connection 0 has
// committed 10 sends (8 completed, 6 acknowledged) and 10 receives (8 completed, 2 acknowledged).
// Each shard has a heap of 4 pages.
struct Scene {
  Scene() {
    Ownership(&arena, 0).GiveTo(0, 1);
    for (uint32_t i = 0; i < 3; ++i) {
      arena.connection(i).state = static_cast<uint32_t>(ConnectionState::kEstablished);
      arena.connection(i).generation = 40 + i;
      arena.connection(i).shard = i == 2 ? 1 : 0;
    }
    arena.connection(3).generation = 43;
    arena.connection(0).send = {10, 10, 8, 6};
    arena.connection(0).receive = {10, 10, 8, 2};
    arena.shard(0).acknowledged = 3;
    arena.shard(0).completion_tail = 9;
    writer.Begin(kEpoch);
  }

  absl::Status Read() {
    return reader.Read(0, kEpoch, 0, arena::CursorIndex(arena.bank(0, kEpoch).tail));
  }

  static arena::Shape Shape() {
    arena::Shape shape = TestShape(2, 4, kQueueDepth);
    shape.heap_pages = 4;
    return shape;
  }

  arena::Arena arena = arena::Arena::Create(Shape(), "kv").value();
  CommitWriter writer{&arena, 0};
  TransactionReader reader{arena, kArenaLkey};
};

TEST(TransactionReaderTest, shouldReadATransactionOverSeveralConnections) {
  Scene scene;
  scene.writer.Receive(0, 0, 100);
  scene.writer.Receive(0, 100, 100);
  scene.writer.Send(0, 200, 100);
  scene.writer.Send(1, 300, 100);
  scene.writer.Acknowledge(9);
  scene.writer.Publish();
  const absl::Status status = scene.Read();
  ASSERT_TRUE(status.ok()) << status;
  const Transaction& transaction = scene.reader.transaction();
  EXPECT_EQ(transaction.entries, 3u);
  ASSERT_EQ(transaction.parts.size(), 3u);
  EXPECT_EQ(transaction.parts[0].first_receive, 0u);
  EXPECT_EQ(transaction.parts[0].first_send, 0u);
  EXPECT_EQ(transaction.parts[1].first_receive, 2u);
  EXPECT_EQ(transaction.parts[1].first_send, 1u);
  const auto offset = [&](const auto& request) {
    return request.sges.at(0).address - reinterpret_cast<uint64_t>(scene.arena.buffers());
  };
  ASSERT_EQ(transaction.receives.size(), 2u);
  EXPECT_EQ(transaction.receives[0].wr_id, PackWrId(0, 40, arena::Direction::kReceive, 10));
  EXPECT_EQ(offset(transaction.receives[0]), 0u);
  EXPECT_EQ(transaction.receives[1].wr_id, PackWrId(0, 40, arena::Direction::kReceive, 11));
  EXPECT_EQ(offset(transaction.receives[1]), 100u);
  ASSERT_EQ(transaction.sends.size(), 2u);
  EXPECT_EQ(transaction.sends[0].wr_id, PackWrId(0, 40, arena::Direction::kSend, 10));
  EXPECT_EQ(offset(transaction.sends[0]), 200u);
  EXPECT_EQ(transaction.sends[1].wr_id, PackWrId(1, 41, arena::Direction::kSend, 0));
  EXPECT_EQ(offset(transaction.sends[1]), 300u);
}

TEST(TransactionReaderTest, shouldStopAtTheEndOfATransaction) {
  Scene scene;
  scene.writer.Acknowledge(4).Publish();
  scene.writer.Acknowledge(5).Publish();
  ASSERT_TRUE(scene.reader.Read(0, kEpoch, 0, 2).ok());
  EXPECT_EQ(scene.reader.transaction().entries, 1u);
  EXPECT_EQ(scene.reader.transaction().parts[0].entry.acknowledged, 4u);
  ASSERT_TRUE(scene.reader.Read(0, kEpoch, 1, 2).ok());
  EXPECT_EQ(scene.reader.transaction().parts[0].entry.acknowledged, 5u);
}

TEST(TransactionReaderTest, shouldTakeTheLargestTransactionThatIsAllowed) {
  Scene scene;
  for (uint32_t i = 0; i < arena::kMaxTransactionEntries; ++i) scene.writer.Acknowledge(5);
  scene.writer.Publish();
  EXPECT_TRUE(scene.Read().ok());
  EXPECT_EQ(scene.reader.transaction().entries, arena::kMaxTransactionEntries);
}

TEST(TransactionReaderTest, shouldTakeEverythingThatLogAndQueueHaveRoomFor) {
  Scene scene;
  for (int i = 0; i < 6; ++i) scene.writer.Send(0, 0, 8);  // 16 - 8 completed: the queue is full
  const auto all = static_cast<uint32_t>(arena::HeapOffset(scene.arena.shape(), 0));
  for (uint32_t i = 0; i < kQueueDepth; ++i) scene.writer.Receive(1, 0, all);
  scene.writer.Publish();
  EXPECT_TRUE(scene.Read().ok());
  EXPECT_EQ(scene.reader.transaction().sends.size(), 6u);
  EXPECT_EQ(scene.reader.transaction().receives.size(), size_t{kQueueDepth});
}

TEST(TransactionReaderTest, shouldJudgeWhatItCopiedAndNotWhatIsThereLater) {
  Scene scene;
  scene.writer.Send(0, 64, 100).immediate = 7;
  scene.writer.Publish();
  ASSERT_TRUE(scene.Read().ok());
  // The worker changes everything after it was checked.
  scene.arena.send_request(0, 10).sges[0] = {~uint64_t{0}, ~0u, 0};
  scene.arena.commit_entry(0, kEpoch, 0) = {};
  const Transaction& transaction = scene.reader.transaction();
  ASSERT_EQ(transaction.sends.size(), 1u);
  EXPECT_EQ(transaction.sends[0].immediate, 7u);
  EXPECT_EQ(transaction.sends[0].sges[0].address,
            reinterpret_cast<uint64_t>(scene.arena.buffers()) + 64);
  EXPECT_EQ(transaction.sends[0].sges[0].length, 100u);
  EXPECT_EQ(transaction.sends[0].sges[0].lkey, kArenaLkey);
  EXPECT_EQ(transaction.parts[0].entry.send_end, 11u);
}

TEST(TransactionReaderTest, shouldReadAgainAfterAnInvalidTransaction) {
  Scene scene;
  scene.writer.Connection(0);
  scene.writer.Connection(0);
  scene.writer.Publish();
  EXPECT_FALSE(scene.Read().ok());
  scene.writer.Connection(0);
  scene.writer.Publish();
  EXPECT_TRUE(scene.reader.Read(0, kEpoch, 2, 3).ok());
}

TEST(TransactionReaderTest, shouldLetNothingBeSaidOfAConnectionTwiceOnlyInOneTransaction) {
  Scene scene;
  for (int i = 0; i < 3; ++i) {
    scene.writer.Connection(0);
    scene.writer.Publish();
    EXPECT_TRUE(scene.reader.Read(0, kEpoch, static_cast<uint64_t>(i), scene.writer.tail()).ok());
  }
}

TEST(TransactionReaderTest, shouldKeepTheAcknowledgementOfAConnectionThatIsGone) {
  Scene scene;
  scene.writer.AcknowledgeWith(0, 9);
  scene.writer.Connection(1);
  scene.writer.Publish();
  // The driver that died was done with both, and has freed their slots.
  scene.arena.connection(0).generation = 50;
  scene.arena.connection(1).generation = 51;
  EXPECT_FALSE(scene.reader.Read(0, kEpoch, 0, 2).ok());
  ASSERT_TRUE(scene.reader.Read(0, kEpoch, 0, 2, /*resumed=*/true).ok());
  const auto parts = scene.reader.transaction().parts;
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(CommitKind(parts[0].entry.kind), CommitKind::kAcknowledge);
  EXPECT_EQ(parts[0].entry.acknowledged, 9u);
  EXPECT_EQ(parts[1].entry.kind, 0);
  // Checked as ever.
  scene.arena.shard(0).completion_tail = 8;
  EXPECT_FALSE(scene.reader.Read(0, kEpoch, 0, 2, /*resumed=*/true).ok());
}

// Its new shard may have an owner who has gone on with it.
TEST(TransactionReaderTest, shouldKeepTheAcknowledgementOfAConnectionThatHasMoved) {
  Scene scene;
  scene.writer.Accept(0, 1);
  scene.writer.AcknowledgeWith(0, 9);
  scene.writer.Publish();
  scene.arena.connection(0).shard = 1;
  const auto read_again = [&] {
    EXPECT_TRUE(scene.reader.Read(0, kEpoch, 0, 2, /*resumed=*/true).ok());
    const arena::CommitEntry& entry = scene.reader.transaction().parts[1].entry;
    EXPECT_EQ(entry.acknowledged, 9u);
    return CommitKind(entry.kind);
  };
  scene.arena.connection(0).arriving = 1;
  scene.reader.SetAdopted(std::array<uint32_t, 2>{0, 1});
  EXPECT_EQ(read_again(), CommitKind::kConnection);
  scene.reader.SetAdopted(std::array<uint32_t, 1>{0});
  EXPECT_EQ(read_again(), CommitKind::kAcknowledge);
  scene.arena.connection(0).arriving = 0;
  scene.reader.SetAdopted(std::array<uint32_t, 2>{0, 1});
  EXPECT_EQ(read_again(), CommitKind::kAcknowledge);
}

// ---- One rule each.

struct Rule {
  std::string name;
  std::string complaint;  // what the error says
  std::function<void(Scene&)> break_it;
};

class TransactionRules : public ::testing::TestWithParam<Rule> {};

TEST_P(TransactionRules, shouldBeKept) {
  Scene scene;
  GetParam().break_it(scene);
  scene.writer.Publish();
  const absl::Status status = scene.Read();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().complaint));
}

arena::WorkRequest& AnySend(Scene& scene) { return scene.writer.Send(1, 0, 8); }
arena::WorkRequest& AnyReceive(Scene& scene) { return scene.writer.Receive(1, 0, 8); }

INSTANTIATE_TEST_SUITE_P(
    Entries, TransactionRules,
    ::testing::Values(
        Rule{"missingLast", "no entry ends the transaction",
             [](Scene& s) {
               s.writer.Acknowledge(5).Write();  // and Publish only moves the tail
             }},
        Rule{"tooManyEntries", "no entry ends the transaction",
             [](Scene& s) {
               for (uint32_t i = 0; i <= arena::kMaxTransactionEntries; ++i) {
                 s.writer.Acknowledge(5);
               }
             }},
        Rule{"kindZero", "kind: 0 is unknown", [](Scene& s) { s.writer.Add(CommitKind(0)); }},
        Rule{"kindUnknown", "kind: 10 is unknown", [](Scene& s) { s.writer.Add(CommitKind(10)); }},
        Rule{"kindLargest", "kind: 255 is unknown",
             [](Scene& s) { s.writer.Add(CommitKind(255)); }},
        Rule{"connectionOutOfRange", "connection: 4 does not exist",
             [](Scene& s) { s.writer.Connection(0).connection = 4; }},
        Rule{"connectionFarOutOfRange", "connection: 4294967295 does not exist",
             [](Scene& s) { s.writer.Connection(0).connection = ~0u; }},
        Rule{"disconnectOutOfRange", "connection: 4 does not exist",
             [](Scene& s) { s.writer.Add(CommitKind::kDisconnect).connection = 4; }},
        Rule{"acceptOutOfRange", "connection: 9 does not exist",
             [](Scene& s) { s.writer.Add(CommitKind::kAccept).connection = 9; }},
        Rule{"generation", "no longer the one meant",
             [](Scene& s) { s.writer.Connection(0).generation = 41; }},
        Rule{"disconnectGeneration", "no longer the one meant",
             [](Scene& s) { s.writer.Add(CommitKind::kDisconnect).generation = 39; }},
        Rule{"freeConnection", "no longer the one meant", [](Scene& s) { s.writer.Connection(3); }},
        Rule{"otherShard", "connection: 2 belongs to shard 1",
             [](Scene& s) { s.writer.Connection(2); }},
        Rule{"rejectOfOtherShard", "connection: 2 belongs to shard 1",
             [](Scene& s) { s.writer.Reject(2); }},
        Rule{"twice", "connection: 1 appears twice",
             [](Scene& s) {
               s.writer.Connection(1);
               s.writer.Connection(0);
               s.writer.Connection(1);
             }},
        Rule{"releaseNotLast", "a release is not the last entry",
             [](Scene& s) { s.writer.Release().Acknowledge(5); }},
        Rule{"acknowledgedBackwards", "acknowledged: 2 is not between 3 and 9",
             [](Scene& s) { s.writer.Acknowledge(2); }},
        Rule{"acknowledgedTooFar", "acknowledged: 10 is not between 3 and 9",
             [](Scene& s) { s.writer.Acknowledge(10); }},
        Rule{"acknowledgedBackwardsWithAConnection", "acknowledged: 2 is not between 3 and 9",
             [](Scene& s) { s.writer.AcknowledgeWith(0, 2); }},
        Rule{"acknowledgedTooFarWithAConnection", "acknowledged: 10 is not between 3 and 9",
             [](Scene& s) { s.writer.AcknowledgeWith(0, 10); }},
        Rule{"unknownFlags", "flags: 5 has unknown bits",
             [](Scene& s) { s.writer.Connection(0).flags = 4; }},
        Rule{"privateData", "private_data_length: 257",
             [](Scene& s) {
               s.writer.Accept(0, 0);
               s.writer.Add(CommitKind::kReject).private_data_length = 257;
             }},
        Rule{"acceptPrivateData", "private_data_length: 4294967295",
             [](Scene& s) {
               CommitEntry& entry = s.writer.Add(CommitKind::kAccept);
               entry.private_data_length = ~0u;
             }},
        Rule{"targetShard", "target_shard: 2 does not exist",
             [](Scene& s) { s.writer.Accept(0, 2); }}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Cursors, TransactionRules,
    ::testing::Values(
        Rule{"sendBackwards", "send_end: 9 is before 10",
             [](Scene& s) { s.writer.Connection(0).send_end = 9; }},
        Rule{"receiveBackwards", "receive_end: 0 is before 10",
             [](Scene& s) { s.writer.Connection(0).receive_end = 0; }},
        Rule{"sendOverQueue", "send_end: 17 exceeds the queue",
             [](Scene& s) { s.writer.Connection(0).send_end = 17; }},
        Rule{"receiveOverLog", "receive_end: 19 overtakes the log",
             [](Scene& s) { s.writer.Connection(0).receive_end = 19; }},
        Rule{"sendOverLog", "send_end: 23 overtakes the log",
             [](Scene& s) { s.writer.Connection(0).send_end = 23; }},
        Rule{"receiveOverQueue", "receive_end: 17 exceeds the queue",
             [](Scene& s) { s.writer.Connection(0).receive_end = 17; }},
        Rule{"largestSend", "send_end: 18446744073709551615",
             [](Scene& s) { s.writer.Connection(0).send_end = ~uint64_t{0}; }},
        Rule{"stateSlotInUse", "state_slot: 0 is not the free one",
             [](Scene& s) { s.writer.Connection(0).state_slot = 0; }},
        Rule{"stateSlotUnknown", "state_slot: 2 is not the free one",
             [](Scene& s) { s.writer.Connection(0).state_slot = 2; }},
        Rule{"stateLength", "state_length: 65",
             [](Scene& s) {
               CommitEntry& entry = s.writer.Connection(0);
               entry.state_slot = 1;
               entry.state_length = 65;
             }},
        Rule{"shardStateSlotInUse", "state_slot: 0 is not the free one of the shard",
             [](Scene& s) { s.writer.Add(CommitKind::kShardState); }},
        Rule{"shardStateSlotUnknown", "state_slot: 255 is not the free one of the shard",
             [](Scene& s) { s.writer.Add(CommitKind::kShardState).state_slot = 255; }},
        Rule{"shardStateLength", "state_length: 129",
             [](Scene& s) {
               CommitEntry& entry = s.writer.Add(CommitKind::kShardState);
               entry.state_slot = 1;
               entry.state_length = 129;
             }}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Requests, TransactionRules,
    ::testing::Values(
        Rule{"sendOpcode", "connection 1 send 0: opcode: 8",
             [](Scene& s) { AnySend(s).opcode = 8; }},
        Rule{"receiveOpcode", "connection 1 receive 0: opcode: 1",
             [](Scene& s) { AnyReceive(s).opcode = 1; }},
        Rule{"flags", "flags: 4 has unknown bits", [](Scene& s) { AnySend(s).flags = 4; }},
        Rule{"receiveFlags", "flags: 128 has unknown bits",
             [](Scene& s) { AnyReceive(s).flags = 128; }},
        Rule{"sgeCount", "sge_count: 5", [](Scene& s) { AnySend(s).sge_count = 5; }},
        Rule{"receiveSgeCount", "sge_count: 255", [](Scene& s) { AnyReceive(s).sge_count = 255; }},
        Rule{"sgeBeyondTheBuffers", "sges[0]: 2 bytes at 65535",
             [](Scene& s) {
               AnySend(s).sges[0] = {65535, 2, 0};
             }},
        Rule{"sgeOffsetBeyondTheBuffers", "sges[0]: 0 bytes at 65537",
             [](Scene& s) {
               AnySend(s).sges[0] = {65537, 0, 0};
             }},
        Rule{"sgeOverflow", "sges[0]: 4294967295 bytes at 18446744073709551615",
             [](Scene& s) {
               AnyReceive(s).sges[0] = {~uint64_t{0}, ~0u, 0};
             }},
        Rule{"sgeOverflowToZero", "sges[0]: 8 bytes at 18446744073709551608",
             [](Scene& s) {
               AnySend(s).sges[0] = {~uint64_t{0} - 7, 8, 0};
             }},
        Rule{"lastSge", "sges[3]: 65537 bytes at 0",
             [](Scene& s) {
               arena::WorkRequest& request = AnySend(s);
               request.sge_count = 4;
               request.sges[3] = {0, 65537, 0};
             }},
        Rule{"heapOfAnotherShard", "sges[0]: 8 bytes at 49152 are neither within the 32768 bytes",
             [](Scene& s) {
               AnySend(s).sges[0] = {arena::HeapOffset(Scene::Shape(), 1), 8, 0};
             }},
        Rule{"onlyBufferInTheHeapOfAnotherShard", "nor within the heap of shard 0",
             [](Scene& s) {
               arena::WorkRequest& request = AnyReceive(s);
               request.one_line = 1;
               request.only = {arena::HeapOffset(Scene::Shape(), 1) - 1, 2, 0};
             }},
        Rule{"intoTheOwnHeap", "sges[0]: 2 bytes at 32767",
             [](Scene& s) {
               AnySend(s).sges[0] = {arena::HeapOffset(Scene::Shape(), 0) - 1, 2, 0};
             }},
        Rule{"secondRequest", "connection 1 send 1: flags",
             [](Scene& s) {
               AnySend(s);
               AnySend(s).flags = 0xff;
             }},
        Rule{"atomicLength", "an atomic needs one of 8 bytes",
             [](Scene& s) {
               arena::WorkRequest& request = AnySend(s);
               request.opcode = static_cast<uint8_t>(verbs::Opcode::kFetchAndAdd);
               request.sges[0].length = 4;
             }},
        Rule{"atomicInTwoPieces", "an atomic needs one of 8 bytes",
             [](Scene& s) {
               arena::WorkRequest& request = AnySend(s);
               request.opcode = static_cast<uint8_t>(verbs::Opcode::kCompareAndSwap);
               request.sge_count = 2;
               request.sges[0] = {0, 4, 0};
               request.sges[1] = {4, 4, 0};
             }},
        Rule{"atomicWithoutBuffer", "an atomic needs one of 8 bytes",
             [](Scene& s) {
               arena::WorkRequest& request = AnySend(s);
               request.opcode = static_cast<uint8_t>(verbs::Opcode::kCompareAndSwap);
               request.sge_count = 0;
             }},
        Rule{"atomicAlignment", "remote_address: 4100 of an atomic is not aligned",
             [](Scene& s) {
               arena::WorkRequest& request = AnySend(s);
               request.opcode = static_cast<uint8_t>(verbs::Opcode::kFetchAndAdd);
               request.remote_address = 4100;
             }}),
    [](const auto& info) { return info.param.name; });

// An entry that says it has so many changes, the last of which is this one.
void AddHeapEntry(Scene& s, uint16_t count, uint32_t page = 0,
                  const arena::HeapBlock& block = {1, 0, 1}) {
  arena::HeapEntry entry = {};
  entry.kind = static_cast<uint8_t>(CommitKind::kHeap);
  entry.count = count;
  if (count > 0 && count <= arena::kHeapChangesPerEntry) {
    entry.changes[count - 1] = arena::ChangeOf(page, block);
  }
  s.writer.Add(CommitKind::kHeap) = std::bit_cast<CommitEntry>(entry);
}
Rule HeapRule(std::string name, std::string complaint, uint32_t page, arena::HeapBlock block) {
  return {std::move(name), std::move(complaint),
          [page, block](Scene& s) { AddHeapEntry(s, 1, page, block); }};
}

INSTANTIATE_TEST_SUITE_P(
    Heaps, TransactionRules,
    ::testing::Values(
        Rule{"noChange", "count: 0 changes of the heap", [](Scene& s) { AddHeapEntry(s, 0); }},
        Rule{"tooManyChanges", "count: 4 changes of the heap, 1 to 3 fit",
             [](Scene& s) { AddHeapEntry(s, 4); }},
        Rule{"mostChanges", "count: 65535 changes", [](Scene& s) { AddHeapEntry(s, 65535); }},
        Rule{"lastChange", "changes[2]: a block of 1 pages",
             [](Scene& s) {
               AddHeapEntry(s, 3, 4, {1, 0, 1});
             }},
        Rule{"secondEntry", "changes[0]: a block of 5 pages",
             [](Scene& s) {
               AddHeapEntry(s, 1);
               AddHeapEntry(s, 1, 0, {5, 0, 1});
             }},
        HeapRule("pageOutside", "cannot begin at page 4 of 4", 4, {1, 0, 1}),
        HeapRule("noBlockOutside", "cannot begin at page 4 of 4", 4, {0, 0, 0}),
        HeapRule("largestPage", "cannot begin at page 4294967295", ~0u, {1, 0, 1}),
        HeapRule("beyondTheEnd", "changes[0]: a block of 2 pages", 3, {2, 0, 1}),
        HeapRule("farBeyondTheEnd", "a block of 4294967295 pages", 3, {~0u, 0, 1}),
        HeapRule("behindTheOnlyObject", "changes[0]: a block of 1 pages and objects of 0 units", 0,
                 {1, 0, 2}),
        HeapRule("behindTheLastObject", "objects of 20 units cannot begin", 0,
                 {1, 20, uint64_t{1} << 3}),
        HeapRule("objectLongerThanItsBlock", "objects of 65 units", 0, {1, 65, 1}),
        HeapRule("nothingKept", "changes[0]: a block of 1 pages", 0, {1, 1, 0}),
        HeapRule("noBlockWithUnits", "a block of 0 pages and objects of 5 units", 0, {0, 5, 0}),
        HeapRule("noBlockWithObjects", "a block of 0 pages and objects of 0 units", 0, {0, 0, 1})),
    [](const auto& info) { return info.param.name; });

TEST(TransactionReaderTest, shouldTakeTheChangesOfAHeap) {
  Scene scene;
  scene.writer.Heap(0, {1, 1, ~uint64_t{0}}).Heap(3, {1, 20, 0b111}).Heap(1, {2, 0, 1});
  scene.writer.Heap(0, {0, 0, 0}).Publish();
  EXPECT_EQ(scene.Read(), absl::OkStatus());
  EXPECT_EQ(scene.reader.transaction().entries, 2u);
}

TEST(TransactionReaderTest, shouldTakeRequestsThatNameTheHeapOfTheirShard) {
  Scene scene;
  const uint64_t heap = arena::HeapOffset(Scene::Shape(), 0);
  const auto bytes = static_cast<uint32_t>(arena::HeapBytes(Scene::Shape()));
  scene.writer.Send(1, heap, bytes);
  scene.writer.Receive(1, heap + bytes - 8, 8);
  scene.writer.Publish();
  EXPECT_EQ(scene.Read(), absl::OkStatus());
}

TEST(TransactionReaderTest, shouldTakeNoChangeWhereThereIsNoHeap) {
  arena::Arena arena = arena::Arena::Create(TestShape(), "kv").value();
  Ownership(&arena, 0).GiveTo(0, 1);
  TransactionReader reader(arena, kArenaLkey);
  CommitWriter writer(&arena, 0);
  writer.Begin(1);
  writer.Heap(0, {1, 0, 1}).Publish();
  EXPECT_EQ(reader.Read(0, 1, 0, 1).code(), absl::StatusCode::kInvalidArgument);
}

TEST(TransactionReaderTest, shouldBoundTheRequestsOfOneTransaction) {
  arena::Arena arena = arena::Arena::Create(TestShape(1, 3, 4096), "kv").value();
  Ownership(&arena, 0).GiveTo(0, 1);
  for (uint32_t i = 0; i < 3; ++i) {
    arena.connection(i).state = static_cast<uint32_t>(ConnectionState::kEstablished);
  }
  TransactionReader reader(arena, kArenaLkey);
  CommitWriter writer(&arena, 0);
  writer.Begin(1);
  writer.Connection(0).send_end = kMaxTransactionRequests;
  writer.Publish();
  EXPECT_TRUE(reader.Read(0, 1, 0, 1).ok());
  writer.Connection(0).send_end = kMaxTransactionRequests;
  writer.Connection(1).receive_end = 1;
  writer.Publish();
  const absl::Status status = reader.Read(0, 1, 1, 3);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than 4096 work requests"));
}

}  // namespace
}  // namespace baton::driver
