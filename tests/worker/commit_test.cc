// Staging, committing and abandoning.
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <string_view>

#include "tests/worker/worker_fixture.h"
#include "worker/heap.h"
#include "worker/worker_impl.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RawPeer;
using testing::ReceiveSlot;
using testing::ScriptedService;
using testing::SendSlot;
using testing::WorkerFixture;
using Kind = Completion::Kind;

// A driver that stands still, as one without a processor does.
class StalledDriverTest : public WorkerFixture, public ::testing::WithParamInterface<CommitMode> {
 protected:
  void Stall() {
    keeper.engine().Post([this] {
      stalled_.store(true);
      while (stalled_.load()) usleep(100);
    });
    while (!stalled_.load()) usleep(100);
  }
  void GoOn() { stalled_.store(false); }
  // Has the driver log `messages` from `peer`, then stalls it and turns the workers.
  void TurnWithoutDriver(RawPeer& peer, size_t messages) {
    const uint64_t before = CompletionsInLog();
    for (size_t sent = 0; sent < messages; sent += 32) {
      for (int i = 0; i < 32; ++i) peer.Send("request");
      ASSERT_TRUE(UntilWithoutWorkers([&] { return CompletionsInLog() >= before + sent + 32; }));
    }
    Stall();
    for (int i = 0; i < 1000; ++i) Turn();
  }

 private:
  std::atomic<bool> stalled_{false};
};

TEST_P(StalledDriverTest, shouldDeliverNoCompletionThatCouldNotBeAnswered) {
  constexpr size_t kMessages = 640;
  Start([](v1::ServiceConfig* service) {
    service->set_send_queue_depth(1024);
    service->set_receive_queue_depth(1024);
  });
  ScriptedService& service = NewService();
  size_t answered = 0;
  service.on_completion = [&](Shard& shard, const Completion& completion) {
    AcceptWith(shard, completion, kMessages);
    if (completion.kind != Kind::kReceive) return;
    EXPECT_EQ(SendText(shard, *completion.connection, "answer"), absl::OkStatus());
    EXPECT_EQ(shard.SetShardState(std::array<uint8_t, 1>{7}, 1), absl::OkStatus());
    ++answered;
  };
  Worker* worker = Add(&service, GetParam());
  RawPeer peer(/*max_requests=*/256);
  Establish(peer, *worker);
  ASSERT_NO_FATAL_FAILURE(TurnWithoutDriver(peer, kMessages));
  if (GetParam() == CommitMode::kAfterEachCompletion) {
    EXPECT_LT(answered, kMessages);
  }
  GoOn();
  size_t posted = 0;
  ASSERT_TRUE(Until([&] {
    for (; posted < peer.received.size() + 32; ++posted) peer.Receive();
    return answered == kMessages && keeper.Describe().shards(0).completions_unacknowledged() == 0;
  }));
}

// Each transaction has an entry for the connection, one for the decision and one for the heap.
TEST_P(StalledDriverTest, shouldLeaveRoomForTheHeap) {
  constexpr size_t kMessages = 640;
  Start([](v1::ServiceConfig* service) {
    service->set_receive_queue_depth(1024);
    service->set_shard_heap_bytes(1 << 20);
  });
  ScriptedService& service = NewService();
  size_t handled = 0;
  service.on_completion = [&](Shard& shard, const Completion& completion) {
    AcceptWith(shard, completion, kMessages);
    if (completion.kind != Kind::kReceive) return;
    EXPECT_EQ(shard.SetState(*completion.connection, std::array<uint8_t, 1>{7}, 1),
              absl::OkStatus());
    EXPECT_EQ(shard.Disconnect(*completion.connection), absl::OkStatus());
    EXPECT_EQ(shard.heap().Allocate(64).status(), absl::OkStatus()) << handled;
    ++handled;
  };
  Worker* worker = Add(&service, GetParam());
  RawPeer peer(/*max_requests=*/256);
  Establish(peer, *worker);
  ASSERT_NO_FATAL_FAILURE(TurnWithoutDriver(peer, kMessages));
  if (GetParam() == CommitMode::kAfterEachCompletion) {
    EXPECT_LT(handled, kMessages);
  }
  GoOn();
  ASSERT_TRUE(Until([&] { return handled == kMessages; }));
}

