// Services that are coroutines: what they receive, what survives them, and how they end.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/worker/worker_fixture.h"
#include "worker/coroutine.h"
#include "worker/heap.h"
#include "worker/heap_grants.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RawPeer;
using testing::ReceiveSlot;
using testing::SendSlot;
using testing::WorkerFixture;
using Kind = Completion::Kind;

// Adds up the numbers that a peer sends, and answers each with the total, which is the state.
class Adder : public CoroutineService {
 public:
  explicit Adder(const CoroutineOptions& options = {.coroutines = 8}) : CoroutineService(options) {}

  // Called with each message before anything is staged for it, and after all of it is.
  std::function<void(CoConnection&, const std::string&)> before, after;

  int starts = 0;
  int frames_ended = 0;
  std::vector<absl::Status> errors;

 protected:
  CoTask Serve(CoConnection& connection) override {
    ++starts;
    const std::unique_ptr<int, std::function<void(int*)>> local(&frames_ended,
                                                                [](int* ended) { ++*ended; });
    uint64_t total = 0;
    if (!connection.state().empty()) {
      std::memcpy(&total, connection.state().data(), sizeof(total));
    }
    for (;;) {
      const Completion message = co_await connection.Receive();
      const std::string text = TextOf(message);
      if (before) before(connection, text);
      if (text == "bye") co_return absl::OkStatus();
      uint64_t amount = 0;
      if (absl::SimpleAtoi(text, &amount)) total += amount;
      EXPECT_EQ(Save(connection, total), absl::OkStatus());
      EXPECT_EQ(Reply(connection, absl::StrCat(total)), absl::OkStatus());
      EXPECT_EQ(Post(connection.shard(), connection.connection()), absl::OkStatus());
      if (after) after(connection, text);
      if (text == "error") co_return absl::DataLossError("the peer asked for it");
    }
  }

  absl::Status OnConnectRequest(Shard& shard, Connection& connection) override {
    for (int i = 0; i < 8; ++i) {
      const absl::Status posted = Post(shard, connection);
      if (!posted.ok()) return posted;
    }
    return shard.Accept(connection);
  }

  void OnFailure(Connection&, const absl::Status& error) override { errors.push_back(error); }

  static absl::Status Post(Shard& shard, Connection& connection) {
    const Buffer slot = ReceiveSlot(connection, connection.next_receive());
    return shard.Receive(connection, {&slot, 1});
  }
  static absl::Status Save(CoConnection& connection, const uint64_t& total) {
    return connection.shard().SetState(
        connection.connection(), {reinterpret_cast<const uint8_t*>(&total), sizeof(total)}, 1);
  }
  static absl::Status Reply(CoConnection& connection, const std::string& text, uint64_t tag = 0) {
    Connection& to = connection.connection();
    const Buffer slot = SendSlot(to, to.next_send(), static_cast<uint32_t>(text.size()));
    std::copy(text.begin(), text.end(),
              connection.shard().worker().buffers().begin() + slot.offset);
    return connection.shard().Send(to, {.buffers = {&slot, 1}, .tag = tag});
  }
  static std::string TextOf(const Completion& message) {
    const Buffer slot = ReceiveSlot(*message.connection, message.sequence);
    const Worker& worker = message.connection->shard().worker();
    return std::string(reinterpret_cast<const char*>(worker.buffers().data()) + slot.offset,
                       message.byte_len);
  }
};

