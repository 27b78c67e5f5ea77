#include "lib/driver/queue_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/driver/ownership.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/driver/queue_driver_fixture.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/verbs/fabric.h"

namespace baton::driver {
namespace {

using arena::CompletionEntry;
using arena::CompletionKind;
using arena::ConnectionState;
using testing::CommitWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::QueueDriverTest;
using testing::RawPeer;
using testing::TestShape;
using verbs::CompletionStatus;

// ---- Round trips.

TEST_F(QueueDriverTest, shouldTellWhoAsksForAConnection) {
  RawPeer peer;
  const uint32_t connection = Requested(peer, "hello");
  const arena::ConnectionRecord& record = arena->connection(connection);
  EXPECT_EQ(state(connection), ConnectionState::kRequested);
  EXPECT_EQ(record.generation, 1u);
  EXPECT_EQ(record.shard, 0u);
  EXPECT_EQ(record.listener_port, port);
  EXPECT_GE(record.private_data_length, 5u);  // InfiniBand carries a fixed size
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(record.private_data), 5), "hello");
  EXPECT_THAT(record.peer_address, ::testing::StartsWith(fabric.host + ":"));
  EXPECT_EQ(std::string(record.local_address), absl::StrCat(fabric.host + ":", port));
  EXPECT_EQ(connection_count(), 1u);
}

TEST_F(QueueDriverTest, shouldTellTheDepthsOfAConnection) {
  RawPeer peer;
  peer.parameters.responder_resources = 5;
  peer.parameters.initiator_depth = 3;
  const uint32_t connection = Established(peer);
  EXPECT_EQ(arena->header().tells_depths, 1u);
  EXPECT_EQ(arena->connection(connection).initiator_depth, 5u);
  EXPECT_EQ(arena->connection(connection).responder_resources, 3u);
}

// Its worker may have committed it before it could know.
TEST_F(QueueDriverTest, shouldEndAConnectionWhosePeerDoesNotAnswerAReadAndFenceNobody) {
  RawPeer peer;
  peer.parameters.responder_resources = 0;
  const uint32_t connection = Requested(peer);
  writer().Send(connection, 0, 8).opcode = static_cast<uint8_t>(verbs::Opcode::kRead);
  writer().Accept(connection, 0);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  NextOfKind(CompletionKind::kEstablished);
  EXPECT_EQ(arena->connection(connection).initiator_depth, 0u);
  NextOfKind(CompletionKind::kDisconnected);
  EXPECT_EQ(arena->connection(connection).send.completed, 0u);
  EXPECT_THAT(observer.states.back(), HasSubstr("answers no READs and atomics"));
}

// The peer may send as soon as it is accepted.
TEST_F(QueueDriverTest, shouldPostReceivesOfFormerTransactionsWithTheAccept) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  writer().Receive(connection, 0, 1024);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  EXPECT_EQ(arena->connection(connection).receive.posted, 0u);
  writer().Accept(connection, 0);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  EXPECT_EQ(arena->connection(connection).receive.posted, 1u);
}

TEST_F(QueueDriverTest, shouldSendInlineWhatTheBufferHeldWhenItWasPosted) {
  arena::Shape shape = TestShape();
  shape.max_inline_bytes = 64;
  Make(shape);
  RawPeer peer;
  const uint32_t connection = Established(peer);
  Put(2048, std::string(64, 'i'));
  writer().Send(connection, 2048, 64);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  ASSERT_EQ(arena->connection(connection).send.posted, 1u);
  Put(2048, std::string(64, '!'));  // the peer has no receive yet
  peer.Receive();
  ASSERT_TRUE(Until([&] { return !peer.received.empty(); }));
  EXPECT_EQ(peer.received[0], std::string(64, 'i'));
  EXPECT_EQ(NextOfKind(CompletionKind::kSend).status, 0u);
}

TEST_F(QueueDriverTest, shouldNameTheInlineBytesThatItsDeviceDoesNotTake) {
  arena::Shape shape = TestShape();
  shape.max_inline_bytes = arena::kMaxInlineBytes;  // neither Soft-RoCE nor the soft device has it
  arena::Arena other = arena::Arena::Create(shape, "kv").value();
  const absl::Status refused =
      native::LocalDriver::Create(&other, device.get(), &observer).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("max_inline_bytes: device "));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("4096 bytes inline"));
}

TEST_F(QueueDriverTest, shouldCarryAMessageThereAndBack) {
  RawPeer peer;
  const uint32_t connection = Established(peer, 1);
  peer.Receive();
  peer.Send("ping");
  const CompletionEntry received = NextOfKind(CompletionKind::kReceive);
  EXPECT_EQ(received.connection, connection);
  EXPECT_EQ(received.generation, 1u);
  EXPECT_EQ(received.sequence, 0u);
  EXPECT_EQ(received.byte_len, 4u);
  EXPECT_EQ(received.status, 0u);
  EXPECT_EQ(Text(0, 4), "ping");
  EXPECT_EQ(arena->connection(connection).bytes_received, 4u);

  Put(2048, "pong!");
  writer().Send(connection, 2048, 5).tag = 99;
  writer().Receive(connection, 0, 1024);
  AcknowledgeAll();
  const CompletionEntry sent = NextOfKind(CompletionKind::kSend);
  EXPECT_EQ(sent.tag, 99u);
  EXPECT_EQ(sent.sequence, 0u);
  EXPECT_EQ(sent.status, 0u);
  ASSERT_TRUE(Until([&] { return !peer.received.empty(); }));
  EXPECT_EQ(peer.received[0], "pong!");
  const arena::ConnectionRecord& record = arena->connection(connection);
  EXPECT_EQ(record.send.committed, 1u);
  EXPECT_EQ(record.send.posted, 1u);
  EXPECT_EQ(record.send.completed, 1u);
  EXPECT_EQ(record.send.acknowledged, 0u);
  EXPECT_EQ(record.receive.committed, 2u);
  EXPECT_EQ(record.receive.posted, 2u);
  EXPECT_EQ(record.receive.completed, 1u);
  EXPECT_EQ(record.receive.acknowledged, 1u);
  EXPECT_EQ(driver->counters(0).transactions, 2u);
  EXPECT_EQ(arena->shard(0).transactions, 2u);
}