// The record says that the connection is in the shard which it has left: the driver has not applied
// the move yet. Neither a heap that looks there for memory in use, nor a list, takes it back.
TEST_P(StalledDriverTest, shouldNotTakeBackAConnectionThatMoves) {
  Start([](v1::ServiceConfig* service) {
    service->set_shards(2);
    service->set_shard_heap_bytes(1 << 16);
  });
  ScriptedService& service = NewService();
  Shard* from = nullptr;
  service.on_completion = [&](Shard& shard, const Completion& completion) {
    if (completion.kind != Kind::kConnectRequest) return;
    from = &shard;
    EXPECT_EQ(shard.Accept(*completion.connection, *service.shards.at(1 - shard.index())),
              absl::OkStatus());
  };
  Worker* worker = Add(&service, GetParam());
  ASSERT_TRUE(Until([&] { return service.shards.size() == 2; }));
  RawPeer peer;
  Connect(peer, *worker);
  ASSERT_TRUE(UntilWithoutWorkers([&] { return CompletionsInLog(0) + CompletionsInLog(1) == 1; }));
  Stall();
  for (int i = 0; i < 10 && from == nullptr; ++i) Turn();
  if (from != nullptr) {
    Connection& connection = *service.completions.back().connection;
    EXPECT_TRUE(from->heap().AllocateScratch(64).ok());
    EXPECT_TRUE(from->connections().empty());
    EXPECT_EQ(from->SetState(connection, {}, 1).code(), absl::StatusCode::kFailedPrecondition);
  }
  GoOn();
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kEstablished) == 1; }));
  EXPECT_NE(&service.completions.back().connection->shard(), from);
  EXPECT_EQ(poll_status, absl::OkStatus());
}

// The record of the connection has neither the move nor the receive yet.
TEST_P(StalledDriverTest, shouldNotGiveOutWhatAReceiveOfAConnectionThatMovesRefersTo) {
  constexpr uint64_t kPage = 4096;
  Start([](v1::ServiceConfig* service) {
    service->set_shards(2);
    service->set_shard_heap_bytes(16 * kPage);
  });
  ScriptedService& service = NewService();
  Shard* from = nullptr;
  Buffer received = {};
  service.on_completion = [&](Shard& shard, const Completion& completion) {
    if (completion.kind != Kind::kConnectRequest) return;
    received = shard.heap().AllocateScratch(kPage).value();
    EXPECT_EQ(shard.Receive(*completion.connection, {&received, 1}), absl::OkStatus());
    EXPECT_EQ(shard.Accept(*completion.connection, *service.shards.at(1 - shard.index())),
              absl::OkStatus());
    from = &shard;
  };
  Worker* worker = Add(&service, GetParam());
  ASSERT_TRUE(Until([&] { return service.shards.size() == 2; }));
  RawPeer peer;
  Connect(peer, *worker);
  ASSERT_TRUE(UntilWithoutWorkers([&] { return CompletionsInLog(0) + CompletionsInLog(1) == 1; }));
  Stall();
  for (int i = 0; i < 10 && from == nullptr; ++i) Turn();
  if (from != nullptr) {
    EXPECT_EQ(from->heap().Free(received), absl::OkStatus());
    int others = 0;
    for (; true; ++others) {
      const absl::StatusOr<Buffer> page = from->heap().AllocateScratch(kPage);
      if (!page.ok()) break;
      EXPECT_NE(page->offset, received.offset);
    }
    EXPECT_EQ(others, 15);
  }
  GoOn();
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kEstablished) == 1 && peer.established; }));
  EXPECT_NE(from, nullptr);
  peer.Send("hello");
  EXPECT_TRUE(Until([&] { return service.Count(Kind::kReceive) == 1; }));
}

INSTANTIATE_TEST_SUITE_P(, StalledDriverTest,
                         ::testing::Values(CommitMode::kAfterEachBatch,
                                           CommitMode::kAfterEachCompletion));

