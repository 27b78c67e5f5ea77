// These tests show how far one poll of a completion queue goes, and that shards of one service have
// drivers of their own and change them.
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/arena/arena.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "tests/lib/driver/queue_driver_fixture.h"
#include "tests/lib/driver/scripted_driver_fixture.h"

namespace baton::driver {
namespace {

using arena::CompletionKind;
using arena::ConnectionState;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Pump;
using testing::RawPeer;
using testing::TestShape;

// A connection with many sends outstanding, which all complete at once.
class PollBudgetTest : public testing::ScriptedDriverTest {
 protected:
  static constexpr uint32_t kSends = 500;

  void SetUp() override {
    Start(TestShape(1, 4, 512));
    const uint32_t connection = Established();
    for (uint32_t i = 0; i < kSends; ++i) writer->Send(connection, 0, 8);
    writer->Publish();
    ASSERT_EQ(Apply(), CommitOutcome::kApplied) << error;
    for (uint32_t i = 0; i < kSends; ++i) {
      device.Complete(arena->connection(connection).qp_number, false);
    }
    before = arena->shard(0).completion_tail;
  }
  uint64_t published() const { return arena->shard(0).completion_tail - before; }

  uint64_t before = 0;
};

TEST_F(PollBudgetTest, shouldEndBeforeTheQueueIsEmpty) {
  EXPECT_EQ(driver->PollCompletions(0), absl::StatusOr<bool>(true));
  EXPECT_EQ(published(), 256u);
  EXPECT_EQ(driver->PollCompletions(0), absl::StatusOr<bool>(true));
  EXPECT_EQ(published(), kSends);
  EXPECT_EQ(driver->PollCompletions(0), absl::StatusOr<bool>(false));
}

TEST_F(PollBudgetTest, shouldPublishWhatItHasBeforeItTakesMore) {
  std::vector<uint64_t> seen;
  device.when_polled = [&] { seen.push_back(published()); };
  ASSERT_TRUE(driver->PollCompletions(0).ok());
  EXPECT_THAT(seen, ElementsAre(0, 64, 128, 192));
}

// It decides by the completions what it posts.
TEST_F(PollBudgetTest, shouldNotEndARecoveryBeforeTheQueueIsEmpty) {
  Recover();
  EXPECT_EQ(published(), kSends);
}

TEST_F(PollBudgetTest, shouldTellEverythingBeforeADeviceIsGivenUp) {
  driver->EndAll("it is gone");
  driver->GiveUp(0, "it is gone");
  EXPECT_EQ(published(), kSends + 1);
  EXPECT_TRUE(driver->AllEnded());
}

using ManyConnectionsTest = testing::ScriptedDriverTest;

TEST_F(ManyConnectionsTest, shouldTellConnectionsApartBeyondThe65536th) {
  constexpr uint32_t kOthers = 65'537;
  Start(TestShape(1, kOthers + 1, 1));
  for (uint32_t i = 0; i < kOthers; ++i) {
    ASSERT_TRUE(Connect().ok());
  }
  const uint32_t connection = Established();
  ASSERT_EQ(connection, kOthers);
  writer->Send(connection, 0, 8);
  writer->Publish();
  ASSERT_EQ(Apply(), CommitOutcome::kApplied) << error;
  device.Complete(arena->connection(connection).qp_number, false);
  Poll();
  EXPECT_EQ(arena->connection(connection).send.completed, 1u);
  EXPECT_EQ(arena->completion(0, read).connection, connection);
  EXPECT_THAT(ReadAll(), ElementsAre("send 0"));
}

// One connection in each of two shards, accepted by a driver that both had; then each has its own.
class SeveralDriversTest : public testing::QueueDriverTest {
 protected:
  void SetUp() override {
    Make(TestShape(2));
    for (uint32_t shard = 0; shard < 2; ++shard) Establish(shard);
    objects_ = driver->objects();
    for (uint32_t shard = 0; shard < 2; ++shard) {
      driver->Leave(shard);
      drivers_[shard] = NewDriver();
      ASSERT_TRUE(drivers_[shard]->Adopt({shard}).ok());
    }
  }

  void Establish(uint32_t shard) {
    peers.push_back(&peers_[shard]);
    peers_[shard].Connect(port, "");
    connections_[shard] = NextOfKind(CompletionKind::kConnectRequest, shard).connection;
    writer(shard).Receive(connections_[shard], 1024 * shard, 1024);
    writer(shard).Accept(connections_[shard], shard);
    writer(shard).Acknowledge(read[shard]);
    ASSERT_EQ(Commit(shard), CommitOutcome::kApplied) << error;
    NextOfKind(CompletionKind::kEstablished, shard);
    ASSERT_TRUE(Until([&] { return peers_[shard].established; }));
  }

  std::unique_ptr<QueueDriver> NewDriver() {
    return QueueDriver::Create(&*arena, device.get(), &observer, objects_);
  }

  void TurnAll() {
    device->Progress();
    for (uint32_t shard = 0; shard < 2; ++shard) {
      if (!drivers_[shard]) continue;
      ASSERT_TRUE(drivers_[shard]->PollCompletions(shard).ok());
    }
    for (RawPeer* peer : peers) peer->Turn();
  }
  bool AwaitAll(const std::function<bool()>& done) {
    return Pump([&] { TurnAll(); }, done);
  }

