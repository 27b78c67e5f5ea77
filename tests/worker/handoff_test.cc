// Shards that move between workers.
#include <array>
#include <set>
#include <string>

#include "lib/arena/atomic_access.h"
#include "tests/worker/worker_fixture.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RawPeer;
using testing::ScriptedService;
using testing::WorkerFixture;
using Kind = Completion::Kind;

class HandoffTest : public WorkerFixture {
 protected:
  // Accepts, and commits that in manual mode too; everything else is left to the test.
  void AcceptOnly(ScriptedService& service) {
    service.on_completion = [](Shard& shard, const Completion& completion) {
      if (completion.kind != Kind::kConnectRequest) return;
      AcceptWith(shard, completion, 4);
      EXPECT_EQ(shard.Commit(), absl::OkStatus());
    };
  }
  // Both services echo, and `first` has the shard and a connection with `peer`.
  void StartEcho() {
    Start();
    EchoWith(first);
    EchoWith(second);
    one = Add(&first);
    Establish(peer, *one);
    other = Add(&second);
  }
  // `first` has a connection with `peer`, and commits only when the test says so.
  void StartManual() {
    Start();
    AcceptOnly(first);
    one = Add(&first, CommitMode::kManual);
    Establish(peer, *one);
    ASSERT_TRUE(Until([&] { return first.Count(Kind::kEstablished) == 1; }));
  }
  // `first` has the shard, and goes on with it when `second` cannot adopt it.
  void HandOverInVain() {
    Start();
    Add(&first);
    ASSERT_TRUE(Until([&] { return first.shards.size() == 1; }));
    second.on_adopt = [](Shard&) { return absl::InternalError("not for me"); };
    other = Add(&second);  // the newest
    EXPECT_EQ(Handoff(*other).code(), absl::StatusCode::kAborted);
    ASSERT_TRUE(Until([&] { return first.shards.size() == 1; }));
  }

  ScriptedService& first = NewService();
  ScriptedService& second = NewService();
  Worker* one = nullptr;
  Worker* other = nullptr;
  RawPeer peer;
};

TEST_F(HandoffTest, shouldGoOnWithTheSameConnection) {
  ASSERT_NO_FATAL_FAILURE(StartEcho());
  size_t sent = 0;
  for (int i = 0; i < 8; ++i) peer.Receive();
  for (int round = 0; round < 6; ++round) {
    for (int i = 0; i < 20; ++i) {
      peer.Send(absl::StrCat("message ", sent++));
      peer.Receive();
      ASSERT_TRUE(Until([&] { return peer.received.size() == sent; }));
    }
    ASSERT_EQ(Handoff(round % 2 == 0 ? *other : *one), absl::OkStatus());
  }
  for (size_t i = 0; i < sent; ++i) EXPECT_EQ(peer.received[i], absl::StrCat("message ", i));
  EXPECT_THAT(first.calls,
              ElementsAre("adopt", "release", "adopt", "release", "adopt", "release", "adopt"));
  EXPECT_THAT(second.calls,
              ElementsAre("adopt", "release", "adopt", "release", "adopt", "release"));
  EXPECT_FALSE(peer.disconnected);
}

TEST_F(HandoffTest, shouldHandOverWhatIsOnItsWay) {
  ASSERT_NO_FATAL_FAILURE(StartEcho());
  for (int i = 0; i < 16; ++i) peer.Receive();
  size_t sent = 0;
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 6; ++i) peer.Send(absl::StrCat("message ", sent++));
    ASSERT_EQ(Handoff(round % 2 == 0 ? *other : *one), absl::OkStatus());
    ASSERT_TRUE(Until([&] { return peer.received.size() == sent; }));
    for (int i = 0; i < 6; ++i) peer.Receive();
  }
  for (size_t i = 0; i < sent; ++i) EXPECT_EQ(peer.received[i], absl::StrCat("message ", i));
}

TEST_F(HandoffTest, shouldGiveTheSuccessorTheStateThatWasCommitted) {
  ASSERT_NO_FATAL_FAILURE(StartManual());
  Shard& shard = *first.shards.at(0);
  Connection& connection = *first.completions.back().connection;
  const std::array<uint8_t, 4> state = {1, 2, 3, 4}, shard_state = {9, 8, 7, 6};
  ASSERT_EQ(shard.SetState(connection, state, 3), absl::OkStatus());
  ASSERT_EQ(shard.SetShardState(shard_state, 4), absl::OkStatus());
  ASSERT_EQ(shard.Commit(), absl::OkStatus());
  int adopted = 0;
  second.on_adopt = [&](Shard& taken) {
    ++adopted;
    EXPECT_EQ(taken.epoch(), 2u);
    EXPECT_EQ(taken.state(), absl::MakeConstSpan(shard_state));
    EXPECT_EQ(taken.state_version(), 4u);
    const std::vector<Connection*> connections = taken.connections();
    EXPECT_EQ(connections.size(), 1u);
    if (connections.size() != 1) return absl::InternalError("no connection");
    EXPECT_EQ(connections[0]->state(), absl::MakeConstSpan(state));
    EXPECT_EQ(connections[0]->state_version(), 3u);
    EXPECT_EQ(connections[0]->next_receive(), 4u);
    EXPECT_EQ(connections[0]->context, nullptr);
    int in_use = 0;
    taken.ForEachBufferInUse(*connections[0], [&](const Buffer&, bool) { ++in_use; });
    EXPECT_EQ(in_use, 4);
    return absl::OkStatus();
  };
  other = Add(&second);
  ASSERT_EQ(Handoff(*other), absl::OkStatus());
  EXPECT_EQ(adopted, 1);
}