class EchoTest : public WorkerFixture, public ::testing::WithParamInterface<CommitMode> {
 protected:
  void SetUp() override {
    Start();
    service.on_completion = [this](Shard& shard, const Completion& completion) {
      Echo(shard, completion);
      if (GetParam() == CommitMode::kManual) {
        EXPECT_EQ(shard.Commit(), absl::OkStatus());
      }
    };
    worker = Add(&service, GetParam());
  }

  ScriptedService& service = NewService();
  Worker* worker = nullptr;
};

TEST_P(EchoTest, shouldAnswerEveryMessageOnceAndInOrder) {
  RawPeer peer;
  Establish(peer, *worker);
  constexpr size_t kMessages = 200;
  size_t sent = 0;
  for (int i = 0; i < 8; ++i) peer.Receive();
  ASSERT_TRUE(Until([&] {
    // Four on their way at most.
    while (sent < kMessages && sent < peer.received.size() + 4) {
      peer.Send(absl::StrCat("message ", sent++));
      peer.Receive();
    }
    return peer.received.size() == kMessages;
  }));
  for (size_t i = 0; i < kMessages; ++i) EXPECT_EQ(peer.received[i], absl::StrCat("message ", i));
  EXPECT_EQ(poll_status, absl::OkStatus());
}

TEST_P(EchoTest, shouldLeaveNothingUnacknowledgedInTheEnd) {
  {
    RawPeer peer;
    Establish(peer, *worker);
    peer.Receive();
    peer.Send("once");
    ASSERT_TRUE(Until([&] { return !peer.received.empty(); }));
    peer.Disconnect();
    ASSERT_TRUE(Until([&] { return service.Count(Kind::kDisconnected) == 1; }));
    peers.clear();
  }
  ASSERT_TRUE(Until([&] {
    const auto description = keeper.Describe();
    return description.service().connection_count() == 0 &&
           description.shards(0).completions_unacknowledged() == 0;
  }));
}

