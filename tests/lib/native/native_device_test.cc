// A native service's `baton-driver` and the drivers of its shards, in one process: their notices
// and orders, and what becomes of these when a driver dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/crash_point.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "lib/native/connection_manager.h"
#include "lib/native/mailbox.h"
#include "lib/native/native_device.h"
#include "tests/harness/stopped_clock.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/native/manager_fixture.h"
#include "tests/lib/verbs/fabric.h"
#include "tests/lib/verbs/fake_device.h"
#include "tests/lib/verbs/forwarding_device.h"

namespace baton::native {
namespace {

using arena::CompletionKind;
using arena::ConnectionState;
using arena::MailEntry;
using arena::OrderKind;
using driver::CommitOutcome;
using driver::QueueDriver;
using driver::testing::CommitWriter;
using driver::testing::Pump;
using driver::testing::RawPeer;
using ::testing::Contains;
using testing::Driver;
using ::testing::HasSubstr;
using testing::kPool;
using ::testing::Not;
using ::testing::SizeIs;

// A device that tells what a test has put into `told` and `events` before its own events.
class TellingDevice final : public verbs::testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  verbs::DeviceInfo info() const override { return {}; }
  bool NextDeviceEvent(verbs::DeviceEvent* event) override {
    if (told.empty()) return inner().NextDeviceEvent(event);
    *event = told.front();
    told.pop_front();
    return true;
  }

  bool NextEvent(verbs::CmEvent* event) override {
    if (events.empty()) return inner().NextEvent(event);
    *event = std::move(events.front());
    events.pop_front();
    return true;
  }

  std::deque<verbs::DeviceEvent> told;
  std::deque<verbs::CmEvent> events;
};

// The id by which `baton-driver` knows a connection.
class NamedId final : public verbs::testing::FakeConnectionId {
 public:
  explicit NamedId(uint32_t connection) {
    context = reinterpret_cast<void*>(uintptr_t{connection} + 1);
  }
};

using NativeDeviceTest = testing::ManagerFixture;

TEST_F(NativeDeviceTest, shouldCarryMessagesOnAConnectionThatBatonDriverMade) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  EXPECT_EQ(peer.private_data.substr(0, 7), "welcome");
  EXPECT_THAT(std::string(arena->connection(connection).peer_address), HasSubstr(fabric.host));
  EXPECT_GT(arena->connection(connection).initiator_depth, 0);
  for (int i = 0; i < 3; ++i) ExchangeAMessage(connection, peer);
}

TEST_F(NativeDeviceTest, shouldRejectInTheNameOfTheOwner) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  writer->Reject(connection, "full up");
  AcknowledgeAll();
  ASSERT_TRUE(Until([&] { return peer.rejected; }));
  EXPECT_EQ(peer.private_data.substr(0, 7), "full up");
  NextOfKind(CompletionKind::kConnectFailed);
  AcknowledgeAll();
  EXPECT_EQ(state(connection), ConnectionState::kFree);
}

// `baton-driver` rejects those that wait, without an answer of an owner, when it drains.
TEST_F(NativeDeviceTest, shouldNotRejectWithTheAnswerToAFormerPeer) {
  const uint32_t slots = arena->shape().connections;
  std::vector<RawPeer> rejected(slots);
  for (RawPeer& peer : rejected) {
    const uint32_t connection = Requested(peer);
    writer->Reject(connection, "full up");
    AcknowledgeAll();
    NextOfKind(CompletionKind::kConnectFailed);
    AcknowledgeAll();
    ASSERT_TRUE(Until([&] { return manager->connection_count() == 0 && peer.rejected; }));
  }
  RawPeer peer;
  Requested(peer);
  EXPECT_EQ(manager->DisconnectAll("drained"), 1u);
  ASSERT_TRUE(Until([&] { return peer.rejected; }));
  EXPECT_THAT(peer.private_data, Not(HasSubstr("full up")));
}

// A driver waits for no notice of a record that says so.
TEST_F(NativeDeviceTest, shouldEndAConnectionThatARecordOfAnUnusedSlotSpeaksOf) {
  constexpr uint32_t kUnused = 2;
  arena->connection(kUnused).state = static_cast<uint32_t>(ConnectionState::kConnecting);
  for (int i = 0; i < 2; ++i) {
    writer->Receive(kUnused, 0, 1024);
    ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  }
  EXPECT_NE(state(kUnused), ConnectionState::kConnecting);
}

TEST_F(NativeDeviceTest, shouldTellTheEndAndUseTheSlotAgain) {
  uint32_t generations = 0;
  for (int round = 0; round < 2; ++round) {
    RawPeer peer;
    const uint32_t connection = Established(peer);
    peer.Disconnect();
    NextOfKind(CompletionKind::kReceive);  // flushed
    EXPECT_EQ(NextOfKind(CompletionKind::kDisconnected).connection, connection);
    AcknowledgeAll();
    EXPECT_EQ(state(connection), ConnectionState::kFree);
    ASSERT_TRUE(Until([&] { return peer.disconnected; }));
    generations += arena->connection(connection).generation;
    peers.clear();
  }
  EXPECT_GE(generations, 2u);
}

// The device may still be at work on its last packet.
TEST_F(NativeDeviceTest, shouldLeaveItToBatonDriverToResetAQueuePair) {
  for (const bool dies : {false, true}) {
    RawPeer peer;
    const uint32_t connection = Established(peer);
    ExchangeAMessage(connection, peer);
    const int place = manager->pool().Find(0, arena->connection(connection).qp_number);
    peer.Disconnect();
    NextOfKind(CompletionKind::kReceive);
    NextOfKind(CompletionKind::kDisconnected);
    if (dies) Replace();
    AcknowledgeAll();
    EXPECT_EQ(state(connection), ConnectionState::kFree);
    EXPECT_EQ(owner->resets, 0u);
    EXPECT_EQ(manager->pool().at(0, static_cast<uint32_t>(place))->state(),
              verbs::QueuePairState::kError);
    ASSERT_TRUE(Until([&] { return peer.disconnected; }));
    peers.clear();
  }
}

TEST_F(NativeDeviceTest, shouldDisconnectInTheNameOfTheOwner) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  writer->Disconnect(connection);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied);
  ASSERT_TRUE(Until([&] { return peer.disconnected; }));
  NextOfKind(CompletionKind::kReceive);
  NextOfKind(CompletionKind::kDisconnected);
}

TEST_F(NativeDeviceTest, shouldNameTheLimitWhenThePoolIsExhausted) {
  std::vector<std::unique_ptr<RawPeer>> many;
  for (uint32_t i = 0; i < kPool; ++i) {
    many.push_back(std::make_unique<RawPeer>());
    Established(*many.back());
  }
  RawPeer late;
  const uint32_t connection = Requested(late);
  writer->Accept(connection, 0);
  AcknowledgeAll();
  NextOfKind(CompletionKind::kConnectFailed);
  EXPECT_THAT(owner->states.back(), HasSubstr("all 3 queue pairs of shard 0 are in use"));
  EXPECT_THAT(owner->states.back(), HasSubstr("queue_pairs_per_shard"));
  ASSERT_TRUE(Until([&] { return late.rejected; }));
}

TEST_F(NativeDeviceTest, shouldRefuseWhenNoSlotIsFree) {
  std::vector<std::unique_ptr<RawPeer>> many;
  for (uint32_t i = 0; i < arena->shape().connections; ++i) {
    many.push_back(std::make_unique<RawPeer>());
    Requested(*many.back());
  }
  RawPeer late;
  Ask(late);
  ASSERT_TRUE(Until([&] { return late.rejected; }));
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_THAT(refused[0], HasSubstr("max_connections"));
}

// Lets so many connections be, by this GID alone; none: by any.
struct Gate final : public driver::ConnectionGate {
  uint32_t most = 0;
  std::string gid;

  absl::Status CheckRequest(uint32_t connections, const verbs::ConnectionId& id) override {
    if (connections >= most) return absl::ResourceExhaustedError("too many for the gate");
    return CheckRoute(id.route());
  }
  absl::Status CheckRoute(const verbs::Route& route) const override {
    if (gid.empty() || route.gid == gid) return absl::OkStatus();
    return absl::PermissionDeniedError("another way than the gate's: " + route.gid);
  }
};

TEST_F(NativeDeviceTest, shouldRefuseWhomItsGateDoesNotLetPass) {
  Gate gate;
  gate.most = 1;
  gate.gid = fabric.host;
  manager->SetGate(&gate);
  RawPeer first, second, third;
  Requested(first);
  Ask(second);
  ASSERT_TRUE(Until([&] { return second.rejected; }));
  gate.most = 2;
  gate.gid = "10.9.9.9";
  Ask(third);
  ASSERT_TRUE(Until([&] { return third.rejected; }));
  ASSERT_THAT(refused, SizeIs(2));
  EXPECT_EQ(refused[0], "too many for the gate");
  EXPECT_EQ(refused[1], "another way than the gate's: " + fabric.host);
  EXPECT_EQ(manager->connection_count(), 1u);
}

TEST_F(NativeDeviceTest, shouldCountWhatItHasMade) {
  const driver::ObjectCounts counts = manager->Count();
  EXPECT_EQ(counts.queue_pairs, kPool);
  EXPECT_EQ(counts.completion_queues, 1u);
  EXPECT_EQ(counts.shared_receive_queues, 0u);
  EXPECT_EQ(counts.memory_regions, 2u);
}

// Its device may not be able to.
TEST_F(NativeDeviceTest, shouldSayWhatIsQueuedAsItsDeviceDoes) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  const verbs::QueuePair& queue_pair = *owner->objects->connections[connection].queue_pair;
  const absl::StatusOr<std::optional<uint64_t>> last = queue_pair.LastQueued(true);
  const int place = manager->pool().Find(0, queue_pair.number());
  ASSERT_GE(place, 0);
  EXPECT_EQ(last.status().code(),
            manager->pool().at(0, static_cast<uint32_t>(place))->LastQueued(true).status().code());
  if (!last.ok()) return;
  EXPECT_EQ(*last, arena::PackWrId(connection, arena->connection(connection).generation,
                                   arena::Direction::kReceive, 0));
  EXPECT_EQ(queue_pair.LastQueued(false).value(), std::nullopt);
}

// ---------------------------------------------------------------- drivers that die

TEST_F(NativeDeviceTest, shouldGoOnWithTheConnectionsOfADeadDriver) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  ExchangeAMessage(connection, peer);
  Replace();
  EXPECT_FALSE(peer.disconnected);
  ExchangeAMessage(connection, peer);
}

// Its device tells no more of it, and may still copy what came before its end.
TEST_F(NativeDeviceTest, shouldTellTheEndOfAnAbandonedConnectionASecondLater) {
  RawPeer peer;
  arena::ConnectionRecord& connection = arena->connection(Established(peer));
  Die();
  connection.state = static_cast<uint32_t>(ConnectionState::kDraining);
  connection.abandoned = 1;
  ++connection.send_markers.begun;  // which does not complete
  harness::StoppedClock clock;
  const auto ends_after = [&](uint64_t nanoseconds) {
    clock.Pass(nanoseconds);
    for (int i = 0; i < 20; ++i) Turn();
    return ConnectionState(connection.state) == ConnectionState::kClosed;
  };
  Succeed();
  EXPECT_FALSE(ends_after(0));
  EXPECT_FALSE(ends_after(999'999'999));
  EXPECT_TRUE(ends_after(1));
}