TEST_F(QueueDriverTest, shouldAcknowledgeWithTheEntryOfAConnection) {
  RawPeer peer;
  const uint32_t connection = Established(peer, 1);
  peer.Receive();
  peer.Send("ping");
  NextOfKind(CompletionKind::kReceive);
  writer().Receive(connection, 0, 1024);
  writer().AcknowledgeWith(connection, read[0]);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  EXPECT_EQ(arena->shard(0).acknowledged, read[0]);
  EXPECT_EQ(arena->connection(connection).receive.acknowledged, 1u);
  // Without the flag the field is nothing.
  peer.Send("ping");
  NextOfKind(CompletionKind::kReceive);
  writer().Connection(connection).acknowledged = read[0];
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  EXPECT_EQ(arena->shard(0).acknowledged, read[0] - 1);
}

TEST_F(QueueDriverTest, shouldSendPrivateDataWithAnAccept) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  writer().Accept(connection, 0, "welcome");
  ASSERT_EQ(Commit(), CommitOutcome::kApplied);
  ASSERT_TRUE(Until([&] { return peer.established; }));
  EXPECT_EQ(peer.private_data.substr(0, 7), "welcome");
}

TEST_F(QueueDriverTest, shouldSendPrivateDataWithARejectAndEndTheConnection) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  writer().Reject(connection, "full up");
  ASSERT_EQ(Commit(), CommitOutcome::kApplied);
  ASSERT_TRUE(Until([&] { return peer.rejected; }));
  EXPECT_EQ(peer.private_data.substr(0, 7), "full up");
  NextOfKind(CompletionKind::kConnectFailed);
  AcknowledgeAll();
  EXPECT_EQ(state(connection), ConnectionState::kFree);
  EXPECT_TRUE(Until([&] { return connection_count() == 0; }));
}

TEST_F(QueueDriverTest, shouldKeepStateOnlyWithItsCommit) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  writer().ConnectionState(connection, "v1 of it", 1);
  writer().ShardState("all of it", 7);
  EXPECT_EQ(arena->connection(connection).state_length, 0u);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  const arena::ConnectionRecord& record = arena->connection(connection);
  EXPECT_EQ(record.state_slot, 1u);
  EXPECT_EQ(record.state_length, 8u);
  EXPECT_EQ(record.state_version, 1u);
  EXPECT_EQ(arena->shard(0).state_slot, 1u);
  EXPECT_EQ(arena->shard(0).state_length, 9u);
  EXPECT_EQ(arena->shard(0).state_version, 7u);
  writer().ConnectionState(connection, "v2", 2);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied);
  EXPECT_EQ(record.state_slot, 0u);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(arena->connection_state(connection, 0)), 2), "v2");
}

// (That receives are posted before sends is the simulation's to see.)
TEST_F(QueueDriverTest, shouldTakeTheAnswerToASendWithTheReceiveOfItsTransaction) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  for (int round = 0; round < 20; ++round) {
    peer.Receive();
    writer().Send(connection, 0, 4);
    writer().Receive(connection, 1024, 1024);
    AcknowledgeAll();
    ASSERT_TRUE(Until([&] { return peer.received.size() == static_cast<size_t>(round) + 1; }));
    peer.Send("answer");
    ASSERT_TRUE(Until([&] { return unread() == 2; }));
    read[0] += 2;
  }
}

// ---- Transactions.

TEST_F(QueueDriverTest, shouldTellReleaseFromOtherTransactions) {
  EXPECT_EQ(driver->ApplyNext(0, &error), CommitOutcome::kIdle);
  writer().Acknowledge(0);
  EXPECT_EQ(Commit(), CommitOutcome::kApplied);
  writer().Acknowledge(0).Release();
  EXPECT_EQ(Commit(), CommitOutcome::kReleased);
}

TEST_F(QueueDriverTest, shouldCountPendingEntries) {
  EXPECT_EQ(driver->PendingEntries(0), 0u);
  writer().Acknowledge(0).Publish();
  writer().Acknowledge(0).Acknowledge(0).Publish();
  EXPECT_EQ(driver->PendingEntries(0), 3u);
  ASSERT_EQ(driver->ApplyNext(0, &error), CommitOutcome::kApplied);
  EXPECT_EQ(driver->PendingEntries(0), 2u);
}

TEST_F(QueueDriverTest, shouldIgnoreALateStoreOfAnotherEpoch) {
  writer().Acknowledge(0).Publish();
  for (const uint64_t other : {uint64_t{0}, uint64_t{2}, uint64_t{5}}) {
    arena->bank(0, 1).tail = arena::PackCursor(other, 1);
    EXPECT_EQ(driver->PendingEntries(0), 0u);
    EXPECT_EQ(driver->ApplyNext(0, &error), CommitOutcome::kIdle);
  }
}

TEST_F(QueueDriverTest, shouldIgnoreWhatAFormerOwnerWritesIntoItsBank) {
  Ownership ownership(&*arena, 0);
  ownership.End(/*released=*/true);
  ownership.GiveTo(1, 2);
  writer().Acknowledge(0).Publish();  // into the bank of epoch 1
  EXPECT_EQ(driver->PendingEntries(0), 0u);
  EXPECT_EQ(driver->ApplyNext(0, &error), CommitOutcome::kIdle);
  CommitWriter successor(&*arena, 0);
  successor.Begin(2);
  successor.Acknowledge(0).Publish();
  EXPECT_EQ(driver->ApplyNext(0, &error), CommitOutcome::kApplied);
}

TEST_F(QueueDriverTest, shouldFindAnImpossibleTailInvalid) {
  for (const uint64_t tail : {uint64_t{arena::kCommitLogEntries} + 1, uint64_t{0xffff'ffff'ffff}}) {
    arena->bank(0, 1).tail = arena::PackCursor(1, tail);
    EXPECT_EQ(driver->PendingEntries(0), 1u);
    EXPECT_EQ(driver->ApplyNext(0, &error), CommitOutcome::kInvalid);
    EXPECT_THAT(std::string(error.message()), HasSubstr("tail"));
  }
}