std::string ModeName(const ::testing::TestParamInfo<CommitMode>& info) {
  switch (info.param) {
    case CommitMode::kAfterEachBatch:
      return "AfterEachBatch";
    case CommitMode::kAfterEachCompletion:
      return "AfterEachCompletion";
    case CommitMode::kManual:
      return "Manual";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(Modes, EchoTest,
                         ::testing::Values(CommitMode::kAfterEachBatch,
                                           CommitMode::kAfterEachCompletion, CommitMode::kManual),
                         ModeName);

// A connection of a worker that commits only when the test says so.
class CommitTest : public WorkerFixture {
 protected:
  void Prepare(int receives = 0, const keeper::testing::KeeperThread::Change& change = nullptr) {
    Start(change);
    if (driver_has_version_one) keeper.engine().arena().header().layout_version = 0;
    service.on_completion = [receives](Shard& shard, const Completion& completion) {
      if (completion.kind != Kind::kConnectRequest) return;
      AcceptWith(shard, completion, receives);
      EXPECT_EQ(shard.Commit(), absl::OkStatus());
    };
    ASSERT_NO_FATAL_FAILURE(Serve(CommitMode::kManual));
    ASSERT_EQ(shard->Commit(), absl::OkStatus());
  }
  void Serve(CommitMode mode) {
    worker = Add(&service, mode);
    Establish(peer, *worker);
    ASSERT_TRUE(Until([&] { return service.Count(Kind::kEstablished) == 1; }));
    shard = service.shards.at(0);
    connection = service.completions.back().connection;
  }

  void CommitText(std::string_view text) {
    ASSERT_EQ(SendText(*shard, *connection, text), absl::OkStatus());
    ASSERT_EQ(shard->Commit(), absl::OkStatus());
  }
  // How many completions the worker has not acknowledged.
  uint64_t Unacknowledged() { return keeper.Describe().shards(0).completions_unacknowledged(); }
  // The owner of that epoch writes into the bank whose tail is Tail().
  uint64_t Epoch() {
    return arena::OwnershipEpoch(
        arena::LoadAcquire(keeper.engine().arena().shard(0).owner.ownership));
  }
  uint64_t Tail() {
    return arena::CursorIndex(arena::LoadAcquire(keeper.engine().arena().bank(0, Epoch()).tail));
  }

  bool driver_has_version_one = false;
  ScriptedService& service = NewService();
  RawPeer peer;
  Worker* worker = nullptr;
  Shard* shard = nullptr;
  Connection* connection = nullptr;
};

// A connection of a worker that commits after each batch, one completion of which is delivered and
// has staged nothing.
class LaterAcknowledgementTest : public CommitTest {
 protected:
  void SetUp() override {
    Start();
    service.on_completion = [](Shard& shard, const Completion& completion) {
      AcceptWith(shard, completion, 0);
    };
    ASSERT_NO_FATAL_FAILURE(Serve(CommitMode::kAfterEachBatch));
    for (int i = 0; i < 2; ++i) peer.Receive();
    ASSERT_NO_FATAL_FAILURE(CommitText("one"));
    tail_ = Tail();
    ASSERT_TRUE(Until([&] { return service.Count(Kind::kSend) == 1; }));
    ASSERT_EQ(Tail(), tail_);
  }

  void ExpectAcknowledged() {
    EXPECT_EQ(Tail(), tail_ + 1);
    EXPECT_TRUE(Until([&] { return Unacknowledged() == 0; }));
    EXPECT_EQ(Tail(), tail_ + 1);
  }

  uint64_t tail_ = 0;
};

TEST_F(LaterAcknowledgementTest, shouldGoWithTheNextTransaction) {
  ASSERT_NO_FATAL_FAILURE(CommitText("two"));
  EXPECT_EQ(Tail(), tail_ + 1);
  ASSERT_TRUE(Until([&] { return Unacknowledged() <= 1; }));
}

TEST_F(LaterAcknowledgementTest, shouldComeBeforeTheWorkerSleeps) {
  ASSERT_TRUE(worker->ArmEvent());
  ExpectAcknowledged();
}

TEST_F(LaterAcknowledgementTest, shouldComeAfterLooksThatFindNothing) {
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(worker->Poll().ok());
  ExpectAcknowledged();
}

TEST_F(LaterAcknowledgementTest, shouldComeWithTheRelease) {
  worker->Stop();
  ASSERT_EQ(worker->Run(), absl::OkStatus());
  const arena::ShardRecord& record = keeper.engine().arena().shard(0);
  EXPECT_TRUE(driver::testing::Pump([] {},
                                    [&] {
                                      return arena::LoadAcquire(record.acknowledged) ==
                                             arena::LoadAcquire(record.completion_tail);
                                    }));
}

TEST_F(CommitTest, shouldSendOnlyWhatWasCommitted) {
  Prepare();
  for (int i = 0; i < 3; ++i) peer.Receive();
  ASSERT_EQ(SendText(*shard, *connection, "abandoned"), absl::OkStatus());
  EXPECT_EQ(connection->next_send(), 1u);
  shard->Abandon();
  EXPECT_EQ(connection->next_send(), 0u);
  ASSERT_EQ(SendText(*shard, *connection, "one"), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(CommitText("two"));
  ASSERT_EQ(SendText(*shard, *connection, "abandoned too"), absl::OkStatus());
  shard->Abandon();
  ASSERT_NO_FATAL_FAILURE(CommitText("three"));
  ASSERT_TRUE(Until([&] { return peer.received.size() == 3; }));
  EXPECT_THAT(peer.received, ElementsAre("one", "two", "three"));
}

TEST_F(CommitTest, shouldGiveTheRoomBackThatWasAbandoned) {
  Prepare();
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 8; ++i) {
      ASSERT_EQ(SendText(*shard, *connection, "x"), absl::OkStatus());
      const Buffer slot = ReceiveSlot(*connection, connection->next_receive());
      ASSERT_EQ(shard->Receive(*connection, {&slot, 1}), absl::OkStatus());
    }
    EXPECT_EQ(connection->send_room(), 0u);
    EXPECT_EQ(connection->receive_room(), 0u);
    shard->Abandon();
    EXPECT_EQ(connection->send_room(), 8u);
    EXPECT_EQ(connection->receive_room(), 8u);
  }
}

TEST_F(CommitTest, shouldSayWhenTheLogsAreFullAndGoOnLater) {
  Prepare();
  for (int i = 0; i < 16; ++i) peer.Receive();
  int sent = 0;
  absl::Status status;
  while (status.ok()) {
    status = SendText(*shard, *connection, "x", static_cast<uint64_t>(sent));
    sent += status.ok();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(sent, 8);
  ASSERT_EQ(shard->Commit(), absl::OkStatus());
  EXPECT_EQ(connection->send_room(), 0u);
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kSend) == 8; }));
  // Completed makes room in the queue, acknowledged makes room in the log.
  EXPECT_EQ(connection->send_room(), 8u);
  for (int i = 0; i < 8; ++i) ASSERT_EQ(SendText(*shard, *connection, "y"), absl::OkStatus());
  EXPECT_EQ(SendText(*shard, *connection, "y").code(), absl::StatusCode::kResourceExhausted);
  ASSERT_EQ(shard->Commit(), absl::OkStatus());
  ASSERT_TRUE(Until([&] { return peer.received.size() == 16; }));
}