TEST_F(NativeDeviceTest, shouldSeeARequestThatNoDriverHasSeen) {
  Die();
  RawPeer peer;
  Ask(peer);
  ASSERT_TRUE(KeeperUntil([&] { return notice_waits(); }));
  Succeed();
  const uint32_t connection = NextOfKind(CompletionKind::kConnectRequest).connection;
  CommitAccept(connection);
  NextOfKind(CompletionKind::kEstablished);
  ExchangeAMessage(connection, peer);
}

// It logged the request and died before it had passed the notice.
TEST_F(NativeDeviceTest, shouldLogARequestOnce) {
  RawPeer peer;
  Ask(peer);
  ASSERT_TRUE(KeeperUntil([&] { return notice_waits(); }));
  uint32_t shard;
  ASSERT_TRUE(owner->driver->HandleEvent(&shard));
  ASSERT_TRUE(notice_waits());
  Replace();
  const uint32_t connection = NextOfKind(CompletionKind::kConnectRequest).connection;
  CommitAccept(connection);
  NextOfKind(CompletionKind::kEstablished);
  EXPECT_FALSE(notice_waits());
  ExchangeAMessage(connection, peer);
  EXPECT_EQ(arena->shard(0).completion_tail, read);
}

// The owner's accept was on the way to `baton-driver`, and its successor would give it again.
TEST_F(NativeDeviceTest, shouldAcceptOnce) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  CommitAccept(connection);
  EXPECT_EQ(orders(), 1u);
  // Simulates an owner that died before it had finished that transaction.
  arena->shard(0).commit_head = arena->shard(0).apply_begun;
  Replace();
  EXPECT_EQ(orders(), 1u);  // that one is on its way still
  NextOfKind(CompletionKind::kEstablished);
  ASSERT_TRUE(Until([&] { return peer.established; }));
  ExchangeAMessage(connection, peer);
  EXPECT_EQ(arena->shard(0).completion_tail, read);
}

// The owner's accept is on the way, and its successor ends the connection.
TEST_F(NativeDeviceTest, shouldAcceptWithTheAnswerThatADeadOwnerGave) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  CommitAccept(connection);
  Replace();
  writer->Disconnect(connection);
  AcknowledgeAll();
  EXPECT_EQ(orders(), 2u);
  EXPECT_EQ(arena->managed_connection(connection).answer_length, 7u);  // "welcome"
}

// The connection was refused, and `baton-driver` has freed its slot, before its notice was passed.
TEST_F(NativeDeviceTest, shouldPassOverTheRequestOfAConnectionWhoseSlotIsFree) {
  RawPeer peer;
  Ask(peer);
  ASSERT_TRUE(KeeperUntil([&] { return notice_waits(); }));
  const uint32_t connection = Mailbox::Notices(*arena, 0).Next().connection;
  Die();
  arena->managed_connection(connection).freed_generation = arena->connection(connection).generation;
  Succeed();
  owner->Turn();
  EXPECT_FALSE(notice_waits());
  EXPECT_EQ(arena->shard(0).completion_tail, read);
}

// It died with a queue pair in the connection's record, and before it had accepted: the successor
// goes on with that one.
TEST_F(NativeDeviceTest, shouldKeepTheQueuePairThatADeadDriverTook) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  arena->pooled(0, 2).state = static_cast<uint32_t>(arena::PooledState::kTaken);
  arena->connection(connection).qp_number = arena->pooled(0, 2).number;
  Replace();
  CommitAccept(connection);
  EXPECT_EQ(arena->connection(connection).qp_number, arena->pooled(0, 2).number);
  EXPECT_EQ(arena->pooled(0, 0).state, static_cast<uint32_t>(arena::PooledState::kFree));
  NextOfKind(CompletionKind::kEstablished);
  ASSERT_TRUE(Until([&] { return peer.established; }));
  ExchangeAMessage(connection, peer);
}

// The owner is killed somewhere in its rejection of a peer.
class KilledAsItRejectsTest : public NativeDeviceTest,
                              public ::testing::WithParamInterface<std::string_view> {
 protected:
  void TearDown() override {
    SetCrashPointHandler(nullptr);
    NativeDeviceTest::TearDown();
  }
};
TEST_P(KilledAsItRejectsTest, shouldTellThePeerWhyAllTheSame) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  writer->Reject(connection, "full up");
  writer->Acknowledge(read);
  struct Killed {};
  SetCrashPointHandler([](const char* name) {
    if (name == GetParam()) throw Killed();
  });
  EXPECT_THROW(Commit(), Killed);
  SetCrashPointHandler([](const char*) {});
  Replace();
  ASSERT_TRUE(Until([&] { return peer.rejected; }));
  EXPECT_EQ(peer.private_data.substr(0, 7), "full up");
  NextOfKind(CompletionKind::kConnectFailed);
  AcknowledgeAll();
  EXPECT_EQ(state(connection), ConnectionState::kFree);
  EXPECT_EQ(arena->shard(0).completion_tail, read);
}
INSTANTIATE_TEST_SUITE_P(Points, KilledAsItRejectsTest,
                         ::testing::Values("driver-apply-begun", "driver-rejected",
                                           "driver-before-draining", "driver-draining",
                                           "driver-peer-told", "driver-part-decided"));

// A slot that is free and of which its driver had not said so.
TEST_F(NativeDeviceTest, shouldFreeASlotThatADeadDriverKept) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  peer.Disconnect();
  NextOfKind(CompletionKind::kReceive);
  NextOfKind(CompletionKind::kDisconnected);
  while (!Mailbox::Orders(*arena, 0).empty()) manager->Turn();
  AcknowledgeAll();
  const uint64_t told = orders();
  // It died before its order was written.
  ASSERT_FALSE(Mailbox::Orders(*arena, 0).empty());
  arena->orders(0).tail = arena->orders(0).head;
  Replace();
  EXPECT_EQ(orders(), told);
  for (uint32_t i = 0; i < arena->shape().connections - 1; ++i) {
    manager->Turn();
  }
  EXPECT_EQ(state(connection), ConnectionState::kFree);
  // All slots serve: the one that was free first comes last.
  std::vector<std::unique_ptr<RawPeer>> many;
  for (uint32_t i = 0; i < arena->shape().connections; ++i) {
    many.push_back(std::make_unique<RawPeer>());
    Requested(*many.back());
  }
  EXPECT_THAT(refused, SizeIs(0));
}

// A queue pair was taken by a driver that died before it had written down for what.
// What another worker of the service has written there costs connections, not processes.
TEST_F(NativeDeviceTest, shouldFailAConnectionWhoseAcceptTheRingHasNoRoomFor) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  arena::MailCursors& orders = arena->orders(0);
  orders.tail = orders.head + arena::OrdersOf(arena->shape());
  CommitAccept(connection);
  NextOfKind(CompletionKind::kReceive);  // flushed
  NextOfKind(CompletionKind::kConnectFailed);
  EXPECT_THAT(owner->states, Contains(HasSubstr("full, of what its drivers did not order")));
}

TEST_F(NativeDeviceTest, shouldTellThatASlotStaysOutOfUseUntilItsSpoiltRingIsMended) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  ASSERT_TRUE(Until([&] { return arena->orders(0).head == arena->orders(0).tail; }));
  arena->orders(0).tail = uint64_t{1} << 60;
  writer->Disconnect(connection);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  NextOfKind(CompletionKind::kReceive);  // flushed
  NextOfKind(CompletionKind::kDisconnected);
  AcknowledgeAll();
  ASSERT_THAT(owner->freed, SizeIs(1));
  EXPECT_THAT(std::string(owner->freed[0].message()), HasSubstr("spoilt"));
  EXPECT_FALSE(peer.disconnected);

  Die();
  Succeed();  // which mends the ring, and orders it
  EXPECT_TRUE(Until([&] { return peer.disconnected; }));
}

TEST_F(NativeDeviceTest, shouldPassOverNoticesThatBatonDriverDidNotPut) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  for (const auto& [kind, index] :
       {std::pair<uint8_t, uint32_t>(3, 1000), {77, connection}, {0, connection}}) {
    arena::MailEntry entry = {};
    entry.kind = kind;
    entry.connection = index;
    entry.generation = arena->connection(connection).generation;
    Mailbox::Notices(*arena, 0).Put(entry);
  }
  peer.Disconnect();
  NextOfKind(CompletionKind::kReceive);  // flushed
  EXPECT_EQ(NextOfKind(CompletionKind::kDisconnected).connection, connection);
}

TEST_F(NativeDeviceTest, shouldNotWorkThroughASpoiltRingOfNotices) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  owner->Turn();
  arena->notices(0).tail = uint64_t{1} << 60;
  EXPECT_FALSE(owner->native->HasNotice());
  ExchangeAMessage(connection, peer);
}

TEST_F(NativeDeviceTest, shouldTakeNoMoreOfAPeersDataThanThereCanBe) {
  RawPeer peer;
  Ask(peer);
  ASSERT_TRUE(KeeperUntil([&] { return notice_waits(); }));
  arena->connection(0).private_data_length = ~0u;
  EXPECT_EQ(NextOfKind(CompletionKind::kConnectRequest).connection, 0u);
}

TEST_F(NativeDeviceTest, shouldEndAgainAConnectionWhoseRecordSaysThatItHasNotEnded) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  peer.Disconnect();
  NextOfKind(CompletionKind::kReceive);  // flushed
  NextOfKind(CompletionKind::kDisconnected);
  arena->connection(connection).state = static_cast<uint32_t>(ConnectionState::kEstablished);
  AcknowledgeAll();
  EXPECT_THAT(owner->states, Contains(HasSubstr("its end was acknowledged")));
  NextOfKind(CompletionKind::kDisconnected);
  AcknowledgeAll();
  EXPECT_EQ(state(connection), ConnectionState::kFree);
}

TEST_F(NativeDeviceTest, shouldEndAConnectionWhoseRecordNamesNoShardThatExists) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  arena->connection(connection).shard = ~0u;
  peer.Send("ping");
  NextOfKind(CompletionKind::kReceive);
  owner->driver->GiveUp(0, "nobody can");
  owner->driver->EndAll("nobody can");
  EXPECT_EQ(NextOfKind(CompletionKind::kDisconnected).connection, connection);
  AcknowledgeAll();
  EXPECT_EQ(state(connection), ConnectionState::kFree);
  ASSERT_THAT(owner->freed, SizeIs(1));
  EXPECT_THAT(std::string(owner->freed[0].message()), HasSubstr("shard 4294967295"));
}

TEST_F(NativeDeviceTest, shouldEndAConnectionWhoseRecordSaysThatItHasAQueuePair) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  writer->Send(connection, 0, 4);
  arena->connection(connection).state = static_cast<uint32_t>(ConnectionState::kEstablished);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  NextOfKind(CompletionKind::kConnectFailed);
  EXPECT_THAT(owner->states, Contains(HasSubstr("which it has not")));
}