TEST_F(HandoffTest, shouldTakeWhatIsCommittedAtTheLastChance) {
  Start();
  first.on_release = [](Shard& shard) {
    const std::array<uint8_t, 1> last = {42};
    EXPECT_EQ(shard.SetShardState(last, 1), absl::OkStatus());
    EXPECT_EQ(shard.Commit(), absl::OkStatus());
  };
  Add(&first, CommitMode::kManual);
  ASSERT_TRUE(Until([&] { return first.shards.size() == 1; }));
  uint8_t seen = 0;
  second.on_adopt = [&](Shard& shard) {
    if (!shard.state().empty()) seen = shard.state()[0];
    return absl::OkStatus();
  };
  other = Add(&second);
  ASSERT_EQ(Handoff(*other), absl::OkStatus());
  EXPECT_EQ(seen, 42);
}

TEST_F(HandoffTest, shouldDeliverAgainWhatWasNotCommitted) {
  ASSERT_NO_FATAL_FAILURE(StartManual());
  ASSERT_EQ(first.shards.at(0)->Commit(), absl::OkStatus());
  peer.Send("first");
  peer.Send("second");
  ASSERT_TRUE(Until([&] { return first.Count(Kind::kReceive) == 2; }));
  // Staged, and never committed.
  ASSERT_EQ(SendText(*first.shards.at(0), *first.completions.back().connection, "lost"),
            absl::OkStatus());
  EchoWith(second);
  other = Add(&second);
  for (int i = 0; i < 4; ++i) peer.Receive();
  ASSERT_EQ(Handoff(*other), absl::OkStatus());
  ASSERT_TRUE(Until([&] { return peer.received.size() == 2; }));
  EXPECT_THAT(peer.received, ElementsAre("first", "second"));
  EXPECT_EQ(second.Count(Kind::kReceive), 2);
}

TEST_F(HandoffTest, shouldReleaseWhenItEnds) {
  ASSERT_NO_FATAL_FAILURE(StartEcho());
  Remove(one);
  EXPECT_THAT(first.calls, ElementsAre("adopt", "release"));
  peer.Receive();
  peer.Send("still there?");
  ASSERT_TRUE(Until([&] { return peer.received.size() == 1; }));
  EXPECT_THAT(second.calls, ElementsAre("adopt"));
}

TEST_F(HandoffTest, shouldGiveBackAShardThatItCannotAdopt) {
  Start();
  first.on_adopt = [](Shard& shard) {
    const std::array<uint8_t, 1> half_done = {13};
    EXPECT_EQ(shard.SetShardState(half_done, 1), absl::OkStatus());
    return absl::InternalError("not for me");
  };
  Add(&first);
  ASSERT_TRUE(Until([&] { return keeper.Describe().shards(0).owner_worker_id() == 0; }));
  EXPECT_THAT(keeper.Describe().shards(0).waiting_reason(), HasSubstr("no worker is ready"));
  bool was_empty = false;
  second.on_adopt = [&](Shard& shard) {
    was_empty = shard.state().empty();
    return absl::OkStatus();
  };
  Add(&second);
  ASSERT_TRUE(Until([&] { return second.shards.size() == 1; }));
  EXPECT_TRUE(was_empty);  // nothing of the failed adoption had an effect
}

TEST_F(HandoffTest, shouldTellTheOperatorThatTheSuccessorCouldNotAdopt) {
  ASSERT_NO_FATAL_FAILURE(HandOverInVain());
}

TEST_F(HandoffTest, shouldNotChooseWhoGaveTheShardBackUntilItIsReadyAgain) {
  ASSERT_NO_FATAL_FAILURE(HandOverInVain());
  const absl::Status nobody = keeper.Handoff(0);
  EXPECT_THAT(std::string(nobody.message()), HasSubstr("no other worker is ready"));
  second.on_adopt = nullptr;
  ASSERT_EQ(other->Ready(), absl::OkStatus());
  EXPECT_EQ(Handoff(*other), absl::OkStatus());
  EXPECT_EQ(second.shards.size(), 1u);
}