TEST_F(QueueDriverTest, shouldFindATailThatGoesBackInvalid) {
  writer().Acknowledge(0);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied);
  arena->bank(0, 1).tail = arena::PackCursor(1, 0);
  EXPECT_EQ(driver->PendingEntries(0), 1u);
  EXPECT_EQ(driver->ApplyNext(0, &error), CommitOutcome::kInvalid);
}

TEST_F(QueueDriverTest, shouldWrapTheCommitLog) {
  for (uint32_t i = 0; i < 3 * arena::kCommitLogEntries; ++i) {
    writer().Acknowledge(0).Acknowledge(0).Acknowledge(0);
    ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  }
  EXPECT_EQ(driver->PendingEntries(0), 0u);
}

TEST_F(QueueDriverTest, shouldDoNothingAtAllOfAnInvalidTransaction) {
  RawPeer peer, other;
  const uint32_t connection = Established(peer, 1);
  const uint32_t requested = Requested(other);
  peer.Receive();
  const arena::ConnectionRecord before = arena->connection(connection);
  const arena::ShardRecord shard_before = arena->shard(0);
  writer().Send(connection, 0, 8);
  writer().Receive(connection, 1024, 8);
  writer().ConnectionState(connection, "new", 1);
  writer().ShardState("new", 1);
  writer().Acknowledge(read[0]);
  writer().Accept(requested, 0);
  writer().Connection(requested).send_end = 1000;  // the last entry spoils all
  ASSERT_EQ(Commit(), CommitOutcome::kInvalid);
  EXPECT_THAT(std::string(error.message()), HasSubstr("send_end: 1000"));
  const arena::ConnectionRecord& after = arena->connection(connection);
  EXPECT_EQ(after.send.committed, before.send.committed);
  EXPECT_EQ(after.send.posted, before.send.posted);
  EXPECT_EQ(after.receive.committed, before.receive.committed);
  EXPECT_EQ(after.receive.posted, before.receive.posted);
  EXPECT_EQ(after.state_slot, before.state_slot);
  EXPECT_EQ(after.state_length, before.state_length);
  EXPECT_EQ(arena->shard(0).acknowledged, shard_before.acknowledged);
  EXPECT_EQ(arena->shard(0).commit_head, shard_before.commit_head);
  EXPECT_EQ(arena->shard(0).state_length, shard_before.state_length);
  EXPECT_EQ(state(requested), ConnectionState::kRequested);
  // A message over the same connection shows that nothing was sent before it.
  Ownership(&*arena, 0).End(/*released=*/true);
  Ownership(&*arena, 0).GiveTo(0, 2);
  writer().Begin(2);
  Put(0, "valid");
  writer().Send(connection, 0, 5);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  ASSERT_TRUE(Until([&] { return !peer.received.empty(); }));
  EXPECT_THAT(peer.received, ElementsAre("valid"));
  EXPECT_FALSE(other.established);
}

// ---- Requests that wait for their connection.

TEST_F(QueueDriverTest, shouldPostWhatWasCommittedBeforeTheConnectionStood) {
  RawPeer peer;
  for (int i = 0; i < 3; ++i) peer.Receive();
  const uint32_t connection = Requested(peer);
  for (int i = 0; i < 3; ++i) {
    Put(Offset(i), absl::StrCat("early ", i));
    writer().Send(connection, Offset(i), 7);
    writer().Receive(connection, Offset(10 + i), 1024);
  }
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  EXPECT_EQ(arena->connection(connection).send.committed, 3u);
  EXPECT_EQ(arena->connection(connection).send.posted, 0u);
  EXPECT_EQ(arena->connection(connection).receive.posted, 0u);
  writer().Accept(connection, 0);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  ASSERT_TRUE(Until([&] { return peer.received.size() == 3; }));
  EXPECT_THAT(peer.received, ElementsAre("early 0", "early 1", "early 2"));
  EXPECT_EQ(arena->connection(connection).receive.posted, 3u);
  peer.Send("late");
  ASSERT_TRUE(Until([&] { return arena->connection(connection).receive.completed == 1; }));
  EXPECT_EQ(Text(Offset(10), 4), "late");
}

TEST_F(QueueDriverTest, shouldFailOnlyTheConnectionWhoseWaitingRequestsWereChanged) {
  RawPeer peer, good;
  const uint32_t connection = Requested(peer);
  writer().Send(connection, 0, 8);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied);
  arena->send_request(connection, 0).sges[0] = {~uint64_t{0} - 3, 8, 0};  // after its commit
  writer().Accept(connection, 0);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied);
  NextOfKind(CompletionKind::kEstablished);
  const CompletionEntry ended = NextOfKind(CompletionKind::kDisconnected);
  EXPECT_EQ(ended.status, static_cast<uint8_t>(CompletionStatus::kGeneralError));
  EXPECT_THAT(observer.states.back(), HasSubstr("changed after its commit"));
  Established(good);
}

// ---- Ends of connections.

TEST_F(QueueDriverTest, shouldFlushEverythingBeforeItTellsOfTheEnd) {
  RawPeer peer;
  const uint32_t connection = Established(peer, 5);
  writer().Disconnect(connection);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied);
  for (uint64_t i = 0; i < 5; ++i) {
    const CompletionEntry flushed = NextOfKind(CompletionKind::kReceive);
    EXPECT_EQ(flushed.status, static_cast<uint8_t>(CompletionStatus::kFlushError));
    EXPECT_EQ(flushed.sequence, i);
  }
  const CompletionEntry ended = NextOfKind(CompletionKind::kDisconnected);
  EXPECT_EQ(ended.status, 0u);
  EXPECT_EQ(state(connection), ConnectionState::kClosed);
  EXPECT_TRUE(Until([&] { return peer.disconnected; }));
  EXPECT_EQ(unread(), 0u);
}

TEST_F(QueueDriverTest, shouldTellOfAPeerThatDisconnects) {
  RawPeer peer;
  const uint32_t connection = Established(peer, 2);
  peer.Disconnect();
  NextOfKind(CompletionKind::kReceive);
  NextOfKind(CompletionKind::kReceive);
  EXPECT_EQ(NextOfKind(CompletionKind::kDisconnected).connection, connection);
  for (int i = 0; i < 100; ++i) Turn();
  EXPECT_EQ(unread(), 0u);
  EXPECT_THAT(observer.states.back(), HasSubstr("ended: "));
}