class CoroutineTest : public WorkerFixture {
 protected:
  // Lives until all workers have ended.
  template <typename Coroutines, typename... Arguments>
  Coroutines& New(const Arguments&... arguments) {
    auto made = std::make_unique<Coroutines>(arguments...);
    Coroutines& service = *made;
    services_.push_back(std::move(made));
    return service;
  }
  Worker* Attach(CoroutineService* service, CommitMode mode = CommitMode::kAfterEachCompletion) {
    auto worker = Worker::Attach(Options(mode), service);
    EXPECT_TRUE(worker.ok()) << worker.status();
    EXPECT_EQ((*worker)->Ready(), absl::OkStatus());
    workers.push_back(*std::move(worker));
    return workers.back().get();
  }
  void Serve(CoroutineService& service) {
    Start();
    one = Attach(&service);
  }
  void Join(RawPeer& peer) {
    for (int i = 0; i < 8; ++i) peer.Receive();
    if (port == 0) port = one->Listen(fabric.host, 0).value();
    peers.push_back(&peer);
    peer.Connect(port);
    ASSERT_TRUE(Until([&] { return peer.established; }));
  }
  void ExpectAnswer(RawPeer& peer, const std::string& text, const std::string& answer) {
    const size_t before = peer.received.size();
    peer.Send(text);
    ASSERT_TRUE(Until([&] { return peer.received.size() > before; }));
    EXPECT_EQ(peer.received.back(), answer);
  }
  void ExpectDisconnected(const RawPeer& peer) {
    EXPECT_TRUE(Until([&] { return peer.disconnected; }));
  }

  Adder first, second;

 private:
  std::vector<std::unique_ptr<CoroutineService>> services_;

 protected:
  Worker* one = nullptr;
  Worker* other = nullptr;
  uint16_t port = 0;
  RawPeer peer;
};

// ---- What survives.

class CoroutineSuccessionTest : public CoroutineTest,
                                public ::testing::WithParamInterface<CommitMode> {
 protected:
  void Prepare() {
    Start();
    one = Attach(&first, GetParam());
    ASSERT_NO_FATAL_FAILURE(Join(peer));
    ASSERT_NO_FATAL_FAILURE(ExpectAnswer(peer, "5", "5"));
    other = Attach(&second, GetParam());
  }
  // The driver is told that the worker is dead. Its library goes on, and nothing of what it does
  // counts any more.
  void Die(const CoConnection& connection, const Worker& worker) {
    driver_process::Engine& engine = keeper.engine();
    engine.Run([&] {
      const uint32_t shard = connection.shard().index();
      engine.succession().WorkerEnded(engine.succession().ownership(shard).owner_slot(),
                                      worker.id(), "crash");
    });
    died = true;
  }

  bool died = false;
};

TEST_P(CoroutineSuccessionTest, shouldStartAgainFromCommittedStateAfterAHandoff) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  EXPECT_EQ(first.running(), 1u);
  ASSERT_EQ(Handoff(*other), absl::OkStatus());
  EXPECT_EQ(first.running(), 0u);
  EXPECT_EQ(first.frames_ended, 1);
  EXPECT_LE(second.starts, 1);  // it starts with the next completion
  ASSERT_NO_FATAL_FAILURE(ExpectAnswer(peer, "7", "12"));
  EXPECT_EQ(second.starts, 1);
  ASSERT_NO_FATAL_FAILURE(ExpectAnswer(peer, "1", "13"));
  EXPECT_EQ(second.starts, 1);
  ASSERT_EQ(Handoff(*one), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(ExpectAnswer(peer, "1", "14"));
  EXPECT_EQ(first.starts, 2);
}

TEST_P(CoroutineSuccessionTest, shouldCountEachMessageOnceOverHandoffs) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  size_t sent = 1;
  for (int round = 0; round < 12; ++round) {
    for (int i = 0; i < 6; ++i) {
      peer.Send("1");
      ++sent;
    }
    ASSERT_EQ(Handoff(round % 2 == 0 ? *other : *one), absl::OkStatus());
    ASSERT_TRUE(Until([&] { return peer.received.size() == sent; }));
    for (int i = 0; i < 6; ++i) peer.Receive();
  }
  for (size_t i = 0; i < sent; ++i) EXPECT_EQ(peer.received[i], absl::StrCat(5 + i));
}