TEST_F(NativeDeviceTest, shouldPassOverCompletionsOfConnectionsThatCannotBe) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  writer->Acknowledge(read);
  arena->completion(0, read - 1).connection = ~0u;
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  ExchangeAMessage(connection, peer);
}

// Words about queue pairs that another worker of the service has written.
class SpoiltPoolTest : public NativeDeviceTest {
 protected:
  void SetUp() override {
    NativeDeviceTest::SetUp();
    in_use = Established(peer);
    place = static_cast<uint32_t>(manager->pool().Find(0, number(in_use)));
  }
  uint32_t& number(uint32_t connection) { return arena->connection(connection).qp_number; }
  arena::PooledState pooled() const { return pooled(place); }
  arena::PooledState pooled(uint32_t at) const {
    return arena::PooledState(arena->pooled(0, at).state);
  }
  void Reject(uint32_t connection) {
    writer->Reject(connection, "full up");
    AcknowledgeAll();
    NextOfKind(CompletionKind::kConnectFailed);
    AwaitFreed(connection);
  }
  void AwaitFreed(uint32_t connection) {
    AcknowledgeAll();
    ASSERT_TRUE(Until([&] {
      return arena->managed_connection(connection).freed_generation ==
             arena->connection(connection).generation;
    }));
  }

  RawPeer peer;
  uint32_t in_use = 0;
  uint32_t place = 0;
};

TEST_F(SpoiltPoolTest, shouldNotTakeAQueuePairFromAConnectionForARejectedRequest) {
  RawPeer other_peer;
  const uint32_t connection = Requested(other_peer);
  number(connection) = number(in_use);
  Reject(connection);
  EXPECT_EQ(pooled(), arena::PooledState::kTaken);
  ExchangeAMessage(in_use, peer);
}

// Its driver has taken the queue pair, and has not accepted with it yet.
TEST_F(SpoiltPoolTest, shouldNotTakeAQueuePairFromARequestForARejectedOne) {
  RawPeer one, two;
  const uint32_t first = Requested(one), second = Requested(two);
  arena::PooledQueuePair& taken = arena->pooled(0, place == 0 ? 1 : 0);
  taken.state = static_cast<uint32_t>(arena::PooledState::kTaken);
  number(first) = number(second) = taken.number;
  Reject(first);
  EXPECT_EQ(arena::PooledState(taken.state), arena::PooledState::kTaken);
  // Now one request alone names the queue pair, so it belongs to that request.
  Reject(second);
  EXPECT_NE(arena::PooledState(taken.state), arena::PooledState::kTaken);
}

TEST_F(SpoiltPoolTest, shouldNotAcceptWithAQueuePairOfAnotherConnection) {
  RawPeer other_peer;
  const uint32_t connection = Requested(other_peer);
  CommitAccept(connection);
  const int taken = manager->pool().Find(0, number(connection));
  ASSERT_GE(taken, 0);
  number(connection) = number(in_use);   // the order is on its way
  NextOfKind(CompletionKind::kReceive);  // flushed
  NextOfKind(CompletionKind::kConnectFailed);
  EXPECT_THAT(owner->states, Contains(HasSubstr("another connection's")));
  AwaitFreed(connection);
  EXPECT_EQ(pooled(), arena::PooledState::kTaken);
  ExchangeAMessage(in_use, peer);
  // The one that it was to be accepted with serves again.
  EXPECT_EQ(pooled(static_cast<uint32_t>(taken)), arena::PooledState::kSpent);
}

TEST_F(SpoiltPoolTest, shouldPutBackTheQueuePairOfARequestWhoseRecordNamesNone) {
  RawPeer other_peer;
  const uint32_t connection = Requested(other_peer);
  CommitAccept(connection);
  const int taken = manager->pool().Find(0, number(connection));
  ASSERT_GE(taken, 0);
  number(connection) = 0;
  NextOfKind(CompletionKind::kReceive);  // flushed
  NextOfKind(CompletionKind::kConnectFailed);
  AwaitFreed(connection);
  EXPECT_EQ(pooled(static_cast<uint32_t>(taken)), arena::PooledState::kSpent);
}

// Its driver has taken the queue pair, and is about to accept with it.
TEST_F(SpoiltPoolTest, shouldLeaveTheQueuePairsOfOtherRequestsAlone) {
  RawPeer one, two;
  const uint32_t first = Requested(one), second = Requested(two);
  const uint32_t at = place == 0 ? 1 : 0;
  arena->pooled(0, at).state = static_cast<uint32_t>(arena::PooledState::kTaken);
  number(second) = arena->pooled(0, at).number;
  ASSERT_TRUE(manager->pool().at(0, at)->SetError().ok());  // it has ended
  Reject(first);
  EXPECT_EQ(pooled(at), arena::PooledState::kTaken);
}

// Its record was written over when its driver died: the next one finds it named nowhere.
TEST_F(SpoiltPoolTest, shouldNotTakeAQueuePairInUseForOneThatNobodyHas) {
  const uint32_t its = number(in_use);
  number(in_use) = 0xdead;
  Replace();
  EXPECT_EQ(pooled(), arena::PooledState::kTaken);
  number(in_use) = its;
  Replace();
  ExchangeAMessage(in_use, peer);
}

TEST_F(SpoiltPoolTest, shouldNotAcceptWithAQueuePairThatIsSaidToBeFree) {
  arena->pooled(0, place).state = static_cast<uint32_t>(arena::PooledState::kFree);
  RawPeer other_peer;
  const uint32_t connection = Established(other_peer);
  EXPECT_NE(number(connection), number(in_use));
  EXPECT_EQ(pooled(), arena::PooledState::kTaken);
  ASSERT_THAT(owner->told, SizeIs(1));
  EXPECT_THAT(owner->told[0], HasSubstr("is said to be free and is not new"));
  ExchangeAMessage(in_use, peer);
}

TEST_F(SpoiltPoolTest, shouldPutBackTheQueuePairThatItsConnectionHad) {
  number(in_use) = 0xdead;
  peer.Disconnect();
  NextOfKind(CompletionKind::kReceive);  // flushed
  NextOfKind(CompletionKind::kDisconnected);
  AwaitFreed(in_use);
  EXPECT_NE(pooled(), arena::PooledState::kTaken);
}

TEST_F(SpoiltPoolTest, shouldNotConnectWithAQueuePairThatIsInUse) {
  arena->pooled(0, place).state = static_cast<uint32_t>(arena::PooledState::kFree);
  RawPeer silent;
  EXPECT_EQ(manager->Connect(0, {fabric.host, silent.Listen()}, "", 1).status(), absl::OkStatus());
  ExchangeAMessage(in_use, peer);
}

// A queue pair that is in whichever state the test says, and can be made new.
class RenewableQueuePair final : public verbs::testing::FakeQueuePair {
 public:
  using FakeQueuePair::FakeQueuePair;
  verbs::QueuePairState state() const override {
    if (when_asked) when_asked();
    return at;
  }
  absl::Status PostSend(absl::Span<const verbs::SendRequest>, size_t*) override {
    return absl::OkStatus();
  }
  absl::Status PostReceive(absl::Span<const verbs::ReceiveRequest>, size_t*) override {
    return absl::OkStatus();
  }
  absl::Status SetError() override { return Go(verbs::QueuePairState::kError); }
  absl::Status SetReset() override {
    ++resets;
    return Go(verbs::QueuePairState::kReset);
  }
  absl::Status SetInit() override { return Go(verbs::QueuePairState::kInit); }

  verbs::QueuePairState at = verbs::QueuePairState::kInit;
  uint32_t resets = 0;
  std::function<void()> when_asked;  // for its state

 private:
  absl::Status Go(verbs::QueuePairState state) {
    at = state;
    return absl::OkStatus();
  }
};

class RenewableDevice final : public verbs::testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  absl::StatusOr<std::unique_ptr<verbs::QueuePair>> CreateQueuePair(
      const verbs::QueuePairOptions&) override {
    made.push_back(new RenewableQueuePair(100 + static_cast<uint32_t>(made.size())));
    return std::unique_ptr<verbs::QueuePair>(made.back());
  }
  absl::StatusOr<std::unique_ptr<verbs::ConnectionId>> Connect(
      const verbs::Address&, verbs::QueuePair*, const verbs::ConnectionParameters&) override {
    return std::make_unique<NamedId>(0);
  }
  bool NextEvent(verbs::CmEvent* event) override {
    if (!std::exchange(is_asked, false)) return false;
    event->new_id = std::make_unique<NamedId>(0);
    return true;
  }

  bool has_time_wait() const override { return rests; }

  std::vector<RenewableQueuePair*> made;
  bool is_asked = false;  // for a connection, by a peer
  bool rests = true;      // queue pairs, after their connections
};

class RenewingTest : public NativeDeviceTest {
 protected:
  static constexpr uint64_t kTimeWaitNs = 2'147'483'648;

  void SetUp() override {
    auto renewable = std::make_unique<RenewableDevice>(verbs::testing::OpenDevice(fabric).value());
    renews = renewable.get();
    device = std::move(renewable);
    Make(driver::testing::TestShape(1));
    connection = manager->Connect(0, {fabric.host, 1}, "", 1).value();
  }
  void Free() {
    OrderFree(connection);
    manager->Turn();
  }
  void OrderFree(uint32_t index) {
    MailEntry order = {};
    order.kind = static_cast<uint8_t>(OrderKind::kFree);
    order.connection = index;
    order.generation = arena->connection(index).generation;
    Mailbox::Orders(*arena, 0).Put(order);
  }
  arena::PooledState pooled(uint32_t place = 0) {
    return arena::PooledState(arena->pooled(0, place).state);
  }

  RenewableDevice* renews = nullptr;
  uint32_t connection = 0;
  harness::StoppedClock clock;
};

TEST_F(RenewingTest, shouldMakeAQueuePairNewAfterItsTimeWait) {
  renews->made[0]->at = verbs::QueuePairState::kError;
  Free();
  EXPECT_EQ(pooled(), arena::PooledState::kSpent);
  clock.Pass(kTimeWaitNs - 1);
  manager->Turn();
  EXPECT_EQ(renews->made[0]->resets, 0u);
  clock.Pass(1);
  manager->Turn();
  EXPECT_EQ(renews->made[0]->resets, 1u);
  EXPECT_EQ(pooled(), arena::PooledState::kFree);
  EXPECT_EQ(manager->Connect(0, {fabric.host, 1}, "", 2).status(), absl::OkStatus());
  EXPECT_EQ(pooled(), arena::PooledState::kLent);
}

TEST_F(RenewingTest, shouldMakeAQueuePairNewAtOnceWhereTheDeviceHasNoTimeWait) {
  renews->rests = false;
  renews->made[0]->at = verbs::QueuePairState::kError;
  Free();
  EXPECT_EQ(renews->made[0]->resets, 1u);
  EXPECT_EQ(pooled(), arena::PooledState::kFree);
}