TEST_F(CommitTest, shouldSayWhenATransactionIsFullAndGoOnAfterItsCommit) {
  Prepare();
  for (int round = 0; round < 20; ++round) {
    int staged = 0;
    absl::Status status;
    while (status.ok()) {
      status = shard->Disconnect(*connection);
      staged += status.ok();
      ASSERT_LE(staged, 256);
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("commit log"));
    if (round < 19) {
      shard->Abandon();
    } else {
      EXPECT_EQ(shard->Commit(), absl::OkStatus());
    }
  }
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kDisconnected) == 1; }));
}

TEST_F(CommitTest, shouldWaitForTheDriverWhenTheCommitLogIsFull) {
  Prepare();
  // Many more transactions than the log holds; each is refused or takes effect.
  uint32_t version = 0;
  ASSERT_TRUE(Until([&] {
    while (version < 5000) {
      const std::string state = absl::StrCat("state ", version + 1);
      if (shard
              ->SetState(*connection,
                         {reinterpret_cast<const uint8_t*>(state.data()), state.size()},
                         version + 1)
              .code() == absl::StatusCode::kResourceExhausted) {
        return false;
      }
      EXPECT_EQ(shard->Commit(), absl::OkStatus());
      ++version;
    }
    return true;
  }));
  EXPECT_EQ(connection->state_version(), 5000u);
  EXPECT_EQ(std::string(connection->state().begin(), connection->state().end()), "state 5000");
  EXPECT_EQ(poll_status, absl::OkStatus());
}

TEST_F(CommitTest, shouldNameTheFieldThatIsWrong) {
  Prepare();
  const Buffer outside = {(1 << 18) - 4, 8};
  const Buffer good = {0, 8};
  const std::vector<Buffer> five(5, good);
  const auto message = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(shard->Receive(*connection, {&outside, 1})), HasSubstr("buffers[0]"));
  EXPECT_THAT(message(shard->Receive(*connection, five)), HasSubstr("buffers: 5"));
  SendWork work;
  work.buffers = {&good, 1};
  work.opcode = verbs::Opcode(8);
  EXPECT_THAT(message(shard->Send(*connection, work)), HasSubstr("opcode"));
  work.opcode = verbs::Opcode::kFetchAndAdd;
  work.remote_address = 4;
  EXPECT_THAT(message(shard->Send(*connection, work)), HasSubstr("remote_address"));
  work.remote_address = 8;
  work.buffers = five;
  EXPECT_THAT(message(shard->Send(*connection, work)), HasSubstr("buffers"));
  const std::vector<uint8_t> state(129);
  EXPECT_THAT(message(shard->SetState(*connection, state, 1)), HasSubstr("connection_state_bytes"));
  EXPECT_THAT(message(shard->SetShardState(state, 1)), HasSubstr("shard_state_bytes"));
  EXPECT_THAT(message(shard->Accept(*connection, std::string(257, 'x'))),
              HasSubstr("private_data"));
  // Nothing of that was staged.
  EXPECT_EQ(connection->next_send(), 0u);
  EXPECT_EQ(shard->Commit(), absl::OkStatus());
}