TEST_P(CoroutineSuccessionTest, shouldReceiveAgainWhatADeadOwnerStagedNothingFor) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  first.before = [&](CoConnection& connection, const std::string&) {
    if (!died) Die(connection, *one);
  };
  ASSERT_NO_FATAL_FAILURE(ExpectAnswer(peer, "7", "12"));
  EXPECT_TRUE(died);
  EXPECT_EQ(second.starts, 1);
  ASSERT_NO_FATAL_FAILURE(ExpectAnswer(peer, "1", "13"));
}

TEST_P(CoroutineSuccessionTest, shouldReceiveAgainWhatADeadOwnerDidNotCommit) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  first.after = [&](CoConnection& connection, const std::string&) {
    if (!died) Die(connection, *one);
  };
  ASSERT_NO_FATAL_FAILURE(ExpectAnswer(peer, "7", "12"));
  EXPECT_TRUE(died);
  EXPECT_EQ(second.starts, 1);
  ASSERT_NO_FATAL_FAILURE(ExpectAnswer(peer, "1", "13"));
  EXPECT_TRUE(Until([&] { return first.running() == 0; }));  // it learns that it is fenced
}

INSTANTIATE_TEST_SUITE_P(Modes, CoroutineSuccessionTest,
                         ::testing::Values(CommitMode::kAfterEachBatch,
                                           CommitMode::kAfterEachCompletion));

// ---- How they end.

TEST_F(CoroutineTest, shouldEndWithItsConnection) {
  ASSERT_NO_FATAL_FAILURE(Serve(first));
  ASSERT_NO_FATAL_FAILURE(Join(peer));
  ASSERT_NO_FATAL_FAILURE(ExpectAnswer(peer, "5", "5"));
  peer.Disconnect();
  EXPECT_TRUE(Until([&] { return first.running() == 0; }));
  EXPECT_EQ(first.frames_ended, 1);
  EXPECT_THAT(first.errors, IsEmpty());
}

TEST_F(CoroutineTest, shouldDisconnectWhenItReturns) {
  ASSERT_NO_FATAL_FAILURE(Serve(first));
  ASSERT_NO_FATAL_FAILURE(Join(peer));
  peer.Send("bye");
  peer.Send("5");  // comes after the end, or never
  ExpectDisconnected(peer);
  EXPECT_TRUE(Until([&] { return first.running() == 0; }));
  EXPECT_THAT(peer.received, IsEmpty());
  EXPECT_EQ(first.starts, 1);
  EXPECT_THAT(first.errors, IsEmpty());
}

TEST_F(CoroutineTest, shouldDisconnectWhenItThrowsAndUndoWhatItStaged) {
  ASSERT_NO_FATAL_FAILURE(Serve(first));
  RawPeer good;
  ASSERT_NO_FATAL_FAILURE(Join(peer));
  ASSERT_NO_FATAL_FAILURE(Join(good));
  ASSERT_NO_FATAL_FAILURE(ExpectAnswer(good, "1", "1"));
  first.after = [](CoConnection&, const std::string& text) {
    if (text == "13") throw std::runtime_error("unlucky");
  };
  peer.Send("13");
  ExpectDisconnected(peer);
  EXPECT_THAT(peer.received, IsEmpty());
  ASSERT_EQ(first.errors.size(), 1u);
  EXPECT_EQ(first.errors[0].code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(first.errors[0].message()), HasSubstr("unlucky"));
  EXPECT_TRUE(Until([&] { return first.running() == 1; }));
  ASSERT_NO_FATAL_FAILURE(ExpectAnswer(good, "1", "2"));
}

TEST_F(CoroutineTest, shouldDisconnectWhenItReturnsAnErrorAndUndoWhatItStaged) {
  ASSERT_NO_FATAL_FAILURE(Serve(first));
  ASSERT_NO_FATAL_FAILURE(Join(peer));
  peer.Send("error");
  ExpectDisconnected(peer);
  EXPECT_THAT(peer.received, IsEmpty());
  ASSERT_EQ(first.errors.size(), 1u);
  EXPECT_EQ(first.errors[0].code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Until([&] { return first.running() == 0; }));
}