TEST_F(QueueDriverTest, shouldTellWhyARequestFailed) {
  RawPeer peer;
  const uint32_t connection = Established(peer, 1);
  arena::WorkRequest& request = writer().Send(connection, 0, 8);
  request.opcode = static_cast<uint8_t>(verbs::Opcode::kWrite);
  request.remote_address = peer.address();
  request.rkey = peer.rkey() ^ 0x5555;  // not one of the peer's
  writer().Send(connection, 0, 8);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  std::vector<CompletionEntry> entries;
  do {
    entries.push_back(Next());
  } while (CompletionKind(entries.back().kind) != CompletionKind::kDisconnected && !HasFailure());
  ASSERT_EQ(entries.size(), 4u);  // two sends, a receive, the end
  int failed = 0, flushed = 0;
  for (const CompletionEntry& entry : entries) {
    failed += entry.status == static_cast<uint8_t>(CompletionStatus::kRemoteAccessError);
    flushed += entry.status == static_cast<uint8_t>(CompletionStatus::kFlushError);
  }
  EXPECT_EQ(failed, 2);  // the request, and the reason of the end
  EXPECT_EQ(flushed, 2);
  EXPECT_EQ(arena->connection(connection).last_status,
            static_cast<uint32_t>(CompletionStatus::kRemoteAccessError));
}

TEST_F(QueueDriverTest, shouldGiveASlotAgainWithANewGeneration) {
  Make(TestShape(1, 1));
  const uint32_t last = harness::Slowness() > 1 ? 50 : 200;
  for (uint32_t generation = 1; generation <= last; ++generation) {
    RawPeer peer;
    const uint32_t connection = Established(peer, 2);
    ASSERT_EQ(connection, 0u);
    ASSERT_EQ(arena->connection(0).generation, generation);
    writer().Disconnect(connection);
    ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
    NextOfKind(CompletionKind::kReceive);
    NextOfKind(CompletionKind::kReceive);
    NextOfKind(CompletionKind::kDisconnected);
    EXPECT_EQ(state(connection), ConnectionState::kClosed);
    AcknowledgeAll();
    ASSERT_EQ(state(connection), ConnectionState::kFree);
    peers.clear();
  }
  EXPECT_EQ(arena->shard(0).connections, 0u);
}

TEST_F(QueueDriverTest, shouldKeepASlotUntilItsEndIsAcknowledged) {
  Make(TestShape(1, 1));
  RawPeer first, second;
  const uint32_t connection = Established(first);
  writer().Disconnect(connection);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied);
  NextOfKind(CompletionKind::kDisconnected);
  peers.push_back(&second);
  second.Connect(port);
  ASSERT_TRUE(Until([&] { return second.rejected; }));
  ASSERT_EQ(observer.refused.size(), 1u);
  EXPECT_THAT(observer.refused[0], HasSubstr("max_connections"));
}

TEST_F(QueueDriverTest, shouldRejectPeersWhenAllSlotsAreTaken) {
  Make(TestShape(1, 2));
  RawPeer first, second, third;
  Established(first);
  Established(second);
  peers.push_back(&third);
  third.Connect(port);
  ASSERT_TRUE(Until([&] { return third.rejected; }));
  EXPECT_THAT(third.private_data, HasSubstr("no connection slot is free"));
  EXPECT_EQ(unread(), 0u);
  EXPECT_FALSE(Connect({fabric.host, port}, "", 0).ok());
}

TEST_F(QueueDriverTest, shouldOnlyFailTheConnectionWhenThePeerHasGoneBeforeTheAccept) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  peer.Vanish();
  writer().Receive(connection, 0, 8);
  writer().Accept(connection, 0);
  EXPECT_EQ(Commit(), CommitOutcome::kApplied) << error;
  EXPECT_EQ(NextOfKind(CompletionKind::kReceive).status,
            static_cast<uint8_t>(CompletionStatus::kFlushError));
  NextOfKind(CompletionKind::kConnectFailed);
  AcknowledgeAll();
  EXPECT_EQ(state(connection), ConnectionState::kFree);
}

TEST_F(QueueDriverTest, shouldIgnoreAnAcceptOfAConnectionThatHasEnded) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  writer().Reject(connection);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied);
  writer().Accept(connection, 0);
  writer().Receive(connection, 0, 8);
  writer().Send(connection, 0, 8);
  EXPECT_EQ(Commit(), CommitOutcome::kApplied) << error;
  EXPECT_EQ(state(connection), ConnectionState::kClosed);
  EXPECT_EQ(arena->connection(connection).receive.posted, 0u);
  NextOfKind(CompletionKind::kConnectFailed);
  EXPECT_EQ(unread(), 0u);
}

TEST_F(QueueDriverTest, shouldSurviveEveryPairOfDecisionsInOneTransaction) {
  const auto decide = [&](int what, uint32_t connection) {
    if (what == 0) writer().Accept(connection, 0);
    if (what == 1) writer().Reject(connection);
    if (what == 2) writer().Disconnect(connection);
  };
  for (int first = 0; first < 3; ++first) {
    for (int second = 0; second < 3; ++second) {
      RawPeer peer;
      const uint32_t connection = Requested(peer);
      decide(first, connection);
      writer().Receive(connection, 0, 8);
      decide(second, connection);
      ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
      writer().Disconnect(connection);
      ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
      CompletionEntry entry;
      do {
        entry = Next();
      } while (!HasFailure() && CompletionKind(entry.kind) != CompletionKind::kDisconnected &&
               CompletionKind(entry.kind) != CompletionKind::kConnectFailed);
      EXPECT_TRUE(Until([&] { return peer.rejected || peer.disconnected; }))
          << first << " then " << second;
      AcknowledgeAll();
      EXPECT_EQ(state(connection), ConnectionState::kFree);
      peers.clear();
    }
  }
}

// ---- Several shards.

TEST_F(QueueDriverTest, shouldSpreadRequestsOverShards) {
  Make(TestShape(2));
  RawPeer first, second;
  for (RawPeer* peer : {&first, &second}) {
    peers.push_back(peer);
    peer->Connect(port);
  }
  ASSERT_TRUE(Until([&] { return unread(0) == 1 && unread(1) == 1; }));
}