// The device may still have completions of it, and the record says that nobody waits for them.
TEST_F(RenewingTest, shouldLetTheQueuePairOfAnAbandonedConnectionRestOnEveryDevice) {
  renews->rests = false;
  const uint32_t other = manager->Connect(0, {fabric.host, 1}, "", 2).value();
  for (RenewableQueuePair* const each : renews->made) each->at = verbs::QueuePairState::kError;
  arena->connection(connection).abandoned = 1;
  Free();
  OrderFree(other);
  manager->Turn();
  EXPECT_EQ(pooled(0), arena::PooledState::kSpent);
  EXPECT_EQ(pooled(1), arena::PooledState::kFree);  // does not wait for the other
  clock.Pass(kTimeWaitNs - 1);
  manager->Turn();
  EXPECT_EQ(renews->made[0]->resets, 0u);
  clock.Pass(1);
  manager->Turn();
  EXPECT_EQ(pooled(0), arena::PooledState::kFree);
}

// Nobody but the device knows whether one that was said to be free is.
TEST_F(RenewingTest, shouldNotResetAQueuePairThatIsConnected) {
  for (const auto state :
       {verbs::QueuePairState::kReadyToReceive, verbs::QueuePairState::kReadyToSend}) {
    RenewableQueuePair& queue_pair = *renews->made[0];
    const uint32_t before = queue_pair.resets;
    queue_pair.at = state;
    Free();
    clock.Pass(kTimeWaitNs);
    manager->Turn();
    EXPECT_EQ(queue_pair.resets, before);
    EXPECT_EQ(queue_pair.at, verbs::QueuePairState::kError);
    EXPECT_EQ(pooled(), arena::PooledState::kSpent);
    clock.Pass(kTimeWaitNs - 1);
    manager->Turn();
    EXPECT_EQ(queue_pair.resets, before);
    clock.Pass(1);
    manager->Turn();
    EXPECT_EQ(queue_pair.resets, before + 1);
    EXPECT_EQ(pooled(), arena::PooledState::kFree);
    connection = manager->Connect(0, {fabric.host, 1}, "", 2).value();
  }
}

// A driver has ended its use, and nobody the connection's.
TEST_F(RenewingTest, shouldNotConnectWithAQueuePairThatIsNotNew) {
  renews->made[1]->at = verbs::QueuePairState::kError;
  EXPECT_EQ(manager->Connect(0, {fabric.host, 1}, "", 2).status(), absl::OkStatus());
  EXPECT_EQ(pooled(2), arena::PooledState::kLent);
  EXPECT_EQ(pooled(1), arena::PooledState::kLent);
  Free();
  EXPECT_EQ(pooled(1), arena::PooledState::kSpent);
  clock.Pass(kTimeWaitNs - 1);
  manager->Turn();
  EXPECT_EQ(renews->made[1]->resets, 0u);
  clock.Pass(1);
  manager->Turn();
  EXPECT_EQ(pooled(1), arena::PooledState::kFree);
}

// A worker marks a queue pair that is not new as free, whenever `baton-driver` has taken it.
TEST_F(RenewingTest, shouldLookAtEachPlaceOfThePoolOnce) {
  uint32_t looks = 0;
  renews->made[1]->at = verbs::QueuePairState::kError;
  renews->made[1]->when_asked = [&] {
    constexpr uint32_t kForEver = 1000;
    if (++looks == kForEver) return;
    arena->pooled(0, 1).state = static_cast<uint32_t>(arena::PooledState::kFree);
  };
  EXPECT_EQ(manager->Connect(0, {fabric.host, 1}, "", 2).status(), absl::OkStatus());
  EXPECT_EQ(looks, 1u);
  EXPECT_EQ(pooled(2), arena::PooledState::kLent);
}

// Peers that come and go would use up the queue pairs of one shard.
TEST_F(RenewingTest, shouldGiveARequestToTheShardWithTheFewestQueuePairsTaken) {
  TearDown();
  renews->made.clear();
  Make(driver::testing::TestShape(2));
  connection = manager->Connect(0, {fabric.host, 1}, "", 1).value();
  renews->made[0]->at = verbs::QueuePairState::kError;
  Free();
  renews->is_asked = true;
  manager->Turn();
  EXPECT_EQ(manager->connections_of(1), 1u);
  clock.Pass(kTimeWaitNs);
  manager->Turn();
  renews->is_asked = true;
  manager->Turn();
  EXPECT_EQ(manager->connections_of(0), 1u);
}

// Thousands may have ended at once.
TEST_F(RenewingTest, shouldMakeSoManyQueuePairsNewInATurn) {
  constexpr uint32_t kMany = 150, kPerTurn = 64;
  TearDown();
  renews->made.clear();
  Make(driver::testing::TestShape(1, kMany), kMany);
  for (uint32_t i = 0; i < kMany; ++i) {
    ASSERT_EQ(manager->Connect(0, {fabric.host, 1}, "", i).status(), absl::OkStatus());
    renews->made[i]->at = verbs::QueuePairState::kError;
  }
  for (uint32_t i = 0; i < kMany; ++i) OrderFree(i);
  for (uint32_t i = 0; i < kMany; i += kPerTurn) manager->Turn();
  const auto renewed = [&] {
    uint32_t count = 0;
    for (uint32_t i = 0; i < kMany; ++i) count += pooled(i) == arena::PooledState::kFree;
    return count;
  };
  ASSERT_EQ(renewed(), 0u);
  clock.Pass(kTimeWaitNs);
  EXPECT_TRUE(manager->Turn());
  EXPECT_EQ(renewed(), kPerTurn);
  EXPECT_TRUE(manager->Turn());
  EXPECT_EQ(renewed(), 2 * kPerTurn);
  EXPECT_TRUE(manager->Turn());
  EXPECT_EQ(renewed(), kMany);
  EXPECT_FALSE(manager->Turn());
}

TEST_F(NativeDeviceTest, shouldForgetAConnectionWhoseRecordNamesAnotherShard) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  const auto& device_of = owner->objects->connections[connection];
  ASSERT_NE(device_of.queue_pair, nullptr);
  arena->connection(connection).shard = 1;
  owner->driver->Leave(0);
  owner->native->Forget(0);
  EXPECT_EQ(device_of.id, nullptr);
  EXPECT_EQ(device_of.queue_pair, nullptr);
  arena->connection(connection).shard = 0;
  Replace();
  EXPECT_FALSE(peer.disconnected);
  ExchangeAMessage(connection, peer);
}

// A driver that went by a spoilt log would lose completions, or tell them twice.
class SpoiltLogTest : public NativeDeviceTest {
 protected:
  void ExpectRefused(const std::string& why) {
    owner = std::make_unique<Driver>(&*arena, device.get(), *manager);
    const absl::Status adopted = owner->Adopt({0});
    EXPECT_EQ(adopted.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(adopted.message()), HasSubstr(why));
    owner->shards.clear();
  }
  RawPeer peer;
};

TEST_F(SpoiltLogTest, shouldNotBeAdoptedWithMoreThanItHolds) {
  Established(peer);
  Die();
  arena->shard(0).acknowledged = arena->shard(0).completion_tail + 1;
  ExpectRefused("more was published than it holds");
}

TEST_F(SpoiltLogTest, shouldNotBeAdoptedWithACompletionOfNoConnection) {
  Established(peer);
  Die();
  arena::CompletionEntry& next = arena->completion(0, read);
  next.wr_id = 1;
  next.connection = ~0u;
  ExpectRefused("of a connection that does not exist");
}

// It has the place of no other, and one that is missing is found.
TEST_F(NativeDeviceTest, shouldPassOverACompletionThatIsNobodys) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  Die();
  arena->poll_slots(0)[0].wr_id =
      arena::PackWrId(1'000'000, 1, arena::Direction::kSend, /*sequence=*/0);
  Succeed();
  ExchangeAMessage(connection, peer);
}

TEST_F(SpoiltLogTest, shouldEndItsDriverWhenItIsFull) {
  Established(peer);
  peer.Send("ping");
  ASSERT_TRUE(KeeperUntil([&] { return !peer.sent.empty(); }));
  arena->shard(0).acknowledged -= arena->shape().completion_log_entries;
  absl::Status polled;
  ASSERT_TRUE(KeeperUntil([&] {
    polled = owner->driver->PollCompletions(0).status();
    return !polled.ok();
  }));
  EXPECT_EQ(polled.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(arena->shard(0).completion_tail, read);
  owner->shards.clear();
  // What it took and could not tell is there for the next.
  arena->shard(0).acknowledged += arena->shape().completion_log_entries;
  Succeed();
  EXPECT_EQ(NextOfKind(CompletionKind::kReceive).byte_len, 4u);
}

TEST_F(SpoiltLogTest, shouldLoseNoEndThatItsDriverCouldNotTell) {
  const uint32_t connection = Established(peer);
  const arena::QueueCursors& receives = arena->connection(connection).receive;
  const uint64_t flushed = receives.posted - receives.completed;
  const uint64_t acknowledged = arena->shard(0).acknowledged;
  // So that there is room for these, and none for the end.
  arena->shard(0).acknowledged =
      arena->shard(0).completion_tail + flushed - arena->shape().completion_log_entries;
  peer.Disconnect();
  ASSERT_TRUE(KeeperUntil([&] {
    uint32_t shard;
    while (owner->driver->HandleEvent(&shard)) {
    }
    return !owner->driver->PollCompletions(0).ok();
  }));
  owner->shards.clear();
  arena->shard(0).acknowledged = acknowledged;
  Succeed();
  arena::CompletionEntry entry = Next();
  while (CompletionKind(entry.kind) == CompletionKind::kReceive) entry = Next();  // flushed
  EXPECT_EQ(CompletionKind(entry.kind), CompletionKind::kDisconnected);
  EXPECT_EQ(state(connection), ConnectionState::kClosed);
}

TEST_F(NativeDeviceTest, shouldFindQueuePairsThatNobodyHas) {
  arena->pooled(0, 1).state = static_cast<uint32_t>(arena::PooledState::kTaken);
  Replace();
  EXPECT_EQ(arena->pooled(0, 1).state, static_cast<uint32_t>(arena::PooledState::kFree));
}

// The last connection of a free slot had it: the next that took it has died.
TEST_F(NativeDeviceTest, shouldFindQueuePairsThatFreeSlotsHadOnce) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  const auto place =
      static_cast<uint32_t>(manager->pool().Find(0, arena->connection(connection).qp_number));
  const auto pooled = [&] { return arena::PooledState(arena->pooled(0, place).state); };
  peer.Disconnect();
  NextOfKind(CompletionKind::kReceive);  // flushed
  NextOfKind(CompletionKind::kDisconnected);
  AcknowledgeAll();
  ASSERT_EQ(state(connection), ConnectionState::kFree);
  Replace();
  // `baton-driver` has still to put it back.
  EXPECT_EQ(pooled(), arena::PooledState::kTaken);
  ASSERT_TRUE(KeeperUntil([&] { return manager->connection_count() == 0; }));
  arena::PooledQueuePair& next = arena->pooled(0, place == 0 ? 1 : 0);
  next.state = static_cast<uint32_t>(arena::PooledState::kTaken);
  arena->connection(connection).qp_number = next.number;
  Replace();
  EXPECT_EQ(arena::PooledState(next.state), arena::PooledState::kFree);
}