TEST_F(CoroutineTest, shouldGiveItsPeerNothingThatItHasUndone) {
  Start([](v1::ServiceConfig* config) { config->set_shard_heap_bytes(testing::kHeapBytes); });
  one = Attach(&first);
  uint32_t grant = 0;
  first.after = [&](CoConnection& connection, const std::string&) {
    const auto granted = HeapGrants::Allocate(connection.shard(), 4096, 64, verbs::kRemoteRead);
    ASSERT_TRUE(granted.ok()) << granted.status();
    grant = granted->grant.id;
    EXPECT_NE(keeper.engine().arena().grant(grant).length, 0u);
  };
  ASSERT_NO_FATAL_FAILURE(Join(peer));
  peer.Send("error");
  ExpectDisconnected(peer);
  ASSERT_EQ(first.errors.size(), 1u);
  EXPECT_EQ(keeper.engine().arena().grant(grant).length, 0u);
}

// The service may have granted scratch memory, of which the failed coroutine knows nothing.
TEST_F(CoroutineTest, shouldLeaveToPeersTheScratchMemoryThatIsStillAllocated) {
  Start([](v1::ServiceConfig* config) { config->set_shard_heap_bytes(testing::kHeapBytes); });
  one = Attach(&first);
  Buffer scratch;
  uint32_t grant = 0;
  first.after = [&](CoConnection& connection, const std::string& text) {
    Heap& heap = connection.shard().heap();
    if (text == "error") {
      EXPECT_EQ(heap.Allocate(64).status(), absl::OkStatus());
      return;
    }
    const auto allocated = heap.AllocateScratch(4096);
    ASSERT_TRUE(allocated.ok()) << allocated.status();
    scratch = *allocated;
    const auto granted = one->GrantRemoteAccess(scratch.offset, 4096, verbs::kRemoteRead);
    ASSERT_TRUE(granted.ok()) << granted.status();
    grant = granted->id;
  };
  ASSERT_NO_FATAL_FAILURE(Join(peer));
  ASSERT_NO_FATAL_FAILURE(ExpectAnswer(peer, "1", "1"));
  peer.Send("error");
  ExpectDisconnected(peer);
  ASSERT_EQ(first.errors.size(), 1u);
  const arena::GrantRecord& record = keeper.engine().arena().grant(grant);
  EXPECT_EQ(record.offset, scratch.offset);
  EXPECT_EQ(record.length, 4096u);
}

// One that stages so much that a transaction has no room for more.
class FullTransactionTest : public CoroutineTest {
 protected:
  void Prepare(CommitMode mode) {
    Start();
    one = Attach(&first, mode);
    first.before = [this](CoConnection& connection, const std::string& text) {
      if (text == "1") other_connection = &connection.connection();
      if (text != "bye") return;
      while (connection.shard().Disconnect(*other_connection).ok()) {
      }
      if (throws) throw std::runtime_error("no room");
    };
    ASSERT_NO_FATAL_FAILURE(Join(peer));
    ASSERT_NO_FATAL_FAILURE(Join(other_peer));
    ASSERT_NO_FATAL_FAILURE(ExpectAnswer(other_peer, "1", "1"));
    ASSERT_NO_FATAL_FAILURE(ExpectAnswer(peer, "5", "5"));
  }

  RawPeer other_peer;
  Connection* other_connection = nullptr;
  bool throws = false;
};

TEST_F(FullTransactionTest, shouldDisconnectWhenItThrows) {
  throws = true;
  ASSERT_NO_FATAL_FAILURE(Prepare(CommitMode::kAfterEachBatch));
  peer.Send("bye");
  ExpectDisconnected(other_peer);
  ExpectDisconnected(peer);
  EXPECT_EQ(first.errors.size(), 1u);
}