TEST_F(QueueDriverTest, shouldAcceptIntoAnotherShardOfTheSameOwner) {
  Make(TestShape(2));
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  writer(0).Receive(connection, 0, 1024);
  writer(0).Accept(connection, 1);
  ASSERT_EQ(Commit(0), CommitOutcome::kApplied) << error;
  EXPECT_EQ(NextOfKind(CompletionKind::kEstablished, 1).connection, connection);
  EXPECT_EQ(arena->connection(connection).shard, 1u);
  EXPECT_EQ(arena->shard(0).connections, 0u);
  EXPECT_EQ(arena->shard(1).connections, 1u);
  peer.Send("to shard one");
  EXPECT_EQ(NextOfKind(CompletionKind::kReceive, 1).byte_len, 12u);
  EXPECT_EQ(unread(0), 0u);
  // Its former shard has no say any more.
  writer(0).Disconnect(connection);
  EXPECT_EQ(Commit(0), CommitOutcome::kInvalid);
}

TEST_F(QueueDriverTest, shouldCountRequestsInTheShardThatTheirConnectionMovedTo) {
  Make(TestShape(2));
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  writer(0).Receive(connection, 0, 1024);
  ASSERT_EQ(Commit(0), CommitOutcome::kApplied);
  writer(0).Accept(connection, 1);
  ASSERT_EQ(Commit(0), CommitOutcome::kApplied);
  NextOfKind(CompletionKind::kEstablished, 1);
  EXPECT_EQ(driver->counters(0).receives_committed, driver->counters(0).receives_posted);
  EXPECT_EQ(driver->counters(1).receives_committed, 1u);
  EXPECT_EQ(driver->counters(1).receives_posted, 1u);
}

TEST_F(QueueDriverTest, shouldForgetRequestsThatCanNeverBePostedWhenItCounts) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  writer().Send(connection, 0, 8);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied);
  writer().Reject(connection);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied);
  NextOfKind(CompletionKind::kConnectFailed);
  writer().Send(connection, 0, 8);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  EXPECT_EQ(driver->counters(0).sends_committed, driver->counters(0).sends_posted);
}

TEST_F(QueueDriverTest, shouldNotAcceptIntoAShardOfSomebodyElse) {
  Make(TestShape(2));
  Ownership other(&*arena, 1);
  other.End(/*released=*/true);
  other.GiveTo(3, 77);
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  writer(0).Accept(connection, 1);
  ASSERT_EQ(Commit(0), CommitOutcome::kApplied) << error;
  NextOfKind(CompletionKind::kConnectFailed, 0);
  EXPECT_EQ(unread(1), 0u);
  EXPECT_TRUE(Until([&] { return peer.rejected; }));
  EXPECT_THAT(observer.states.back(), HasSubstr("a shard that the worker does not own"));
}

TEST_F(QueueDriverTest, shouldNotLetAnOwnerOverflowALogByNotAcknowledgingRequests) {
  // The requests of one slot, all in the log of shard 0, whose owner acknowledges none of them.
  Make(TestShape(2, 1, 1));
  const uint32_t entries = arena->shape().completion_log_entries;
  uint32_t turned_away = 0;
  for (uint32_t i = 0; i <= entries; ++i) {
    RawPeer peer;
    peers = {&peer};
    peer.Connect(port);
    ASSERT_TRUE(Until([&] { return unread(0) > 0 || peer.rejected; }));
    if (peer.rejected) {
      ++turned_away;
      peers.clear();
      break;
    }
    const uint32_t connection = Next(0).connection;
    writer(0).Accept(connection, 1);
    ASSERT_EQ(Commit(0), CommitOutcome::kApplied) << error;
    NextOfKind(CompletionKind::kEstablished, 1);
    writer(1).Disconnect(connection);
    ASSERT_EQ(Commit(1), CommitOutcome::kApplied) << error;
    NextOfKind(CompletionKind::kDisconnected, 1);
    AcknowledgeAll(1);
    peers.clear();
  }
  EXPECT_EQ(turned_away, 1u);
  // Once they are acknowledged the slot serves again.
  AcknowledgeAll();
  RawPeer late;
  Requested(late);
}

// ---- Full depth.

TEST_F(QueueDriverTest, shouldHoldEveryCompletionAtFullDepthWithoutAnAcknowledgement) {
  constexpr uint32_t kDepth = 8, kConnections = 3;
  Make(TestShape(1, kConnections, kDepth));
  std::vector<std::unique_ptr<RawPeer>> all;
  for (uint32_t i = 0; i < kConnections; ++i) all.push_back(std::make_unique<RawPeer>());
  for (auto& peer : all) Established(*peer);
  for (auto& peer : all) {
    for (uint32_t i = 0; i < 2 * kDepth; ++i) peer->Receive();
  }
  const auto complete = [&](uint32_t connection, uint64_t sends, uint64_t receives) {
    return arena->connection(connection).send.completed == sends &&
           arena->connection(connection).receive.completed == receives;
  };
  // Both logs of every connection, filled twice the depth, in two rounds.
  for (uint32_t round = 1; round <= 2; ++round) {
    for (uint32_t connection = 0; connection < kConnections; ++connection) {
      for (uint32_t i = 0; i < kDepth; ++i) {
        writer().Send(connection, Offset(static_cast<int>(i)), 8);
        writer().Receive(connection, Offset(static_cast<int>(32 + i)), 1024);
      }
      ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
      for (uint32_t i = 0; i < kDepth; ++i) all[connection]->Send("full");
      ASSERT_TRUE(Until([&] { return complete(connection, round * kDepth, round * kDepth); }));
    }
  }
  // No more fits, and that is the worker's fault.
  CommitWriter overdraw = writer();
  overdraw.Send(0, 0, 8);
  overdraw.Publish();
  ASSERT_EQ(driver->ApplyNext(0, &error), CommitOutcome::kInvalid);
  EXPECT_THAT(std::string(error.message()), HasSubstr("overtakes the log"));
  writer().Begin(1);
  // The ends of all connections still fit.
  for (auto& peer : all) peer->Disconnect();
  for (uint32_t i = 0; i < kConnections; ++i) {
    ASSERT_TRUE(Until([&] { return state(i) == ConnectionState::kClosed; }));
  }
  ASSERT_TRUE(driver->PollCompletions(0).ok());
  const uint64_t expected = kConnections * (4 * kDepth + 3);
  EXPECT_EQ(arena->shard(0).completion_tail, expected);
  EXPECT_LE(expected, arena->shape().completion_log_entries);
}