// ---------------------------------------------------------------- notices that nobody reads

// An owner that does not look at its notices.
class DeafOwnerTest : public NativeDeviceTest {
 protected:
  void SetUp() override {
    auto telling = std::make_unique<TellingDevice>(verbs::testing::OpenDevice(fabric).value());
    teller = telling.get();
    device = std::move(telling);
    Make(driver::testing::TestShape(1));
  }
  void Request() {
    verbs::CmEvent event;
    event.type = verbs::CmEventType::kConnectRequest;
    event.new_id = std::make_unique<NamedId>(0);
    teller->events.push_back(std::move(event));
    manager->Turn();
  }
  // All slots, in its name.
  void FreeAll() {
    for (uint32_t i = 0; i < arena->shape().connections; ++i) {
      MailEntry order = {};
      order.kind = static_cast<uint8_t>(OrderKind::kFree);
      order.connection = i;
      order.generation = arena->connection(i).generation;
      Mailbox::Orders(*arena, 0).Put(order);
    }
    manager->Turn();
  }

  TellingDevice* teller = nullptr;
};

// The limit holds even if somebody else frees the owner's slots.
TEST_F(DeafOwnerTest, shouldGetNoMoreRequestsThanItCanHaveConnections) {
  uint32_t requests = 0;
  for (; refused.empty() && requests < 10'000; ++requests) {
    Request();
    FreeAll();
  }
  EXPECT_EQ(requests, arena::kNotices + arena->shape().connections + 1);
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_THAT(refused[0], HasSubstr("shard 0 does not take notice of its connections"));
  while (notice_waits()) Turn();
  Request();
  EXPECT_THAT(refused, SizeIs(1));
}

TEST_F(DeafOwnerTest, shouldBeToldOnceWhatIsSaidAgainAndAgain) {
  RawPeer peer;
  const uint32_t connection = Established(peer);
  for (int i = 0; i < 10'000; ++i) {
    verbs::DeviceEvent event;
    event.type = verbs::DeviceEventType::kQueuePairFailed;
    event.qp_number = arena->connection(connection).qp_number;
    teller->told.push_back(event);
  }
  while (!teller->told.empty()) manager->Turn();
  for (; notice_waits(); manager->Turn()) owner->Turn();
  EXPECT_LE(arena->notices(0).tail, arena::kNotices + 10 * arena->shape().connections + 2);
  EXPECT_EQ(state(connection), ConnectionState::kClosed);
}

// ---------------------------------------------------------------- to a peer

class ConnectingTest : public NativeDeviceTest {
 protected:
  absl::StatusOr<uint32_t> Connect(uint16_t to, std::string_view data = "who I am") {
    return manager->Connect(0, {fabric.host, to}, data, kTag);
  }
  uint32_t Connecting(RawPeer& peer) {
    peers.push_back(&peer);
    peer.AnswerWith("welcome");
    return Connect(peer.Listen()).value();
  }
  uint16_t PortOfNobody() const { return RawPeer().Listen(); }
  arena::PooledState pooled(uint32_t place) {
    return arena::PooledState(arena->pooled(0, place).state);
  }
  // But for a device that cannot make a queue pair new.
  bool PoolIsWhole() {
    const bool renews = device->CheckForkable().ok();
    for (uint32_t i = 0; i < kPool; ++i) {
      const bool serves = pooled(i) == arena::PooledState::kFree;
      if (!serves && (renews || pooled(i) != arena::PooledState::kSpent)) return false;
    }
    return true;
  }
  void ExpectEstablished(uint32_t connection) {
    const arena::CompletionEntry entry = NextOfKind(CompletionKind::kEstablished);
    EXPECT_EQ(entry.connection, connection);
    EXPECT_EQ(entry.tag, kTag);
  }
  // Its slot and its queue pair serve again.
  void ExpectFailed(uint32_t connection, verbs::CompletionStatus status) {
    const arena::CompletionEntry entry = NextOfKind(CompletionKind::kConnectFailed);
    EXPECT_EQ(entry.connection, connection);
    EXPECT_EQ(entry.tag, kTag);
    EXPECT_EQ(verbs::CompletionStatus(entry.status), status);
    AcknowledgeAll();
    EXPECT_TRUE(Until([&] { return manager->connection_count() == 0 && PoolIsWhole(); }));
    EXPECT_EQ(arena->shard(0).completion_tail, read);
  }
  void ExchangeMessages(uint32_t connection, RawPeer& peer) {
    writer->Receive(connection, 0, 1024);
    AcknowledgeAll();
    ExchangeAMessage(connection, peer);
    ExchangeAMessage(connection, peer);
  }

  static constexpr uint64_t kTag = 42;
};

TEST_F(ConnectingTest, shouldCarryMessagesToAPeerThatBatonDriverConnectedTo) {
  RawPeer peer;
  const uint32_t connection = Connecting(peer);
  ExpectEstablished(connection);
  EXPECT_EQ(peer.private_data.substr(0, 8), "who I am");
  const arena::ConnectionRecord& record = arena->connection(connection);
  EXPECT_EQ(reinterpret_cast<const char*>(record.private_data), std::string_view("welcome"));
  EXPECT_THAT(std::string(record.local_address), HasSubstr(fabric.host));
  EXPECT_THAT(std::string(record.peer_address), HasSubstr(fabric.host));
  EXPECT_GT(record.initiator_depth, 0);
  EXPECT_EQ(record.listener_port, 0u);
  ExchangeMessages(connection, peer);
}

// A worker may post receives as soon as its Connect has returned.
TEST_F(ConnectingTest, shouldTakeReceivesBeforeThePeerHasAnswered) {
  RawPeer peer;
  const uint32_t connection = Connecting(peer);
  owner->Turn();
  EXPECT_EQ(state(connection), ConnectionState::kConnecting);
  writer->Receive(connection, 0, 1024);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  ExpectEstablished(connection);
  ExchangeAMessage(connection, peer);
}

TEST_F(ConnectingTest, shouldNotConnectByAWayThatItsGateDoesNotLetPass) {
  Gate gate;
  gate.gid = "10.9.9.9";
  manager->SetGate(&gate);
  RawPeer peer;
  const uint32_t connection = Connecting(peer);
  ExpectFailed(connection, verbs::CompletionStatus::kRetryExceeded);
  EXPECT_THAT(owner->states.back(), HasSubstr("another way than the gate's: " + fabric.host));
}

TEST_F(ConnectingTest, shouldTellThatNobodyListens) {
  const uint32_t connection = Connect(PortOfNobody()).value();
  ExpectFailed(connection, verbs::CompletionStatus::kRetryExceeded);
  EXPECT_THAT(owner->states.back(), HasSubstr("not established: "));
}

TEST_F(ConnectingTest, shouldTellThatThePeerRejects) {
  RawPeer peer;
  peer.Refuse("no");
  const uint32_t connection = Connecting(peer);
  ExpectFailed(connection, verbs::CompletionStatus::kGeneralError);
  EXPECT_THAT(owner->states.back(), HasSubstr("rejected by the peer"));
}

TEST_F(ConnectingTest, shouldGiveUpAConnectionThatItsOwnerEnds) {
  RawPeer silent;  // it takes no turn
  const uint32_t connection = Connect(silent.Listen()).value();
  owner->Turn();
  writer->Disconnect(connection);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  ExpectFailed(connection, verbs::CompletionStatus::kSuccess);
}

TEST_F(ConnectingTest, shouldNameTheLimitThatKeepsItFromConnecting) {
  RawPeer silent;
  const uint16_t to = silent.Listen();
  for (uint32_t i = 0; i < kPool; ++i) ASSERT_TRUE(Connect(to).ok());
  const absl::Status pool = Connect(to).status();
  EXPECT_EQ(pool.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(pool.message()), HasSubstr("all 3 queue pairs of shard 0 are in use"));
  RawPeer last;
  Requested(last);
  const absl::Status slots = Connect(to).status();
  EXPECT_EQ(slots.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(slots.message()), HasSubstr("max_connections"));
}