  // A message to the shard's worker, its answer, and a receive for the next.
  void ExchangeAMessage(uint32_t shard) {
    RawPeer& peer = peers_[shard];
    const size_t answers = peer.received.size();
    peer.Receive();
    peer.Send("ping");
    ASSERT_TRUE(AwaitAll([&] { return unread(shard) == 1; }));
    CommitAnswer(shard);
    Apply(shard);
    ASSERT_TRUE(
        AwaitAll([&] { return peer.received.size() == answers + 1 && unread(shard) == 1; }));
    const arena::CompletionEntry sent = arena->completion(shard, read[shard]++);
    EXPECT_EQ(static_cast<int>(sent.kind), static_cast<int>(CompletionKind::kSend));
    EXPECT_EQ(sent.status, 0u);
  }
  void CommitAnswer(uint32_t shard) {
    const arena::CompletionEntry received = arena->completion(shard, read[shard]++);
    EXPECT_EQ(static_cast<int>(received.kind), static_cast<int>(CompletionKind::kReceive));
    EXPECT_EQ(received.connection, connections_[shard]);
    writer(shard).Send(connections_[shard], 4096, 4);
    writer(shard).Receive(connections_[shard], 1024 * shard, 1024);
    writer(shard).Acknowledge(read[shard]);
    writer(shard).Publish();
  }
  void Apply(uint32_t shard) {
    ASSERT_EQ(drivers_[shard]->ApplyNext(shard, &error), CommitOutcome::kApplied) << error;
  }

  std::shared_ptr<DeviceObjects> objects_;
  std::array<RawPeer, 2> peers_;
  std::array<uint32_t, 2> connections_ = {};
  std::array<std::unique_ptr<QueueDriver>, 2> drivers_;
};

TEST_F(SeveralDriversTest, shouldOperateOnlyTheirOwnShards) {
  for (uint32_t shard = 0; shard < 2; ++shard) {
    EXPECT_TRUE(drivers_[shard]->Operates(shard));
    EXPECT_FALSE(drivers_[shard]->Operates(1 - shard));
    EXPECT_EQ(drivers_[shard]->connection_count(), 1u);
  }
  for (int round = 0; round < 3; ++round) {
    ExchangeAMessage(0);
    ExchangeAMessage(1);
  }
  EXPECT_EQ(drivers_[0]->counters(0).sends_completed, 3u);
  EXPECT_EQ(drivers_[0]->counters(1).sends_completed, 0u);
}

TEST_F(SeveralDriversTest, shouldGoOnWhileTheShardOfAnotherChangesItsDriver) {
  peers_[0].Receive();
  peers_[0].Send("ping");
  ASSERT_TRUE(AwaitAll([&] { return unread(0) == 1; }));
  CommitAnswer(0);
  drivers_[0].reset();  // dead, before it has applied that
  ExchangeAMessage(1);
  drivers_[0] = NewDriver();
  ASSERT_TRUE(drivers_[0]->Adopt({0}).ok());
  EXPECT_EQ(drivers_[0]->recovery().recoveries, 1u);
  Apply(0);
  ASSERT_TRUE(AwaitAll([&] { return peers_[0].received.size() == 1; }));
  EXPECT_EQ(arena->connection(connections_[0]).send.posted, 1u);
  ExchangeAMessage(1);
}

// A driver has written over another's connection.
TEST_F(SeveralDriversTest, shouldWriteNoLogOfAnotherForARecordThatNamesIt) {
  arena->connection(connections_[0]).shard = 77;
  peers_[0].Disconnect();
  ASSERT_TRUE(AwaitAll([&] {
    uint32_t shard;
    while (drivers_[0]->HandleEvent(&shard)) {
    }
    return state(connections_[0]) == ConnectionState::kClosed;
  }));
  EXPECT_THAT(observer.states, Contains(HasSubstr("cannot be told to its owner")));
  EXPECT_EQ(arena->shard(1).completion_tail, read[1]);
  ExchangeAMessage(1);
}

TEST_F(SeveralDriversTest, shouldTakeAShardThatAnotherHasLeft) {
  ExchangeAMessage(0);
  drivers_[0]->Leave(0);
  EXPECT_FALSE(drivers_[0]->Operates(0));
  EXPECT_EQ(drivers_[0]->connection_count(), 0u);
  drivers_[0].reset();
  ASSERT_TRUE(drivers_[1]->Adopt({0}).ok());
  EXPECT_EQ(drivers_[1]->connection_count(), 2u);
  EXPECT_EQ(drivers_[1]->recovery().sends_ambiguous, 0u);
  drivers_[0] = std::move(drivers_[1]);
  for (const uint32_t shard : {0u, 1u}) {
    const size_t answers = peers_[shard].received.size();
    peers_[shard].Receive();
    peers_[shard].Send("ping");
    const auto turn = [&] {
      device->Progress();
      for (uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(drivers_[0]->PollCompletions(i).ok());
      for (RawPeer* peer : peers) peer->Turn();
    };
    ASSERT_TRUE(Pump(turn, [&] { return unread(shard) == 1; }));
    CommitAnswer(shard);
    ASSERT_EQ(drivers_[0]->ApplyNext(shard, &error), CommitOutcome::kApplied) << error;
    ASSERT_TRUE(Pump(turn, [&] { return peers_[shard].received.size() == answers + 1; }));
  }
}

}  // namespace
}  // namespace baton::driver