// The driver handles a bounded number of notices in a turn, and polls all completion queues.
TEST_F(QueueDriverTest, shouldEndAllConnectionsInOrderHoweverLateItHearsOfIt) {
  RawPeer peer;
  Established(peer, 1);
  EXPECT_EQ(local->manager().DisconnectAll("the service is drained"), 1u);
  for (int i = 0; i < 10; ++i) {
    device->Progress();
    ASSERT_TRUE(driver->PollCompletions(0).ok());
  }
  EXPECT_EQ(unread(), 0u);
  EXPECT_EQ(NextOfKind(CompletionKind::kReceive).status,
            static_cast<uint8_t>(CompletionStatus::kFlushError));
  EXPECT_EQ(NextOfKind(CompletionKind::kDisconnected).status, 0);
  EXPECT_THAT(observer.states.back(), HasSubstr("the service is drained"));
  EXPECT_TRUE(Until([&] { return peer.disconnected; }));
}

// ---- Connecting out, listeners, grants.

TEST_F(QueueDriverTest, shouldConnectOut) {
  RawPeer peer;
  peers.push_back(&peer);
  peer.AnswerWith("come in");
  const auto connection = Connect({fabric.host, peer.Listen()}, "let me in", 4242);
  ASSERT_TRUE(connection.ok()) << connection.status();
  const CompletionEntry established = NextOfKind(CompletionKind::kEstablished);
  EXPECT_EQ(established.connection, *connection);
  EXPECT_EQ(established.tag, 4242u);
  EXPECT_EQ(peer.private_data.substr(0, 9), "let me in");
  const arena::ConnectionRecord& record = arena->connection(*connection);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(record.private_data), 7), "come in");
  EXPECT_EQ(record.listener_port, 0u);
}

TEST_F(QueueDriverTest, shouldIgnoreAnAcceptOfAConnectionThatConnectsOut) {
  RawPeer peer;
  peers.push_back(&peer);
  const auto connection = Connect({fabric.host, peer.Listen()}, "", 0);
  ASSERT_TRUE(connection.ok()) << connection.status();
  writer().Accept(*connection, 0);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  EXPECT_EQ(NextOfKind(CompletionKind::kEstablished).connection, *connection);
}

TEST_F(QueueDriverTest, shouldTellThatAConnectionWasRefused) {
  RawPeer peer;
  peers.push_back(&peer);
  peer.Refuse("no");
  const auto connection = Connect({fabric.host, peer.Listen()}, "", 17);
  ASSERT_TRUE(connection.ok());
  const CompletionEntry failed = NextOfKind(CompletionKind::kConnectFailed);
  EXPECT_EQ(failed.tag, 17u);
  EXPECT_EQ(failed.connection, *connection);
  EXPECT_THAT(observer.states.back(), HasSubstr("rejected by the peer"));
}

TEST_F(QueueDriverTest, shouldTellThatNobodyListens) {
  uint16_t unused;
  { unused = RawPeer().Listen(); }
  const auto connection = Connect({fabric.host, unused}, "", 18);
  if (!connection.ok()) {
    EXPECT_EQ(connection_count(), 0u);
    return;
  }
  const CompletionEntry failed = NextOfKind(CompletionKind::kConnectFailed);
  EXPECT_EQ(failed.tag, 18u);
  EXPECT_EQ(failed.status, static_cast<uint8_t>(CompletionStatus::kRetryExceeded));
}

TEST_F(QueueDriverTest, shouldGiveBackTheSlotOfAConnectThatCannotBegin) {
  EXPECT_FALSE(Connect({fabric.host, port}, std::string(5000, 'x'), 1).ok());
  EXPECT_EQ(connection_count(), 0u);
  EXPECT_EQ(arena->shard(0).connections, 0u);
}