TEST_F(CommitTest, shouldReplaceStateOnlyAtACommit) {
  Prepare();
  const std::array<uint8_t, 3> first = {1, 2, 3}, second = {4, 5, 6};
  ASSERT_EQ(shard->SetState(*connection, first, 1), absl::OkStatus());
  ASSERT_EQ(shard->SetShardState(first, 10), absl::OkStatus());
  EXPECT_TRUE(connection->state().empty());
  EXPECT_TRUE(shard->state().empty());
  ASSERT_EQ(shard->Commit(), absl::OkStatus());
  EXPECT_EQ(connection->state(), absl::MakeConstSpan(first));
  EXPECT_EQ(shard->state(), absl::MakeConstSpan(first));
  EXPECT_EQ(shard->state_version(), 10u);
  ASSERT_EQ(shard->SetState(*connection, second, 2), absl::OkStatus());
  ASSERT_EQ(shard->SetShardState(second, 20), absl::OkStatus());
  shard->Abandon();
  EXPECT_EQ(connection->state(), absl::MakeConstSpan(first));
  EXPECT_EQ(shard->state(), absl::MakeConstSpan(first));
  EXPECT_EQ(connection->state_version(), 1u);
}

TEST_F(CommitTest, shouldKnowWhichBuffersAreInUse) {
  Prepare(2);
  peer.Receive();
  ASSERT_EQ(SendText(*shard, *connection, "staged"), absl::OkStatus());
  int receives = 0;
  std::vector<Buffer> sends;
  shard->ForEachBufferInUse(*connection, [&](const Buffer& buffer, bool send) {
    if (send) sends.push_back(buffer);
    receives += !send;
  });
  EXPECT_EQ(receives, 2);
  ASSERT_EQ(sends.size(), 1u);
  EXPECT_EQ(sends[0].length, 6u);
  EXPECT_EQ(sends[0].offset, SendSlot(*connection, 0, 6).offset);
  ASSERT_EQ(shard->Commit(), absl::OkStatus());
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kSend) == 1; }));
  ASSERT_EQ(shard->Commit(), absl::OkStatus());
  int left = 0;
  shard->ForEachBufferInUse(*connection, [&](const Buffer&, bool) { ++left; });
  EXPECT_EQ(left, 2);
}

// It yields for longer then.
TEST_F(CommitTest, shouldAwaitTheDeviceFromACommitOfSendsToACompletion) {
  Prepare(2);
  peer.Receive();
  const auto& impl = static_cast<const WorkerImpl&>(*worker);
  EXPECT_FALSE(impl.awaits_device());
  ASSERT_EQ(SendText(*shard, *connection, "one"), absl::OkStatus());
  EXPECT_FALSE(impl.awaits_device());
  ASSERT_EQ(shard->Commit(), absl::OkStatus());
  EXPECT_TRUE(impl.awaits_device());
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kSend) == 1; }));
  EXPECT_FALSE(impl.awaits_device());
}

// No completion of it comes to this worker.
TEST_F(CommitTest, shouldNotAwaitTheDeviceOnceTheShardIsReleased) {
  Prepare();
  ASSERT_NO_FATAL_FAILURE(CommitText("one"));
  worker->Stop();
  ASSERT_EQ(worker->Run(), absl::OkStatus());
  EXPECT_FALSE(static_cast<const WorkerImpl&>(*worker).awaits_device());
}

TEST_F(CommitTest, shouldStageARequestWithOneBufferInItsFirstLineToo) {
  Prepare(2);
  const arena::Arena& arena = keeper.engine().arena();
  ASSERT_EQ(SendText(*shard, *connection, "one"), absl::OkStatus());
  const arena::WorkRequest& one = arena.send_request(connection->index(), 0);
  EXPECT_EQ(one.one_line, 1);
  EXPECT_EQ(one.only.offset, SendSlot(*connection, 0, 3).offset);
  EXPECT_EQ(one.only.length, 3u);
  // Where workers of version 1 look for it.
  EXPECT_EQ(one.sges[0].offset, one.only.offset);
  EXPECT_EQ(one.sges[0].length, one.only.length);
  EXPECT_EQ(arena.receive_request(connection->index(), 0).one_line, 1);
  const std::array<Buffer, 2> buffers = {Buffer{0, 1}, Buffer{8, 1}};
  SendWork two;
  two.buffers = buffers;
  ASSERT_EQ(shard->Send(*connection, two), absl::OkStatus());
  EXPECT_EQ(arena.send_request(connection->index(), 1).one_line, 0);
}