TEST_F(ConnectingTest, shouldTakeNothingForWhatTheDeviceRefuses) {
  EXPECT_EQ(Connect(PortOfNobody(), std::string(arena::kPrivateDataBytes, 'x')).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(manager->connection_count(), 0u);
  EXPECT_TRUE(PoolIsWhole());
}

TEST_F(ConnectingTest, shouldNotBelieveTheArenaWhichQueuePairItHas) {
  for (uint32_t i = 0; i < kPool; ++i) arena->pooled(0, i).number = 0xdead;
  const uint32_t connection = Connect(PortOfNobody()).value();
  ExpectFailed(connection, verbs::CompletionStatus::kRetryExceeded);
}

// Its owner could not find it when it is answered.
TEST_F(ConnectingTest, shouldNotConnectWhatThereIsNoRoomToTellOf) {
  Mailbox notices = Mailbox::Notices(*arena, 0);
  while (!notices.full()) notices.Put({});
  EXPECT_EQ(Connect(PortOfNobody()).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(PoolIsWhole());
  owner->Turn();
  EXPECT_TRUE(Connect(PortOfNobody()).ok());
}

TEST_F(ConnectingTest, shouldTellTheHeirOfWhatNobodyWasThereFor) {
  RawPeer peer;
  const uint32_t connection = Connecting(peer);
  Die();
  ASSERT_TRUE(KeeperUntil([&] { return peer.established; }));
  Succeed();
  ExpectEstablished(connection);
  ExchangeMessages(connection, peer);
}

// The owner is killed somewhere in what it makes of a notice.
class KilledWhileConnectingTest : public ConnectingTest,
                                  public ::testing::WithParamInterface<std::string_view> {
 protected:
  void TearDown() override {
    SetCrashPointHandler(nullptr);
    ConnectingTest::TearDown();
  }
  void DieThere() {
    struct Killed {};
    SetCrashPointHandler([](const char* name) {
      if (name == GetParam()) throw Killed();
    });
    EXPECT_TRUE(Pump(
        [&] {
          TurnKeeper();
          if (!owner) return;
          try {
            owner->Turn();
          } catch (const Killed&) {
            Die();
          }
        },
        [&] { return owner == nullptr; }));
    SetCrashPointHandler([](const char*) {});
    Succeed();
  }
};

class KilledAsItConnectsTest : public KilledWhileConnectingTest {};
TEST_P(KilledAsItConnectsTest, shouldTellTheHeirOnce) {
  RawPeer peer;
  const uint32_t connection = Connecting(peer);
  DieThere();
  ExpectEstablished(connection);
  ExchangeMessages(connection, peer);
  EXPECT_EQ(arena->shard(0).completion_tail, read);
}
INSTANTIATE_TEST_SUITE_P(Points, KilledAsItConnectsTest,
                         ::testing::Values("driver-event-taken", "driver-connecting",
                                           "driver-event-handled", "driver-established"));

class KilledAsItFailsTest : public KilledWhileConnectingTest {};
TEST_P(KilledAsItFailsTest, shouldTellTheHeirOnce) {
  const uint32_t connection = Connect(PortOfNobody()).value();
  DieThere();
  ExpectFailed(connection, verbs::CompletionStatus::kRetryExceeded);
}
INSTANTIATE_TEST_SUITE_P(Points, KilledAsItFailsTest,
                         ::testing::Values("driver-connecting", "driver-before-draining",
                                           "driver-draining", "driver-peer-told", "driver-closed"));

// `baton-driver` has taken a queue pair for an owner that has just died, and the heir comes.
TEST_F(ConnectingTest, shouldLeaveToBatonDriverWhatItHasTaken) {
  arena->pooled(0, 1).state = static_cast<uint32_t>(arena::PooledState::kLent);
  Replace();
  EXPECT_EQ(pooled(1), arena::PooledState::kLent);
}

// ---------------------------------------------------------------- into another shard

// There are two shards. Each request comes to shard 0 first, and is accepted into shard 1.
class MovingTest : public NativeDeviceTest {
 protected:
  void SetUp() override {
    auto telling = std::make_unique<TellingDevice>(verbs::testing::OpenDevice(fabric).value());
    teller = telling.get();
    device = std::move(telling);
    Make(driver::testing::TestShape(2), 2 * kPool);
    driver::Ownership(&*arena, 1).GiveTo(0, 1);
    second.emplace(&*arena, 1);
    second->Begin(1);
    Die();
    SucceedInBoth();
  }

  void SucceedInBoth() {
    owner = std::make_unique<Driver>(&*arena, device.get(), *manager);
    ASSERT_TRUE(owner->Adopt({0, 1}).ok());
  }
  // Two heirs, that of `first` before the other.
  void SucceedApart(uint32_t first) {
    owner = std::make_unique<Driver>(&*arena, device.get(), *manager);
    other = std::make_unique<Driver>(&*arena, device.get(), *manager);
    Driver& one = first == 0 ? *owner : *other;
    ASSERT_TRUE(one.Adopt({first}).ok());
    ASSERT_TRUE((first == 0 ? other : owner)->Adopt({1 - first}).ok());
  }
  // Published in shard 0.
  void Move(uint32_t connection, bool acknowledge = true) {
    writer->Receive(connection, 0, 1024);
    writer->Accept(connection, 1, "welcome");
    if (acknowledge) writer->Acknowledge(read);
    ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  }
  // Leaves the last transaction of shard 0 as if its driver had died in the middle of it.
  void Unfold(uint32_t connection, bool arriving = true) {
    arena->shard(0).commit_head = arena->shard(0).apply_begun;
    arena->connection(connection).arriving = arriving;
  }
  arena::CompletionEntry NextInSecond(CompletionKind kind) {
    if (!Until([&] { return arena->shard(1).completion_tail > read_in_second; })) {
      ADD_FAILURE() << "no completion came";
      return {};
    }
    const arena::CompletionEntry entry = arena->completion(1, read_in_second++);
    EXPECT_EQ(static_cast<int>(entry.kind), static_cast<int>(kind));
    return entry;
  }
  Driver& in_second() { return other ? *other : *owner; }
  void CommitInSecond() {
    second->Acknowledge(read_in_second);
    second->Publish();
    ASSERT_EQ(in_second().driver->ApplyNext(1, &error), CommitOutcome::kApplied) << error;
  }
  void ExchangeInSecond(uint32_t connection, RawPeer& peer) {
    const size_t answers = peer.received.size();
    peer.Receive();
    peer.Send("ping");
    EXPECT_EQ(NextInSecond(CompletionKind::kReceive).connection, connection);
    second->Send(connection, 2048, 5);
    second->Receive(connection, 0, 1024);
    CommitInSecond();
    EXPECT_EQ(NextInSecond(CompletionKind::kSend).status, 0u);
    ASSERT_TRUE(Until([&] { return peer.received.size() == answers + 1; }));
  }
  // Its driver dies when the connection has arrived, and before the transaction is finished. An
  // heir of the second shard alone goes on with it.
  void ArriveAndGoOn(uint32_t connection, RawPeer& peer) {
    Move(connection);
    Unfold(connection, /*arriving=*/false);
    Die();
    owner = std::make_unique<Driver>(&*arena, device.get(), *manager);
    other = std::make_unique<Driver>(&*arena, device.get(), *manager);
    ASSERT_TRUE(other->Adopt({1}).ok());
    EXPECT_EQ(NextInSecond(CompletionKind::kEstablished).connection, connection);
    ASSERT_TRUE(Until([&] { return peer.established; }));
    for (int i = 0; i < 3; ++i) ExchangeInSecond(connection, peer);
  }
  void EndInSecond(uint32_t connection, RawPeer& peer) {
    peer.Disconnect();
    EXPECT_EQ(NextInSecond(CompletionKind::kReceive).connection, connection);  // flushed
    EXPECT_EQ(NextInSecond(CompletionKind::kDisconnected).connection, connection);
    CommitInSecond();
    EXPECT_EQ(state(connection), ConnectionState::kFree);
  }
  bool IsFreed(uint32_t connection) {
    return Until([&] {
      return arena->managed_connection(connection).freed_generation ==
             arena->connection(connection).generation;
    });
  }

  TellingDevice* teller = nullptr;
  std::optional<CommitWriter> second;
  uint64_t read_in_second = 0;
};

TEST_F(MovingTest, shouldAcceptAConnectionIntoAnotherShard) {
  for (int round = 0; round < 2; ++round) {
    RawPeer peer;
    const uint32_t connection = Requested(peer);
    EXPECT_EQ(arena->connection(connection).shard, 0u);
    Move(connection);
    EXPECT_EQ(NextInSecond(CompletionKind::kEstablished).connection, connection);
    ASSERT_TRUE(Until([&] { return peer.established; }));
    EXPECT_EQ(peer.private_data.substr(0, 7), "welcome");
    EXPECT_EQ(arena->connection(connection).arriving, 0);
    EXPECT_GE(manager->pool().Find(1, arena->connection(connection).qp_number), 0);
    ExchangeInSecond(connection, peer);
    EndInSecond(connection, peer);
    EXPECT_TRUE(IsFreed(connection));
    peers.clear();
  }
  EXPECT_EQ(arena->shard(0).completion_tail, read);
}

// Its other shards may have any number of notices.
TEST_F(MovingTest, shouldSeeTheNoticesOfTheShardFirstThatItHasJustAdopted) {
  Die();
  owner = std::make_unique<Driver>(&*arena, device.get(), *manager);
  ASSERT_TRUE(owner->Adopt({0}).ok());
  std::vector<RawPeer> asking(2);
  for (RawPeer& peer : asking) Ask(peer);
  const auto waits = [&](uint32_t shard) { return !Mailbox::Notices(*arena, shard).empty(); };
  ASSERT_TRUE(KeeperUntil([&] { return waits(0) && waits(1); }));
  owner->native->Restore(std::vector<uint32_t>{1}, owner->AllConnections());
  ASSERT_TRUE(owner->driver->Adopt({1}).ok());
  for (const uint32_t expected : {1, 0}) {
    uint32_t shard;
    ASSERT_TRUE(owner->driver->HandleEvent(&shard));
    EXPECT_EQ(shard, expected);
  }
}

TEST_F(MovingTest, shouldSeeTheNoticesOfAnotherShardFirstThatIsToBeServed) {
  std::vector<RawPeer> asking(2);
  for (RawPeer& peer : asking) Ask(peer);
  const auto waits = [&](uint32_t shard) { return !Mailbox::Notices(*arena, shard).empty(); };
  ASSERT_TRUE(KeeperUntil([&] { return waits(0) && waits(1); }));
  owner->native->ServeAnotherFirst();  // they were adopted in order, the last of them first
  uint32_t shard;
  ASSERT_TRUE(owner->driver->HandleEvent(&shard));
  EXPECT_EQ(shard, 0u);
}

// The connection could not be accepted into the other shard, which went to another driver before
// its end was acknowledged. Nothing is left of it when its slot is used again.
TEST_F(MovingTest, shouldServeTheNextConnectionOfASlotThatCouldNotBeMoved) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  for (uint32_t i = 0; i < 2 * kPool; ++i) {
    arena->pooled(1, i).state = static_cast<uint32_t>(arena::PooledState::kTaken);
  }
  Move(connection);
  owner->driver->Leave(1);
  owner->native->Forget(1);
  ASSERT_NE(owner->objects->connections[connection].id, nullptr);
  owner->shards = {0};
  other = std::make_unique<Driver>(&*arena, device.get(), *manager);
  ASSERT_TRUE(other->Adopt({1}).ok());
  EXPECT_EQ(NextInSecond(CompletionKind::kConnectFailed).connection, connection);
  CommitInSecond();
  ASSERT_TRUE(IsFreed(connection));

  std::vector<RawPeer> others(3);  // the other slots come first
  Requested(others[0]);
  Ask(others[1]);
  NextInSecond(CompletionKind::kConnectRequest);
  const uint32_t rejected = Requested(others[2]);
  writer->Reject(rejected, "");
  AcknowledgeAll();
  NextOfKind(CompletionKind::kConnectFailed);
  AcknowledgeAll();
  ASSERT_TRUE(IsFreed(rejected));
  RawPeer next;
  ASSERT_EQ(Requested(next), connection);
  CommitAccept(connection);
  NextOfKind(CompletionKind::kEstablished);
  ExchangeAMessage(connection, next);
}

// Its record is overwritten in the middle of the accept.
TEST_F(MovingTest, shouldForgetAConnectionWithItsNewShardThatCouldNotBeAccepted) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  static arena::ConnectionRecord* record;
  record = &arena->connection(connection);
  SetCrashPointHandler([](const char* name) {
    if (std::string_view(name) == "driver-before-accept") ++record->qp_number;
  });
  Move(connection);
  SetCrashPointHandler(nullptr);
  EXPECT_NE(state(connection), ConnectionState::kEstablished);
  owner->driver->Leave(1);
  owner->native->Forget(1);
  EXPECT_EQ(owner->objects->connections[connection].id, nullptr);
}

// It is forgotten with the shard that it was accepted into, whatever its record says.
TEST_F(MovingTest, shouldForgetAConnectionWithItsNewShard) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  Move(connection);
  NextInSecond(CompletionKind::kEstablished);
  const auto& device_of = owner->objects->connections[connection];
  owner->driver->Leave(0);
  owner->native->Forget(0);
  EXPECT_NE(device_of.queue_pair, nullptr);
  arena->connection(connection).shard = 0;
  owner->driver->Leave(1);
  owner->native->Forget(1);
  EXPECT_EQ(device_of.id, nullptr);
  EXPECT_EQ(device_of.queue_pair, nullptr);
  arena->connection(connection).shard = 1;
  Die();
  SucceedInBoth();
  ExchangeInSecond(connection, peer);
}