TEST_F(QueueDriverTest, shouldListenOnceForTheSameAddress) {
  EXPECT_EQ(Listen({fabric.host, 0})->port, port);
  EXPECT_EQ(Listen({fabric.host, port})->port, port);
  EXPECT_EQ(driver->objects()->ListenAddresses().size(), 1u);
  RawPeer taken;
  EXPECT_EQ(Listen({fabric.host, taken.Listen()}).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(QueueDriverTest, shouldGrantOnlyWhatIsWithinTheBuffers) {
  const uint64_t total = arena->shape().buffer_bytes;
  EXPECT_TRUE(Grant(0, total).ok());
  for (const auto& [offset, length] :
       std::vector<std::pair<uint64_t, uint64_t>>{{0, 0},
                                                  {0, total + 1},
                                                  {total, 1},
                                                  {1, total},
                                                  {~uint64_t{0}, 2},
                                                  {8, ~uint64_t{0} - 4}}) {
    EXPECT_EQ(Grant(offset, length).status().code(), absl::StatusCode::kInvalidArgument)
        << offset << " " << length;
  }
}

TEST_F(QueueDriverTest, shouldRevokeGrantsOnceAndUseTheirSlotsAgain) {
  std::vector<uint32_t> grants;
  for (uint32_t i = 0; i < arena::kGrants; ++i) {
    grants.push_back(Grant(0, 64).value());
  }
  EXPECT_EQ(Grant(0, 64).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(arena->grant(7).length, 0u);
  EXPECT_TRUE(Revoke(7).ok());
  EXPECT_EQ(arena->grant(7).length, 0u);
  EXPECT_EQ(Revoke(7).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Revoke(arena::kGrants).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Grant(0, 64).value(), 7u);
}

// An order to revoke that comes twice, and late, would end the access of another peer.
TEST_F(QueueDriverTest, shouldGiveTheNumberOfARevokedGrantLastOfAll) {
  const uint32_t first = Grant(0, 64).value();
  ASSERT_TRUE(Revoke(first).ok());
  for (uint32_t i = 1; i < arena::kGrants; ++i) {
    const uint32_t other = Grant(0, 64).value();
    ASSERT_NE(other, first);
    ASSERT_TRUE(Revoke(other).ok());
  }
  EXPECT_EQ(Grant(0, 64).value(), first);
}

// ---- Poison.

class PoisonTest : public QueueDriverTest {
 protected:
  // The owner is dead; the next one is given the shard with Succeed.
  CompletionEntry Poison(uint64_t completion) {
    Ownership(&*arena, 0).End(/*released=*/true);
    return driver->Poison(0, completion, "poisoned").value();
  }
  void Succeed() {
    Ownership ownership(&*arena, 0);
    ownership.GiveTo(0, 2);
    writers[0].Begin(ownership.epoch());
    read[0] = arena->shard(0).acknowledged;
  }
  void PoisonAndSucceed(uint64_t completion) {
    Poison(completion);
    Succeed();
  }
  // Sends of `peer` that were received before anybody looked: their index in the log.
  uint64_t Received(RawPeer& peer, std::vector<std::string> texts) {
    const uint64_t first = arena->shard(0).completion_tail;
    for (const std::string& text : texts) peer.Send(text);
    EXPECT_TRUE(Until([&] { return arena->shard(0).completion_tail == first + texts.size(); }));
    return first;
  }
  static bool IsVoid(const CompletionEntry& entry) {
    return (entry.flags & arena::kCompletionVoid) != 0;
  }
  void ExpectFlushed(const CompletionEntry& entry, uint64_t sequence) {
    EXPECT_EQ(static_cast<int>(entry.kind), static_cast<int>(CompletionKind::kReceive));
    EXPECT_EQ(entry.status, static_cast<uint8_t>(CompletionStatus::kFlushError));
    EXPECT_EQ(entry.byte_len, 0u);
    EXPECT_EQ(entry.sequence, sequence);
    EXPECT_EQ(entry.generation, arena->connection(entry.connection).generation);
  }
};

TEST_F(PoisonTest, shouldFailOneConnectionFromTheCompletionOnAndTouchNoOther) {
  RawPeer bad, good;
  const uint32_t poisoned = Established(bad, 5);
  const uint32_t other = Established(good, 5);
  AcknowledgeAll();
  const uint64_t first = Received(bad, {"fine"});
  Received(good, {"one"});
  const uint64_t suspect = Received(bad, {"poison"});
  Received(good, {"two"});
  Received(bad, {"after"});
  const CompletionEntry blamed = Poison(suspect);
  EXPECT_EQ(blamed.connection, poisoned);
  EXPECT_EQ(blamed.sequence, 1u);
  EXPECT_EQ(blamed.byte_len, 6u);
  Succeed();
  ASSERT_EQ(arena->shard(0).acknowledged, first);
  const CompletionEntry before = Next();
  EXPECT_EQ(before.status, 0u);
  EXPECT_EQ(before.byte_len, 4u);
  const CompletionEntry one = Next();
  EXPECT_EQ(one.connection, other);
  EXPECT_EQ(one.byte_len, 3u);
  ExpectFlushed(Next(), 1);
  const CompletionEntry two = Next();
  EXPECT_EQ(two.connection, other);
  EXPECT_EQ(two.status, 0u);
  for (uint64_t sequence = 2; sequence < 5; ++sequence) ExpectFlushed(Next(), sequence);
  EXPECT_EQ(NextOfKind(CompletionKind::kDisconnected).connection, poisoned);
  EXPECT_TRUE(Until([&] { return bad.disconnected; }));
  AcknowledgeAll();
  EXPECT_EQ(state(poisoned), ConnectionState::kFree);
  // The other one goes on.
  good.Receive();
  writer().Send(other, 0, 4);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  EXPECT_EQ(NextOfKind(CompletionKind::kSend).status, 0u);
  EXPECT_TRUE(Until([&] { return good.received.size() == 1; }));
  EXPECT_FALSE(good.disconnected);
}

// Messages that had arrived and were not polled yet are as bad as what followed them.
TEST_F(PoisonTest, shouldFlushWhatTheDeviceHadCompletedBefore) {
  RawPeer peer;
  Established(peer, 4);
  AcknowledgeAll();
  const uint64_t suspect = Received(peer, {"poison"});
  peer.Send("arrived");
  // Received, and in the completion queue, as soon as the peer knows it.
  ASSERT_TRUE(testing::Pump(
      [&] {
        device->Progress();
        peer.Turn();
      },
      [&] { return peer.sent.size() == 2; }));
  PoisonAndSucceed(suspect);
  for (uint64_t sequence = 0; sequence < 4; ++sequence) ExpectFlushed(Next(), sequence);
  NextOfKind(CompletionKind::kDisconnected);
}

TEST_F(PoisonTest, shouldRejectAPoisonedRequestAndUseItsSlotAgain) {
  Make(TestShape(1, 1));
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  PoisonAndSucceed(0);
  EXPECT_TRUE(Until([&] { return peer.rejected; }));
  for (const CompletionKind kind :
       {CompletionKind::kConnectRequest, CompletionKind::kConnectFailed}) {
    const CompletionEntry entry = NextOfKind(kind);
    EXPECT_TRUE(IsVoid(entry));
    EXPECT_EQ(entry.generation, arena->connection(connection).generation | 0x8000'0000u);
  }
  AcknowledgeAll();
  EXPECT_EQ(state(connection), ConnectionState::kFree);
  peers.clear();
  RawPeer next;
  EXPECT_EQ(Requested(next), connection);
  EXPECT_EQ(arena->connection(connection).generation, 2u);
  EXPECT_EQ(arena->connection(connection).poison, 0u);
}

TEST_F(PoisonTest, shouldEndAConnectionWhoseEstablishmentIsPoisoned) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  writer().Receive(connection, 0, 1024);
  writer().Accept(connection, 0).Acknowledge(read[0]);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  const uint64_t suspect = read[0];
  NextOfKind(CompletionKind::kEstablished);
  PoisonAndSucceed(suspect);
  EXPECT_TRUE(IsVoid(NextOfKind(CompletionKind::kEstablished)));
  ExpectFlushed(Next(), 0);
  EXPECT_FALSE(IsVoid(NextOfKind(CompletionKind::kDisconnected)));
  EXPECT_TRUE(Until([&] { return peer.disconnected; }));
}

// Owners that die of flush errors, too, are given none; of the end they still hear.
TEST_F(PoisonTest, shouldVoidTheFlushErrorsOnWhichOwnersDieAsWell) {
  RawPeer peer;
  const uint32_t connection = Established(peer, 3);
  AcknowledgeAll();
  const uint64_t suspect = Received(peer, {"poison"});
  PoisonAndSucceed(suspect);
  for (uint64_t sequence = 0; sequence < 3; ++sequence) ExpectFlushed(Next(), sequence);
  PoisonAndSucceed(suspect);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(IsVoid(Next()));
  const CompletionEntry end = NextOfKind(CompletionKind::kDisconnected);
  EXPECT_FALSE(IsVoid(end));
  EXPECT_EQ(end.connection, connection);
  AcknowledgeAll();
  EXPECT_EQ(state(connection), ConnectionState::kFree);
}

TEST_F(PoisonTest, shouldFreeTheSlotOfAConnectionWhoseEndIsPoisoned) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  AcknowledgeAll();
  peer.Disconnect();
  const uint64_t suspect = read[0];
  NextOfKind(CompletionKind::kDisconnected);
  PoisonAndSucceed(suspect);
  EXPECT_TRUE(IsVoid(NextOfKind(CompletionKind::kDisconnected)));
  AcknowledgeAll();
  EXPECT_EQ(state(connection), ConnectionState::kFree);
  EXPECT_TRUE(Until([&] { return connection_count() == 0; }));
}

// The entry is in one log and the connection's end in the other, which an owner may be reading.
TEST_F(PoisonTest, shouldOnlyEndAConnectionThatHasMovedToAnotherShard) {
  Make(TestShape(2));
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  writer(0).Receive(connection, 0, 1024);
  writer(0).Accept(connection, 1);  // and without an acknowledgement
  ASSERT_EQ(Commit(0), CommitOutcome::kApplied) << error;
  NextOfKind(CompletionKind::kEstablished, 1);
  PoisonAndSucceed(0);
  EXPECT_TRUE(IsVoid(NextOfKind(CompletionKind::kConnectRequest, 0)));
  const CompletionEntry flushed = NextOfKind(CompletionKind::kReceive, 1);
  EXPECT_EQ(flushed.flags, 0u);
  EXPECT_EQ(flushed.status, static_cast<uint8_t>(CompletionStatus::kFlushError));
  EXPECT_EQ(NextOfKind(CompletionKind::kDisconnected, 1).flags, 0u);
  AcknowledgeAll();
  AcknowledgeAll(1);
  EXPECT_EQ(state(connection), ConnectionState::kFree);
}

TEST_F(PoisonTest, shouldBlameWhoWasNotBlamedBeforeFirst) {
  constexpr uint64_t kAll = UINT64_MAX;
  EXPECT_FALSE(driver->OldestToBlame(0, kAll));
  RawPeer first, second;
  Established(first, 2);
  Established(second, 2);
  AcknowledgeAll();
  const uint64_t of_first = Received(first, {"a"});
  const uint64_t of_second = Received(second, {"b"});
  EXPECT_EQ(driver->OldestToBlame(0, kAll), of_first);
  PoisonAndSucceed(of_first);
  EXPECT_EQ(driver->OldestToBlame(0, kAll), of_second);
  EXPECT_EQ(driver->OldestToBlame(0, of_second), of_first);  // the other came later
  PoisonAndSucceed(of_second);
  EXPECT_EQ(driver->OldestToBlame(0, kAll), of_first);  // again, and then it is void
  PoisonAndSucceed(of_first);
  EXPECT_EQ(driver->OldestToBlame(0, kAll), of_second);
  PoisonAndSucceed(of_second);
  // Their ends, and what was flushed; nothing for ever.
  for (int i = 0; i < 4 && driver->OldestToBlame(0, kAll); ++i) {
    Turn();
    PoisonAndSucceed(*driver->OldestToBlame(0, kAll));
  }
  EXPECT_FALSE(driver->OldestToBlame(0, kAll));
  EXPECT_TRUE(Until([&] { return arena->shard(0).completion_tail == read[0] + 6; }));
  read[0] += 6;
  AcknowledgeAll();
  EXPECT_TRUE(Until([&] { return connection_count() == 0; }));
}

TEST_F(PoisonTest, shouldNeverRewriteALogThatSomebodyMayRead) {
  RawPeer peer;
  Established(peer);
  EXPECT_EQ(driver->Poison(0, 0, "poisoned").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(PoisonTest, shouldPoisonNothingThatCannotBe) {
  RawPeer peer;
  Established(peer);
  Ownership(&*arena, 0).End(/*released=*/true);
  const uint64_t tail = arena->shard(0).completion_tail;
  for (const uint64_t completion : {tail, uint64_t{1} << 60}) {
    EXPECT_EQ(driver->Poison(0, completion, "poisoned").status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
  arena->completion(0, tail - 1).connection = ~0u;
  EXPECT_EQ(driver->Poison(0, tail - 1, "poisoned").status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(driver->OldestToBlame(0, ~uint64_t{0}), tail - 2);
  arena->shard(0).acknowledged = tail + 1;
  EXPECT_FALSE(driver->OldestToBlame(0, ~uint64_t{0}));
  EXPECT_FALSE(driver->Poison(0, 0, "poisoned").ok());
}

// A driver applied all of this epoch and made its cut. It died before it began the next epoch.
TEST_F(QueueDriverTest, shouldApplyNothingOfAnEpochWhoseCutIsMade) {
  writer().ShardState("once", 1);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  writer().ShardState("again", 1);
  writer().Publish();
  EXPECT_EQ(driver->PendingEntries(0), 1u);
  arena->shard(0).commit_head = arena::PackCursor(2, 0);
  EXPECT_EQ(driver->PendingEntries(0), 0u);
  EXPECT_EQ(driver->ApplyNext(0, &error), CommitOutcome::kIdle);
  EXPECT_EQ(arena->shard(0).state_length, 4u);
}

}  // namespace
}  // namespace baton::driver