TEST_F(HandoffTest, shouldHearThatAShardWasLost) {
  Start();
  AcceptOnly(first);
  auto doomed = Worker::Attach(Options(CommitMode::kManual), &first).value();
  ASSERT_EQ(doomed->Ready(), absl::OkStatus());
  EchoWith(second);
  peers.push_back(&peer);
  peer.Connect(doomed->Listen(fabric.host, 0).value());
  const auto both = [&](const std::function<bool()>& done) {
    return Until([&] {
      EXPECT_TRUE(doomed->Poll().ok());
      return done();
    });
  };
  ASSERT_TRUE(both([&] { return first.Count(Kind::kEstablished) == 1; }));
  Shard& shard = *first.shards.at(0);
  Connection& connection = *first.completions.back().connection;
  ASSERT_EQ(shard.Commit(), absl::OkStatus());
  peer.Send("delivered, not committed");
  ASSERT_TRUE(both([&] { return first.Count(Kind::kReceive) == 1; }));
  Add(&second);
  // The keeper takes it for dead, and its process goes on.
  keeper.engine().Run([&] { keeper.engine().succession().WorkerEnded(0, doomed->id(), "crash"); });
  ASSERT_TRUE(both([&] { return first.lost == &shard; }));
  EXPECT_EQ(shard.Commit().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(shard.Disconnect(connection).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(shard.SetShardState({}, 1).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(doomed->Connect(shard, fabric.host, 1, "", 0).status().code(),
            absl::StatusCode::kAborted);
  peer.Receive();
  ASSERT_TRUE(Until([&] { return peer.received.size() == 1; }));
  EXPECT_EQ(peer.received[0], "delivered, not committed");
  EXPECT_EQ(keeper.Describe().shards(0).last_report().cause(), "crash");
  EXPECT_EQ(keeper.Describe().shards(0).last_report().delivered_uncommitted(), 1u);
}

TEST_F(HandoffTest, shouldAttachAndDetachAgainAndAgain) {
  Start();
  for (int i = 0; i < 50; ++i) {
    ScriptedService& older = NewService();
    ScriptedService& newer = NewService();
    Worker* worker = Add(&older);
    ASSERT_TRUE(Until([&] { return older.shards.size() == 1; }));
    Add(&newer);
    Remove(worker);
    ASSERT_TRUE(Until([&] { return newer.shards.size() == 1; }));
    workers.clear();
  }
}

TEST_F(HandoffTest, shouldMoveEachShardByItself) {
  Start([](v1::ServiceConfig* config) { config->set_shards(3); });
  Add(&first);
  ASSERT_TRUE(Until([&] { return first.shards.size() == 3; }));
  other = Add(&second);
  auto moved = std::async(std::launch::async, [&] { return keeper.Handoff(other->id(), {1}); });
  ASSERT_TRUE(Until([&] { return second.shards.size() == 1; }));
  ASSERT_TRUE(
      Until([&] { return moved.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }));
  EXPECT_EQ(moved.get(), absl::OkStatus());
  EXPECT_EQ(first.shards.size(), 2u);
  EXPECT_EQ(second.shards.begin()->first, 1u);
}

// The driver would reject the peer, whose shard has another owner by then.
TEST_F(HandoffTest, shouldReleaseNoShardIntoWhichAnOpenTransactionAccepts) {
  Start([](v1::ServiceConfig* config) { config->set_shards(2); });
  Shard* from = nullptr;
  const auto accept = [&](Shard& shard, const Completion& completion) {
    if (completion.kind != Kind::kConnectRequest) return;
    from = &shard;
    EXPECT_EQ(shard.Accept(*completion.connection, *first.shards.at(1 - shard.index())),
              absl::OkStatus());
  };
  first.on_completion = accept;
  one = Add(&first, CommitMode::kManual);
  ASSERT_TRUE(Until([&] { return first.shards.size() == 2; }));
  other = Add(&second);
  Connect(peer, *one);
  ASSERT_TRUE(Until([&] { return from != nullptr; }));
  const uint32_t into = 1 - from->index();
  auto moved = std::async(std::launch::async, [&] { return keeper.Handoff(other->id(), {into}); });
  const arena::Arena& arena = keeper.engine().arena();
  ASSERT_TRUE(
      Until([&] { return arena::LoadRelaxed(arena.shard(into).owner.release_requested) != 0; }));
  for (int i = 0; i < 100; ++i) Turn();
  EXPECT_EQ(first.shards.size(), 2u);
  ASSERT_EQ(from->Commit(), absl::OkStatus());
  ASSERT_TRUE(
      Until([&] { return moved.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }));
  EXPECT_EQ(moved.get(), absl::OkStatus());
  ASSERT_TRUE(Until([&] { return peer.established; }));
  EXPECT_EQ(second.shards.count(into), 1u);
}

}  // namespace
}  // namespace baton