// Its record has come to name another shard of the same driver, which it adopts next.
TEST_F(MovingTest, shouldNotRestoreAConnectionInASecondShard) {
  Die();
  owner = std::make_unique<Driver>(&*arena, device.get(), *manager);
  ASSERT_TRUE(owner->Adopt({0}).ok());
  RawPeer peer;
  const uint32_t connection = Established(peer);
  const auto* const queue_pair = owner->objects->connections[connection].queue_pair.get();
  arena->connection(connection).shard = 1;
  const uint64_t ordered = arena->orders(1).tail;
  owner->native->Restore(std::vector<uint32_t>{1}, owner->AllConnections());
  EXPECT_EQ(owner->objects->connections[connection].queue_pair.get(), queue_pair);
  EXPECT_EQ(arena->orders(1).tail, ordered);
  arena->connection(connection).shard = 0;
  ExchangeAMessage(connection, peer);
}

// The peer has given up, and its connection's driver did not know.
TEST_F(MovingTest, shouldTellAnEndThatBatonDriverHeardBeforeTheMove) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  NamedId named(connection);
  verbs::CmEvent end;
  end.type = verbs::CmEventType::kUnreachable;
  end.id = &named;
  end.status = absl::UnavailableError("no answer");
  teller->events.push_back(std::move(end));
  const uint64_t before = arena->notices(0).tail;
  TurnKeeper();
  ASSERT_EQ(arena->notices(0).tail, before + 1);
  Move(connection);
  EXPECT_EQ(NextInSecond(CompletionKind::kReceive).connection, connection);  // flushed
  EXPECT_EQ(NextInSecond(CompletionKind::kConnectFailed).connection, connection);
  EXPECT_THAT(owner->states.back(), HasSubstr("no answer"));
  CommitInSecond();
  EXPECT_TRUE(IsFreed(connection));
}

// Else its requests could take more room in the first shard's log than that has.
TEST_F(MovingTest, shouldUseTheSlotAgainWhenTheFirstShardHasAcknowledgedTheRequest) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  Move(connection, /*acknowledge=*/false);
  NextInSecond(CompletionKind::kEstablished);
  ASSERT_TRUE(Until([&] { return peer.established; }));
  EndInSecond(connection, peer);
  ASSERT_TRUE(IsFreed(connection));
  const uint32_t all = arena->shape().connections;
  std::vector<std::unique_ptr<RawPeer>> many;
  for (uint32_t i = 0; i < all; ++i) {
    many.push_back(std::make_unique<RawPeer>());
    Ask(*many.back());
  }
  ASSERT_TRUE(Until([&] { return refused.size() == 1; }));
  EXPECT_EQ(manager->connection_count(), all);
  AcknowledgeAll();
  const uint32_t generation = arena->connection(connection).generation;
  RawPeer late;
  ASSERT_TRUE(Until([&] { return manager->connection_count() == all - 1; }));
  Ask(late);
  ASSERT_TRUE(Until([&] { return arena->connection(connection).generation == generation + 1; }));
}

// Its driver died when the accept was given, or was not: the heir of both shards finishes it.
TEST_F(MovingTest, shouldFinishWhatADeadDriverHadMoved) {
  for (const bool ordered : {false, true}) {
    RawPeer peer;
    const uint32_t connection = Requested(peer);
    const uint64_t before = arena->orders(1).tail;
    Move(connection);
    EXPECT_EQ(arena->orders(1).tail, before + 1);
    if (!ordered) {
      arena->orders(1).tail = before;
      arena->connection(connection).answered = 0;
    }
    Unfold(connection);
    Die();
    SucceedInBoth();
    EXPECT_EQ(arena->orders(1).tail, before + 1);
    EXPECT_EQ(arena->connection(connection).arriving, 0);
    EXPECT_EQ(NextInSecond(CompletionKind::kEstablished).connection, connection);
    ASSERT_TRUE(Until([&] { return peer.established; }));
    ExchangeInSecond(connection, peer);
    EndInSecond(connection, peer);
    EXPECT_TRUE(IsFreed(connection));
    peers.clear();
  }
}

// Nobody has both shards any more: what was under way ends, in its new shard, and nothing else.
TEST_F(MovingTest, shouldFailAConnectionThatHadNotArrivedWhenTheShardsAreParted) {
  for (const uint32_t first : {0u, 1u}) {
    RawPeer stays, peer;
    const uint32_t kept = Requested(stays);
    Move(kept);
    NextInSecond(CompletionKind::kEstablished);
    ASSERT_TRUE(Until([&] { return stays.established; }));
    const uint32_t connection = Requested(peer);
    Move(connection);
    Unfold(connection);
    Die();
    SucceedApart(first);
    EXPECT_EQ(arena->connection(connection).arriving, 0);
    EXPECT_EQ(NextInSecond(CompletionKind::kReceive).connection, connection);  // flushed
    EXPECT_EQ(NextInSecond(CompletionKind::kConnectFailed).connection, connection);
    EXPECT_THAT(in_second().states, ::testing::Contains(HasSubstr("different owners")));
    CommitInSecond();
    EXPECT_TRUE(IsFreed(connection));
    // The rest of that transaction has had its effect: the request is acknowledged.
    EXPECT_EQ(arena->shard(0).acknowledged, read);
    ExchangeInSecond(kept, stays);
    EndInSecond(kept, stays);
    EXPECT_TRUE(IsFreed(kept));
    peers.clear();
    other.reset();
    Die();
    SucceedInBoth();
  }
}

// It had arrived, and its new owner has gone on before the other shard's heir finishes the
// transaction.
TEST_F(MovingTest, shouldLeaveAConnectionThatHadArrivedToItsNewOwner) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  ASSERT_NO_FATAL_FAILURE(ArriveAndGoOn(connection, peer));
  const arena::QueueCursors cursors = arena->connection(connection).receive;
  ASSERT_TRUE(owner->Adopt({0}).ok());
  EXPECT_EQ(arena->shard(0).acknowledged, read);
  EXPECT_EQ(arena->connection(connection).receive.committed, cursors.committed);
  EXPECT_EQ(arena->connection(connection).receive.posted, cursors.posted);
  ExchangeInSecond(connection, peer);
}

// The same, and both shards have the same heir again before that transaction is finished.
TEST_F(MovingTest, shouldLeaveAConnectionThatHadArrivedAsItsNewOwnerLeftIt) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  ASSERT_NO_FATAL_FAILURE(ArriveAndGoOn(connection, peer));
  const arena::ConnectionRecord before = arena->connection(connection);
  other.reset();
  Die();
  SucceedInBoth();
  EXPECT_NE(arena->shard(0).commit_head, arena->shard(0).apply_begun);  // it is finished
  EXPECT_EQ(arena->connection(connection).receive.committed, before.receive.committed);
  EXPECT_EQ(arena->connection(connection).send.committed, before.send.committed);
  EXPECT_EQ(arena->connection(connection).state_slot, before.state_slot);
  ExchangeInSecond(connection, peer);
}

// Owners of the first shard die on a request whose connection another owner has by now.
TEST_F(MovingTest, shouldNotEndTheConnectionOfAnotherOwnerForItsRequest) {
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  Move(connection, /*acknowledge=*/false);
  EXPECT_EQ(NextInSecond(CompletionKind::kEstablished).connection, connection);
  ASSERT_TRUE(Until([&] { return peer.established; }));
  Die();
  SucceedApart(0);
  driver::Ownership(&*arena, 0).End(/*released=*/false);
  ASSERT_TRUE(owner->driver->Poison(0, read - 1, "they died on it").ok());
  EXPECT_EQ(state(connection), ConnectionState::kEstablished);
  ExchangeInSecond(connection, peer);
}

// A worker that says so writes what it does not own.
TEST_F(MovingTest, shouldFailAConnectionThatIsAcceptedIntoAShardOfAnother) {
  Die();
  SucceedApart(0);
  RawPeer peer;
  const uint32_t connection = Requested(peer);
  Move(connection);
  NextOfKind(CompletionKind::kConnectFailed);
  EXPECT_THAT(owner->states.back(), HasSubstr("does not own"));
  ASSERT_TRUE(Until([&] { return peer.rejected; }));
}

// ---------------------------------------------------------------- shared receives

class SharingTest : public NativeDeviceTest {
 protected:
  static constexpr uint32_t kDepth = 4;

  void SetUp() override { Make(SharedShape()); }
  static arena::Shape SharedShape(uint32_t shards = 1) {
    arena::Shape shape = driver::testing::TestShape(shards);
    shape.shared_receive_queue_depth = kDepth;
    return shape;
  }

  static uint64_t Offset(uint64_t slot) { return slot * RawPeer::kSlotBytes; }
  void Post(std::initializer_list<uint16_t> slots) {
    for (const uint16_t slot : slots) writer->SharedReceive(slot, Offset(slot), 1024);
    AcknowledgeAll();
  }
  uint32_t Joined(RawPeer& peer) {
    const uint32_t connection = Requested(peer);
    writer->Accept(connection, 0, "welcome");
    writer->Acknowledge(read);
    EXPECT_EQ(Commit(), CommitOutcome::kApplied) << error;
    EXPECT_EQ(NextOfKind(CompletionKind::kEstablished).connection, connection);
    EXPECT_TRUE(Until([&] { return peer.established; }));
    return connection;
  }
  // In whichever slot it arrives.
  uint64_t Takes(RawPeer& peer, uint32_t connection, std::string_view text) {
    peer.Send(text);
    const arena::CompletionEntry entry = NextOfKind(CompletionKind::kReceive);
    EXPECT_EQ(entry.connection, connection);
    EXPECT_EQ(
        std::string_view(reinterpret_cast<const char*>(arena->buffers()) + Offset(entry.sequence),
                         entry.byte_len),
        text);
    return entry.sequence;
  }
  arena::SharedReceiveState StateAt(uint32_t slot) {
    return arena::StateOf(arena->shared_receive(0, slot));
  }
};

TEST_F(SharingTest, shouldReceiveForWhicheverConnectionHasAMessage) {
  Post({0, 1, 2});
  RawPeer one, two;
  const uint32_t first = Joined(one), second = Joined(two);
  std::set<uint64_t> slots = {Takes(two, second, "for two"), Takes(one, first, "for one")};
  Replace();
  EXPECT_EQ(arena->shard(0).shared_receives_posted, 1u);
  slots.insert(Takes(two, second, "again"));
  EXPECT_EQ(slots, (std::set<uint64_t>{0, 1, 2}));
}

// The peer of a connection that the owner asked for may speak before the shard's driver has taken
// notice of the connection. The message was acknowledged to it.
TEST_F(SharingTest, shouldReceiveWhatComesBeforeTheNoticeOfItsConnection) {
  Post({0, 1, 2, 3});
  RawPeer of_living, of_dead;
  for (const bool dies : {false, true}) {
    RawPeer& peer = dies ? of_dead : of_living;
    peers.push_back(&peer);
    const uint32_t connection = manager->Connect(0, {fabric.host, peer.Listen()}, "", 7).value();
    ASSERT_TRUE(KeeperUntil([&] { return peer.established; }));
    peer.Send("early");
    ASSERT_TRUE(KeeperUntil([&] { return peer.sent.size() == 1; }));
    dies ? Replace() : static_cast<void>(owner->driver->PollCompletions(0).value());
    EXPECT_EQ(state(connection), ConnectionState::kConnecting);
    const arena::CompletionEntry received = NextOfKind(CompletionKind::kReceive);
    EXPECT_EQ(received.connection, connection);
    EXPECT_EQ(received.byte_len, 5u);
    EXPECT_EQ(NextOfKind(CompletionKind::kEstablished).connection, connection);
    AcknowledgeAll();
    Takes(peer, connection, "next");
    EXPECT_EQ(owner->driver->connection_count(), dies ? 2u : 1u);
  }
}