TEST_F(CommitTest, shouldAcknowledgeInTheEntryOfAConnectionWhereThereIsOne) {
  Prepare(2);
  for (int i = 0; i < 2; ++i) peer.Receive();
  ASSERT_NO_FATAL_FAILURE(CommitText("one"));
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kSend) == 1; }));
  uint64_t before = Tail();
  ASSERT_NO_FATAL_FAILURE(CommitText("two"));
  EXPECT_EQ(Tail(), before + 1);
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kSend) == 2 && Unacknowledged() == 1; }));
  before = Tail();
  ASSERT_EQ(shard->Commit(), absl::OkStatus());  // nothing but that
  EXPECT_EQ(Tail(), before + 1);
  ASSERT_TRUE(Until([&] { return Unacknowledged() == 0; }));
}

// A driver of that version looks for acknowledgements in entries of their own.
TEST_F(CommitTest, shouldAcknowledgeInAnEntryOfItsOwnWithLayoutVersionOne) {
  driver_has_version_one = true;
  Prepare(2);
  peer.Receive();
  const arena::Arena& arena = keeper.engine().arena();
  ASSERT_NO_FATAL_FAILURE(CommitText("one"));
  ASSERT_TRUE(Until([&] { return service.Count(Kind::kSend) == 1; }));
  const uint64_t epoch = Epoch();
  const uint64_t before = Tail();
  ASSERT_NO_FATAL_FAILURE(CommitText("two"));
  const auto kind = [&](uint64_t i) {
    return arena::CommitKind(arena.commit_entry(0, epoch, before + i).kind);
  };
  EXPECT_EQ(kind(0), arena::CommitKind::kConnection);
  EXPECT_EQ(arena.commit_entry(0, epoch, before).flags, 0);
  EXPECT_EQ(kind(1), arena::CommitKind::kAcknowledge);
}

// A former owner can write over the log of work requests as long as it lives.
TEST_F(CommitTest, shouldNameNoBufferThatDoesNotExist) {
  Prepare(2);
  const arena::Arena& arena = keeper.engine().arena();
  arena::WorkRequest& scribbled = arena.receive_request(connection->index(), 0);
  scribbled.sge_count = 255;
  scribbled.one_line = 0;
  scribbled.sges[0] = {arena.shape().buffer_bytes - 1, 2, 0};
  scribbled.sges[1] = {arena.shape().buffer_bytes + 1, 0, 0};
  scribbled.sges[2] = {arena.shape().buffer_bytes - 1, 1, 0};
  scribbled.sges[3] = {~uint64_t{0}, ~0u, 0};
  arena.receive_request(connection->index(), 1).sges[0] = {};  // the driver reads `only`
  std::vector<Buffer> in_use;
  shard->ForEachBufferInUse(*connection,
                            [&](const Buffer& buffer, bool) { in_use.push_back(buffer); });
  ASSERT_EQ(in_use.size(), 2u);
  EXPECT_EQ(in_use[0].offset, arena.shape().buffer_bytes - 1);
  EXPECT_EQ(in_use[1].offset, ReceiveSlot(*connection, 1).offset);
}

TEST_F(CommitTest, shouldHaveNothingToCommitWithoutAChange) {
  Prepare();
  ASSERT_TRUE(Until([&] { return Unacknowledged() == 0; }));
  const uint64_t commits = keeper.Describe().shards(0).commits();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(shard->Commit(), absl::OkStatus());
  EXPECT_EQ(keeper.Describe().shards(0).commits(), commits);
}

}  // namespace
}  // namespace baton