TEST_F(FullTransactionTest, shouldDisconnectWhenItReturns) {
  ASSERT_NO_FATAL_FAILURE(Prepare(CommitMode::kAfterEachCompletion));
  peer.Send("bye");
  ExpectDisconnected(peer);
  ASSERT_EQ(first.errors.size(), 1u);
  EXPECT_EQ(first.errors[0].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(other_peer.disconnected);
  ASSERT_NO_FATAL_FAILURE(ExpectAnswer(other_peer, "1", "2"));
}

TEST_F(CoroutineTest, shouldServeAsManyConnectionsAsItHasFrames) {
  Adder& single = New<Adder>(CoroutineOptions{.coroutines = 1});
  ASSERT_NO_FATAL_FAILURE(Serve(single));
  ASSERT_NO_FATAL_FAILURE(Join(peer));
  ASSERT_NO_FATAL_FAILURE(ExpectAnswer(peer, "5", "5"));
  RawPeer refused, third;
  ASSERT_NO_FATAL_FAILURE(Join(refused));
  ExpectDisconnected(refused);
  ASSERT_EQ(single.errors.size(), 1u);
  EXPECT_EQ(single.errors[0].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(single.errors[0].message()), HasSubstr("raise"));
  ASSERT_NO_FATAL_FAILURE(ExpectAnswer(peer, "7", "12"));
  peer.Disconnect();
  ASSERT_TRUE(Until([&] { return single.running() == 0; }));
  ASSERT_NO_FATAL_FAILURE(Join(third));
  ASSERT_NO_FATAL_FAILURE(ExpectAnswer(third, "3", "3"));
}

TEST_F(CoroutineTest, shouldSayHowLargeAFrameItNeeds) {
  Adder& small = New<Adder>(CoroutineOptions{.coroutines = 8, .frame_bytes = 16});
  ASSERT_NO_FATAL_FAILURE(Serve(small));
  ASSERT_NO_FATAL_FAILURE(Join(peer));
  ExpectDisconnected(peer);
  ASSERT_EQ(small.errors.size(), 1u);
  EXPECT_EQ(small.errors[0].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(small.errors[0].message()), HasSubstr("bytes, and 16 are there"));
  EXPECT_EQ(small.starts, 0);
  EXPECT_TRUE(Until([&] { return small.running() == 0; }));
}

// ---- What they wait for.

// Answers one message, and waits for the answer to have left and for the end.
class Once final : public Adder {
 public:
  uint64_t awaited_tag = 1;
  std::vector<std::string> steps;

 private:
  CoTask Serve(CoConnection& connection) override {
    const Completion message = co_await connection.Receive();
    steps.push_back(TextOf(message));
    EXPECT_EQ(Reply(connection, "answer", 1), absl::OkStatus());
    const Completion sent = co_await connection.Sent(awaited_tag);
    steps.push_back(absl::StrCat("sent ", sent.tag));
    const Completion end = co_await connection.Disconnected();
    steps.push_back(end.kind == Kind::kDisconnected ? "end" : "something else");
    co_return absl::OkStatus();
  }
};

TEST_F(CoroutineTest, shouldWaitForOneThingAfterTheOther) {
  Once& once = New<Once>();
  ASSERT_NO_FATAL_FAILURE(Serve(once));
  ASSERT_NO_FATAL_FAILURE(Join(peer));
  peer.Send("question");
  ASSERT_TRUE(Until([&] { return once.steps.size() == 2; }));
  peer.Disconnect();
  ASSERT_TRUE(Until([&] { return once.steps.size() == 3; }));
  EXPECT_THAT(once.steps, ElementsAre("question", "sent 1", "end"));
  EXPECT_TRUE(Until([&] { return once.running() == 0; }));
  EXPECT_THAT(once.errors, IsEmpty());
}

TEST_F(CoroutineTest, shouldFailRatherThanLoseAMessage) {
  Once& once = New<Once>();
  once.awaited_tag = 99;  // of no send
  ASSERT_NO_FATAL_FAILURE(Serve(once));
  ASSERT_NO_FATAL_FAILURE(Join(peer));
  peer.Send("question");
  ASSERT_TRUE(Until([&] { return peer.received.size() == 1; }));
  peer.Send("nobody waits for it");
  ExpectDisconnected(peer);
  ASSERT_EQ(once.errors.size(), 1u);
  EXPECT_EQ(once.errors[0].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(once.steps, ElementsAre("question"));
}

// Has shared receives, and posts one for each that has completed.
class Sharer final : public Adder {
 public:
  Shard* owned = nullptr;

 private:
  absl::Status OnAdopt(Shard& shard) override {
    owned = &shard;
    while (shard.shared_receive_room() > 0) PostShared(shard);
    return Adder::OnAdopt(shard);
  }
  CoTask Serve(CoConnection& connection) override {
    for (;;) {
      const Completion message = co_await connection.Receive();
      PostShared(connection.shard());
      EXPECT_EQ(Reply(connection, "answer"), absl::OkStatus());
      if (message.byte_len == 1) co_return absl::DataLossError("too short");
    }
  }
  absl::Status OnConnectRequest(Shard& shard, Connection& connection) override {
    return shard.Accept(connection);
  }
  absl::Status OnUnawaited(Shard& shard, const Completion& completion) override {
    if (completion.kind == Kind::kReceive) PostShared(shard);
    return Adder::OnUnawaited(shard, completion);
  }
  void OnFailure(Connection& connection, const absl::Status& error) override {
    PostShared(connection.shard());
    Adder::OnFailure(connection, error);
  }
  // Behind the slots of the connections.
  static void PostShared(Shard& shard) {
    const Buffer buffer = {(512 << 10) + shard.next_shared_receive() * uint64_t{1024}, 1024};
    EXPECT_EQ(shard.ReceiveShared({&buffer, 1}), absl::OkStatus());
  }
};

TEST_F(CoroutineTest, shouldNotUseUpSharedReceivesWhenItFails) {
  constexpr uint32_t kDepth = 8;
  Sharer& sharer = New<Sharer>();
  Start([](v1::ServiceConfig* service) {
    service->set_shared_receive_queue_depth(kDepth);
    service->set_buffer_bytes(1 << 20);
  });
  one = Attach(&sharer);
  RawPeer good;
  ASSERT_NO_FATAL_FAILURE(Join(peer));
  ASSERT_NO_FATAL_FAILURE(Join(good));
  ASSERT_TRUE(Until([&] { return sharer.running() == 2; }));
  const uint64_t before = CompletionsInLog();
  for (const char* text : {"1", "two", "three", "four"}) peer.Send(text);
  ASSERT_TRUE(UntilWithoutWorkers([&] { return CompletionsInLog() == before + 4; }));
  ExpectDisconnected(peer);
  ASSERT_TRUE(Until([&] { return sharer.running() == 1; }));
  EXPECT_EQ(sharer.errors.size(), 1u);
  EXPECT_EQ(sharer.owned->shared_receives_outstanding(), kDepth);
  ASSERT_NO_FATAL_FAILURE(ExpectAnswer(good, "hello", "answer"));
}

// Takes whatever comes.
class Recorder final : public Adder {
 public:
  std::vector<Kind> kinds;

 private:
  CoTask Serve(CoConnection& connection) override {
    for (;;) {
      const Completion next = co_await connection.Next();
      kinds.push_back(next.kind);
    }
  }
};

TEST_F(CoroutineTest, shouldTakeWhateverComes) {
  Recorder& recorder = New<Recorder>();
  ASSERT_NO_FATAL_FAILURE(Serve(recorder));
  ASSERT_NO_FATAL_FAILURE(Join(peer));
  ASSERT_TRUE(Until([&] { return recorder.kinds.size() == 1; }));
  peer.Send("a message");
  ASSERT_TRUE(Until([&] { return recorder.kinds.size() == 2; }));
  EXPECT_THAT(recorder.kinds, ElementsAre(Kind::kEstablished, Kind::kReceive));
  peer.Disconnect();
  EXPECT_TRUE(Until([&] { return recorder.running() == 0; }));
  EXPECT_EQ(recorder.kinds.back(), Kind::kDisconnected);
}

}  // namespace
}  // namespace baton