// The owner ends such a connection before its notice has come: it has neither id nor queue pair
// yet.
TEST_F(SharingTest, shouldEndAConnectionThatItsNoticeHasNotReached) {
  Post({0, 1});
  RawPeer peer;
  peers.push_back(&peer);
  const uint32_t connection = manager->Connect(0, {fabric.host, peer.Listen()}, "", 7).value();
  ASSERT_TRUE(KeeperUntil([&] { return peer.established; }));
  peer.Send("early");
  ASSERT_TRUE(KeeperUntil([&] { return peer.sent.size() == 1; }));
  ASSERT_TRUE(owner->driver->PollCompletions(0).value());
  EXPECT_EQ(arena->completion(0, read++).connection, connection);
  writer->Disconnect(connection);
  AcknowledgeAll();
  EXPECT_EQ(state(connection), ConnectionState::kConnecting);
  EXPECT_EQ(NextOfKind(CompletionKind::kEstablished).connection, connection);
  EXPECT_EQ(NextOfKind(CompletionKind::kDisconnected).connection, connection);
  ASSERT_TRUE(Until([&] { return peer.disconnected; }));
  AcknowledgeAll();
  ASSERT_TRUE(Until([&] { return manager->connection_count() == 0; }));
  EXPECT_EQ(owner->driver->connection_count(), 0u);
}

// Neither when its driver lives, nor when it dies in the end of the connection, is what the others
// may receive taken along; and each slot, and each queue pair, serves again.
TEST_F(SharingTest, shouldEndAConnectionAndKeepWhatTheOthersShare) {
  Post({0, 1, 2});
  RawPeer stays;
  const uint32_t kept = Joined(stays);
  for (const bool dies : {false, true}) {
    RawPeer goes;
    const uint32_t connection = Joined(goes);
    goes.Disconnect();
    if (dies) {
      ASSERT_TRUE(Until([&] {
        return state(connection) == ConnectionState::kDraining ||
               state(connection) == ConnectionState::kClosed;
      }));
      Replace();
    }
    EXPECT_EQ(NextOfKind(CompletionKind::kDisconnected).connection, connection);
    AcknowledgeAll();
    EXPECT_EQ(state(connection), ConnectionState::kFree);
    ASSERT_TRUE(Until([&] {
      return arena->managed_connection(connection).freed_generation ==
             arena->connection(connection).generation;
    }));
    peers.pop_back();
  }
  EXPECT_EQ(arena->shard(0).shared_receives_posted, 3u);
  const std::set<uint64_t> slots = {Takes(stays, kept, "a"), Takes(stays, kept, "b"),
                                    Takes(stays, kept, "c")};
  EXPECT_EQ(slots, (std::set<uint64_t>{0, 1, 2}));
}

// What a driver that died may have posted is posted, if its device says so, or out of use until it
// completes, and the window is not smaller for it.
TEST_F(SharingTest, shouldNotPostAgainWhatADeadDriverMayHavePosted) {
  Post({0, 1});
  arena->shared_receive(0, 1).word = arena::PackSharedReceiveState(
      arena::SharedReceiveState::kAttempted, arena::GenerationOf(arena->shared_receive(0, 1)));
  Die();
  const bool is_known = manager->objects()->shared_receive_queues[0]->IsQueued(0).ok();
  Succeed();
  EXPECT_EQ(arena->shard(0).shared_receives_posted, is_known ? 2u : 1u);
  EXPECT_EQ(arena->shard(0).shared_receives_unsure, is_known ? 0u : 1u);
  Post({2, 3});
  if (!is_known) Post({4});
  RawPeer peer;
  const uint32_t connection = Joined(peer);
  std::set<uint64_t> slots;
  for (int i = 0; i < (is_known ? 4 : 5); ++i) slots.insert(Takes(peer, connection, "message"));
  EXPECT_EQ(slots,
            is_known ? (std::set<uint64_t>{0, 1, 2, 3}) : (std::set<uint64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(arena->shard(0).shared_receives_unsure, 0u);
}

// Many such deaths later no owner could post what it needs: said, instead of peers that wait.
TEST_F(SharingTest, shouldTakeAQueueForBrokenOfWhichTooMuchIsOutOfUse) {
  RawPeer peer;
  const uint32_t connection = Joined(peer);
  const auto attempt = [&](uint32_t slot) {
    arena->shared_receive(0, slot).word =
        arena::PackSharedReceiveState(arena::SharedReceiveState::kAttempted, 1);
  };
  for (uint32_t slot = 0; slot < 2 * kDepth - 2; ++slot) attempt(slot);
  arena->shard(0).shared_receives_unsure = 1;  // by drivers that could not ask
  Replace();
  EXPECT_EQ(arena->shard(0).shared_receives_refused, 0u);
  EXPECT_EQ(state(connection), ConnectionState::kEstablished);
  attempt(2 * kDepth - 2);
  Replace();
  EXPECT_EQ(arena->shard(0).shared_receives_refused, 1u);
  EXPECT_EQ(NextOfKind(CompletionKind::kDisconnected).connection, connection);
  EXPECT_THAT(owner->states.back(), HasSubstr("out of use"));
  ASSERT_TRUE(Until([&] { return peer.disconnected; }));
}

// Its queue pair was taken for it before anybody knew.
TEST_F(SharingTest, shouldEndAConnectIntoAQueueThatBrokeMeanwhile) {
  RawPeer peer;
  peers.push_back(&peer);
  peer.AnswerWith("welcome");
  const uint32_t connection =
      manager->Connect(0, {fabric.host, peer.Listen()}, "who I am", 7).value();
  arena->shard(0).shared_receives_refused = 1;
  EXPECT_EQ(NextOfKind(CompletionKind::kConnectFailed).connection, connection);
  EXPECT_THAT(owner->states.back(), HasSubstr("is broken"));
}

class FailingQueueTest : public SharingTest {
 protected:
  void SetUp() override {
    auto telling = std::make_unique<TellingDevice>(verbs::testing::OpenDevice(fabric).value());
    teller = telling.get();
    device = std::move(telling);
    Make(SharedShape(2));
  }
  void Tell(verbs::DeviceEventType type, uint32_t shard) {
    verbs::DeviceEvent event;
    event.type = type;
    event.shared_receive_queue = manager->objects()->shared_receive_queues[shard].get();
    event.text = "as it says";
    teller->told.push_back(event);
    TurnKeeper();
  }

  TellingDevice* teller = nullptr;
};

TEST_F(FailingQueueTest, shouldTellOperatorsWhichQueueIsLow) {
  Tell(verbs::DeviceEventType::kSharedReceiveQueueLow, 1);
  EXPECT_THAT(told, ::testing::ElementsAre("of shard 1: as it says"));
  EXPECT_EQ(arena->shard(1).shared_receives_refused, 0u);
}

class LowQueue final : public verbs::SharedReceiveQueue {
 public:
  LowQueue(std::unique_ptr<verbs::SharedReceiveQueue> inner, std::vector<uint32_t>* armed)
      : inner_(std::move(inner)), armed_(armed) {}
  absl::Status PostReceive(absl::Span<const verbs::ReceiveRequest> requests,
                           size_t* posted) override {
    return inner_->PostReceive(requests, posted);
  }
  absl::Status ArmLimit(uint32_t limit) override {
    armed_->push_back(limit);
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<verbs::SharedReceiveQueue> inner_;
  std::vector<uint32_t>* const armed_;
};

// `baton-driver` does it, at most every 10 s: shards' drivers get no event of a low queue.
TEST_F(FailingQueueTest, shouldArmTheLimitAgainWhenTenSecondsHavePassed) {
  std::vector<uint32_t> armed;
  auto& queue = manager->objects()->shared_receive_queues[1];
  queue = std::make_unique<LowQueue>(std::move(queue), &armed);
  uint32_t& posted = arena->shard(1).shared_receives_posted;
  posted = kDepth / 2 + 1;
  harness::StoppedClock clock;
  Tell(verbs::DeviceEventType::kSharedReceiveQueueLow, 1);
  clock.Pass(9'999'999'999);
  TurnKeeper();
  EXPECT_THAT(armed, ::testing::IsEmpty());
  clock.Pass(1);
  posted = kDepth / 2;  // it still is
  TurnKeeper();
  EXPECT_THAT(armed, ::testing::IsEmpty());
  posted = kDepth / 2 + 1;
  TurnKeeper();
  EXPECT_THAT(armed, ::testing::ElementsAre(kDepth / 4));
  clock.Pass(20'000'000'000);
  TurnKeeper();
  EXPECT_THAT(armed, SizeIs(1));
}

// Its connections end, and who comes later is given to another shard.
TEST_F(FailingQueueTest, shouldEndTheConnectionsOfAQueueThatFailed) {
  Post({0, 1});
  RawPeer peer;
  const uint32_t connection = Joined(peer);
  Tell(verbs::DeviceEventType::kSharedReceiveQueueFailed, 0);
  EXPECT_EQ(arena->shard(0).shared_receives_refused, 1u);
  ASSERT_TRUE(Until([&] { return state(connection) == ConnectionState::kClosed; }));
  ASSERT_TRUE(Until([&] { return peer.disconnected; }));
  for (int i = 0; i < 2; ++i) {
    RawPeer late;
    const uint32_t used = static_cast<uint32_t>(i) + 1;
    Ask(late);
    ASSERT_TRUE(KeeperUntil([&] { return arena->connection(used).generation == 1; }));
    EXPECT_EQ(arena->connection(used).shard, 1u);
    peers.pop_back();
  }
}

// Another worker of the service has written which shard it is in, and ordered something there.
TEST_F(FailingQueueTest, shouldEndAConnectionWhoseRecordNamedAnotherShard) {
  Post({0, 1});
  RawPeer peer;
  const uint32_t connection = Joined(peer);
  arena::ConnectionRecord& record = arena->connection(connection);
  record.shard = 1;
  MailEntry order = {};
  order.kind = static_cast<uint8_t>(OrderKind::kAccept);
  order.connection = connection;
  order.generation = record.generation;
  Mailbox::Orders(*arena, 1).Put(order);
  TurnKeeper();
  ASSERT_TRUE(Mailbox::Orders(*arena, 1).empty());
  record.shard = 0;
  Tell(verbs::DeviceEventType::kSharedReceiveQueueFailed, 0);
  ASSERT_TRUE(Until([&] { return state(connection) == ConnectionState::kClosed; }));
  ASSERT_TRUE(Until([&] { return peer.disconnected; }));
}

}  // namespace
}  // namespace baton::native
