// Streams between a service, whose owners die and change, and a peer without Baton.
#include "worker/stream.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "lib/arena/atomic_access.h"
#include "lib/base/status.h"
#include "lib/driver/device_objects.h"
#include "tests/lib/stream/stream_peer.h"
#include "tests/worker/counted_stream.h"
#include "tests/worker/worker_fixture.h"
#include "worker/heap.h"
#include "worker/heap_grants.h"

namespace baton {
namespace {

using testing::AccountOf;
using testing::CountedStream;
using testing::kDepth;
using testing::kHeapBytes;
using testing::kMessagesPerAnswer;
using testing::kRingBytes;
using testing::kWindow;
using testing::LengthOf;
using testing::RawPeer;
using testing::ScriptedService;
using testing::StreamPeer;
using testing::WorkerFixture;
using Kind = Completion::Kind;

// For a peer that does not stream.
std::string AnyGreeting() {
  return stream::Encode(
      {stream::kGreetingMagic, stream::kStreamVersion, kWindow, kRingBytes, 1, 4096});
}

class StreamTest : public WorkerFixture {
 protected:
  using Step = CountedStream::Step;

  void StartService(uint32_t send_depth = kDepth, uint32_t receive_depth = kDepth) {
    Start([=](v1::ServiceConfig* config) {
      config->set_send_queue_depth(send_depth);
      config->set_receive_queue_depth(receive_depth);
      config->set_connection_state_bytes(256);
      config->set_shard_heap_bytes(kHeapBytes);
      config->set_max_workers(64);
    });
  }
  Worker* AddOwner() {
    ScriptedService& service = NewService();
    Worker* worker = Add(&service, CommitMode::kAfterEachCompletion);
    service.on_adopt = [](Shard& shard) { return CountedStream::Adopt(shard); };
    service.on_completion = [this, worker, &service](Shard& shard, const Completion& completion) {
      if (dead.contains(&service)) return;
      const absl::Status status = Handle(shard, completion, [&](Step step) {
        if (!dies || !dies(step)) return false;
        dead.insert(&service);
        Die(shard, *worker);
        return true;
      });
      if (status.ok() || dead.contains(&service)) return;
      errors.push_back(status);
      shard.Abandon();
      Connection& connection = *completion.connection;
      const bool asks = completion.kind == Kind::kConnectRequest;
      EXPECT_EQ(asks ? shard.Reject(connection) : shard.Disconnect(connection), absl::OkStatus());
    };
    services.push_back(&service);
    return worker;
  }
  void Die(const Shard& shard, Worker& worker) {
    driver_process::Engine& engine = keeper.engine();
    engine.Run([&] {
      engine.succession().WorkerEnded(engine.succession().ownership(shard.index()).owner_slot(),
                                      worker.id(), "crash");
    });
    ended.push_back(&worker);
  }
  // Dead owners leave: nobody's bank and slot are theirs for ever.
  void KeepStandbys() {
    for (Worker* worker : ended) Remove(worker);
    ended.clear();
    while (services.size() < dead.size() + 2) AddOwner();
  }

  absl::Status Handle(Shard& shard, const Completion& completion, const CountedStream::Ends& ends) {
    const bool established = completion.kind == Kind::kEstablished;
    if (established && on_established) return on_established(shard, *completion.connection);
    handled = completion.connection->index();
    return CountedStream::Handle(shard, completion, ends);
  }

  // With a peer that is turned more often than the workers.
  [[nodiscard]] bool UntilWith(StreamPeer& peer, const std::function<bool()>& done) {
    return driver::testing::Pump(
        [&] {
          for (int i = 0; i < 4; ++i) peer.Turn();
          Turn();
        },
        done);
  }
  void ConnectStream(StreamPeer& peer) {
    peer.Connect(workers[0]->Listen(fabric.host, 0).value());
    ASSERT_TRUE(UntilWith(peer, [&] { return peer.established; }));
  }
  absl::Status HandoffWith(StreamPeer& peer, const Worker& to) {
    auto result = std::async(std::launch::async, [&] { return keeper.Handoff(to.id()); });
    EXPECT_TRUE(UntilWith(peer, [&] {
      return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    }));
    return result.get();
  }
  // The connection of the owner's only shard; null if nobody has it now.
  Connection* FindConnection() {
    for (ScriptedService* service : services) {
      if (dead.contains(service) || service->shards.empty()) continue;
      const auto connections = service->shards.begin()->second->connections();
      if (connections.size() == 1) return connections[0];
    }
    return nullptr;
  }
  // Stages requests that do nothing until the transaction has no room for another.
  static void Fill(Shard& shard, Connection& connection, const stream::SenderState& peer) {
    while (shard.Receive(connection, {}).ok()) {
    }
    SendWork nothing;
    nothing.opcode = verbs::Opcode::kWrite;
    nothing.remote_address = peer.remote_address;
    nothing.rkey = peer.rkey;
    while (shard.Send(connection, nothing).ok()) {
    }
    EXPECT_GT(connection.send_room(), 0u);
  }
  bool HasAnswered(const StreamPeer& peer) {
    return peer.sent == peer.to_send && peer.answers == peer.to_send / kMessagesPerAnswer;
  }
  void ExpectConserved(StreamPeer& peer) {
    EXPECT_TRUE(UntilWith(peer, [&] {
      Connection* connection = FindConnection();
      return connection != nullptr &&
             testing::IsConserved(peer.state(), AccountOf(*connection).ends);
    })) << "credit was lost, or made";
    EXPECT_FALSE(peer.was_not_ready);
  }
  int Grants() {
    int grants = 0;
    for (uint32_t i = 0; i < arena::kGrants; ++i) {
      grants += arena::LoadAcquire(keeper.engine().arena().grant(i).length) != 0 ? 1 : 0;
    }
    return grants;
  }
  uint64_t KeptBytes() {
    for (ScriptedService* service : services) {
      if (dead.contains(service) || service->shards.empty()) continue;
      const auto statistics = service->shards.begin()->second->heap().statistics();
      EXPECT_TRUE(statistics.ok()) << statistics.status();
      return statistics.ok() ? statistics->kept : 0;
    }
    return 0;
  }

  uint32_t handled = 0;  // the connection of the last completion
  std::function<bool(Step)> dies;
  std::function<absl::Status(Shard&, Connection&)> on_established;
  std::vector<ScriptedService*> services;
  std::set<const ScriptedService*> dead;
  std::vector<Worker*> ended;
  std::vector<absl::Status> errors;
};

TEST_F(StreamTest, shouldCarryMessagesOfAnyLengthBothWays) {
  StartService();
  AddOwner();
  StreamPeer peer(fabric);
  ASSERT_NO_FATAL_FAILURE(ConnectStream(peer));
  peer.to_send = 2000;
  EXPECT_TRUE(UntilWith(peer, [&] { return HasAnswered(peer); }));
  ExpectConserved(peer);
  EXPECT_EQ(Grants(), 1);
  EXPECT_GE(KeptBytes(), kRingBytes);
  peer.Disconnect();
  EXPECT_TRUE(UntilWith(peer, [&] { return Grants() == 0 && KeptBytes() == 0; }));
  EXPECT_TRUE(errors.empty());
}

TEST_F(StreamTest, shouldGoOnAfterHandoffs) {
  StartService();
  Worker* const one = AddOwner();
  StreamPeer peer(fabric);
  ASSERT_NO_FATAL_FAILURE(ConnectStream(peer));
  Worker* const other = AddOwner();
  for (int round = 0; round < 20; ++round) {
    peer.to_send += 100;
    ASSERT_EQ(HandoffWith(peer, round % 2 == 0 ? *other : *one), absl::OkStatus());
  }
  EXPECT_TRUE(UntilWith(peer, [&] { return HasAnswered(peer); }));
  ExpectConserved(peer);
  EXPECT_TRUE(errors.empty());
}

// At each step of the handler, with messages on the way in both directions.
TEST_F(StreamTest, shouldLoseAndTearNothingWhenOwnersDie) {
  StartService();
  KeepStandbys();
  StreamPeer peer(fabric);
  ASSERT_NO_FATAL_FAILURE(ConnectStream(peer));
  std::mt19937 random(1);
  int passed = 0;
  dies = [&](Step step) {
    // Each step in its turn, and no completion is poison.
    if (step != static_cast<Step>(dead.size() % CountedStream::kSteps) || ++passed < 20)
      return false;
    if (random() % 4 != 0) return false;
    passed = 0;
    return true;
  };
  while (dead.size() < 6 * CountedStream::kSteps) {
    peer.to_send += 20;
    ASSERT_TRUE(
        UntilWith(peer, [&] { return services.size() < dead.size() + 2 || HasAnswered(peer); }));
    ASSERT_NO_FATAL_FAILURE(KeepStandbys());
  }
  dies = nullptr;
  EXPECT_TRUE(UntilWith(peer, [&] { return HasAnswered(peer); }));
  ExpectConserved(peer);
  EXPECT_FALSE(peer.disconnected);
  EXPECT_TRUE(errors.empty());
}

// The shard's other stream goes on meanwhile, and loses no credit.
TEST_F(StreamTest, shouldFreeTheRingOfAPoisonedStream) {
  StartService();
  for (int i = 0; i < 4; ++i) AddOwner();
  StreamPeer good(fabric), bad(fabric);
  ASSERT_NO_FATAL_FAILURE(ConnectStream(good));
  ASSERT_TRUE(UntilWith(good, [&] { return FindConnection() != nullptr; }));
  const uint32_t sound = FindConnection()->index();
  ASSERT_NO_FATAL_FAILURE(ConnectStream(bad));
  // Each successor is given the same completion.
  dies = [&](Step step) {
    return handled != sound && step == CountedStream::kReleased && dead.size() < 3;
  };
  bad.to_send = 20;
  good.to_send = 400;  // before, meanwhile and afterwards
  EXPECT_TRUE(UntilWith(bad, [&] {
    good.Turn();
    return bad.disconnected && Grants() == 1 && FindConnection() != nullptr;
  }));
  EXPECT_EQ(dead.size(), 3u);
  good.to_send += 400;
  EXPECT_TRUE(UntilWith(good, [&] { return HasAnswered(good) && KeptBytes() < 2 * kRingBytes; }));
  EXPECT_GE(KeptBytes(), kRingBytes);
  ExpectConserved(good);
  EXPECT_FALSE(good.disconnected);
  good.Disconnect();
  EXPECT_TRUE(UntilWith(
      good, [&] { return Grants() == 0 && FindConnection() == nullptr && KeptBytes() == 0; }));
  EXPECT_TRUE(errors.empty());
}

TEST_F(StreamTest, shouldGetMoreMessagesThanTheWindowBeforeItReleasesOne) {
  StartService();
  AddOwner();
  uint64_t kept = 0;
  services[0]->on_completion = [&](Shard& shard, const Completion& completion) {
    Connection& connection = *completion.connection;
    if (completion.kind != Kind::kReceive && completion.kind != Kind::kSend) {
      EXPECT_EQ(Handle(shard, completion, nullptr), absl::OkStatus());
      return;
    }
    auto stream = Stream::Load(connection, connection.state());
    ASSERT_TRUE(stream.ok()) << stream.status();
    const auto event = stream->OnCompletion(completion);
    ASSERT_TRUE(event.ok()) << event.status();
    kept += event->kind == Stream::Event::Kind::kMessage ? 1 : 0;
    EXPECT_EQ(CountedStream::Save(shard, connection, *stream, 0, 0), absl::OkStatus());
  };
  StreamPeer peer(fabric);
  ASSERT_NO_FATAL_FAILURE(ConnectStream(peer));
  peer.sent = testing::kKeptBegin;
  peer.to_send = testing::kKeptEnd;
  EXPECT_TRUE(UntilWith(peer, [&] { return kept == testing::kKeptEnd - testing::kKeptBegin; }));
}

// A transaction has at most 4096 requests.
TEST_F(StreamTest, shouldReportLaterWhenATransactionIsFull) {
  StartService(kDepth, arena::kMaxQueueDepth);
  AddOwner();
  uint64_t released = 0;
  services[0]->on_completion = [&](Shard& shard, const Completion& completion) {
    Connection& connection = *completion.connection;
    if (completion.kind != Kind::kReceive && completion.kind != Kind::kSend) {
      EXPECT_EQ(Handle(shard, completion, nullptr), absl::OkStatus());
      return;
    }
    auto stream = Stream::Load(connection, connection.state());
    ASSERT_TRUE(stream.ok()) << stream.status();
    if (released == 0) Fill(shard, connection, AccountOf(connection).ends.sender);
    const auto event = stream->OnCompletion(completion);
    ASSERT_TRUE(event.ok()) << event.status();
    if (event->kind == Stream::Event::Kind::kMessage) {
      EXPECT_EQ(stream->Release(*event), absl::OkStatus());
      ++released;
    }
    EXPECT_EQ(CountedStream::Save(shard, connection, *stream, 0, 0), absl::OkStatus());
  };
  StreamPeer peer(fabric);
  ASSERT_NO_FATAL_FAILURE(ConnectStream(peer));
  peer.sent = 10;  // of more than a quarter of the ring: it is reported at once
  ASSERT_GT(LengthOf(peer.sent), kRingBytes / 4);
  peer.to_send = 11;
  EXPECT_TRUE(UntilWith(peer, [&] {
    const stream::SenderState& sender = peer.state().sender;
    return released == 1 && sender.freed == sender.tail;
  }));
}

// The peer has a bell left, which is for a report, and nothing to report. So no completion comes to
// which the credit of the others could be returned later.
TEST_F(StreamTest, shouldReturnTheCreditOfABatchThatBeginsInAFullTransaction) {
  StartService(kDepth, arena::kMaxQueueDepth);
  ScriptedService& service = NewService();
  Worker* const worker = Add(&service, CommitMode::kAfterEachBatch);
  Connection* filled = nullptr;
  std::optional<Stream> stream;
  uint64_t received = 0;
  service.on_completion = [&](Shard& shard, const Completion& completion) {
    Connection& connection = *completion.connection;
    const bool asks = completion.kind == Kind::kConnectRequest;
    if (asks && !stream::DecodeGreeting(connection.private_data())) {
      filled = &connection;
      EXPECT_EQ(shard.Accept(connection), absl::OkStatus());
      return;
    }
    if (asks) {
      EXPECT_EQ(Handle(shard, completion, nullptr), absl::OkStatus());
      return;
    }
    if (completion.kind != Kind::kReceive && completion.kind != Kind::kSend) return;
    if (!stream.has_value()) {
      const auto loaded = Stream::Load(connection, connection.state());
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      stream = *loaded;
      while (shard.Receive(*filled, {}).ok()) {
      }
    }
    const auto event = stream->OnCompletion(completion);
    ASSERT_TRUE(event.ok()) << event.status();
    if (event->kind == Stream::Event::Kind::kMessage) {
      ++received;
      EXPECT_EQ(stream->Release(*event), absl::OkStatus());
    }
    EXPECT_EQ(CountedStream::Save(shard, connection, *stream, 0, 0), absl::OkStatus());
  };
  RawPeer plain;
  Establish(plain, *worker);
  StreamPeer peer(fabric);
  ASSERT_NO_FATAL_FAILURE(ConnectStream(peer));
  ASSERT_TRUE(UntilWith(peer, [&] { return service.Count(Kind::kEstablished) == 2; }));
  // They come in one batch.
  const uint64_t before = CompletionsInLog();
  peer.to_send = kWindow - 1;
  ASSERT_TRUE(UntilWithoutWorkers([&] {
    peer.Turn();
    return CompletionsInLog() >= before + peer.to_send;
  }));
  EXPECT_EQ(received, 0u);
  peer.to_send = 4 * kWindow;
  EXPECT_TRUE(UntilWith(peer, [&] { return received == peer.to_send; }));
}

TEST_F(StreamTest, shouldConnectToAPeer) {
  StartService();
  AddOwner();
  StreamPeer peer(fabric);
  ASSERT_TRUE(UntilWith(peer, [&] { return !services[0]->shards.empty(); }));
  Shard& shard = *services[0]->shards.at(0);
  const auto opened = Stream::OpenRing(shard, kRingBytes);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const StreamRing ring = *opened;
  on_established = [&](Shard& owned, Connection& made) -> absl::Status {
    BATON_ASSIGN_OR_RETURN(const Stream stream, Stream::Connected(made, ring, kWindow));
    return CountedStream::Save(owned, made, stream, 0, 0);
  };
  const auto connection =
      workers[0]->Connect(shard, fabric.host, peer.Listen(), Stream::GreetingOf(ring), 1);
  ASSERT_TRUE(connection.ok()) << connection.status();
  peer.to_send = 500;
  EXPECT_TRUE(UntilWith(peer, [&] { return HasAnswered(peer); }));
  ExpectConserved(peer);
  EXPECT_TRUE(errors.empty());
}

// A peer could have a message of other peers' bytes answered otherwise.
TEST_F(StreamTest, shouldClearARing) {
  constexpr uint32_t kMost = 768 << 10, kRing = 512 << 10;
  static_assert(kMost + kRing > kHeapBytes);  // they overlap
  StartService();
  AddOwner();
  ASSERT_TRUE(Until([&] { return !services[0]->shards.empty(); }));
  Shard& shard = *services[0]->shards.at(0);
  const auto before = shard.heap().AllocateScratch(kMost);
  ASSERT_TRUE(before.ok()) << before.status();
  std::fill_n(shard.heap().At(*before), kMost, uint8_t{'x'});
  ASSERT_EQ(shard.heap().Free(*before), absl::OkStatus());
  const auto ring = Stream::OpenRing(shard, kRing);
  ASSERT_TRUE(ring.ok()) << ring.status();
  const uint8_t* const begin = shard.heap().At(ring->memory);
  EXPECT_EQ(std::count(begin, begin + kRing, uint8_t{0}), kRing);
}

TEST_F(StreamTest, shouldRefuseAPeerWithoutAGreeting) {
  StartService();
  AddOwner();
  RawPeer peer;
  Connect(peer, *workers[0], "hello");
  EXPECT_TRUE(Until([&] { return peer.rejected; }));
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Grants(), 0);
  EXPECT_EQ(KeptBytes(), 0u);
}

TEST_F(StreamTest, shouldRefuseAServiceWhoseSendQueueHasNoRoomForReports) {
  StartService(/*send_depth=*/1);
  AddOwner();
  RawPeer peer;
  Connect(peer, *workers[0], AnyGreeting());
  EXPECT_TRUE(Until([&] { return peer.rejected; }));
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Grants(), 0);
}

// A peer could take all grants of a service otherwise.
TEST_F(StreamTest, shouldCloseTheRingOfAPeerThatLeavesBeforeItIsEstablished) {
  StartService();
  AddOwner();
  ASSERT_TRUE(Until([&] { return !services[0]->shards.empty(); }));
  const uint64_t before = CompletionsInLog();
  RawPeer peer;
  Connect(peer, *workers[0], AnyGreeting());
  ASSERT_TRUE(UntilWithoutWorkers([&] { return CompletionsInLog() == before + 1; }));
  peer.Vanish();
  EXPECT_TRUE(Until([&] {
    return services[0]->Count(Kind::kConnectFailed) == 1 && Grants() == 0 && KeptBytes() == 0;
  }));
  EXPECT_TRUE(errors.empty());
}

TEST_F(StreamTest, shouldEndTheStreamOfAWrongPeerOnly) {
  StartService();
  AddOwner();
  StreamPeer bad(fabric), good(fabric);
  ASSERT_NO_FATAL_FAILURE(ConnectStream(bad));
  ASSERT_NO_FATAL_FAILURE(ConnectStream(good));
  bad.RingWrongly();
  EXPECT_TRUE(UntilWith(bad, [&] { return bad.disconnected && Grants() == 1; }));
  good.to_send = 100;
  EXPECT_TRUE(UntilWith(good, [&] { return HasAnswered(good); }));
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StreamTest, shouldRevokeWhatADeadOwnerHasGrantedAndNotCommitted) {
  StartService();
  AddOwner();
  ASSERT_TRUE(Until([&] { return !services[0]->shards.empty(); }));
  Shard& shard = *services[0]->shards.at(0);
  ASSERT_TRUE(Stream::OpenRing(shard, kRingBytes).ok());
  EXPECT_EQ(Grants(), 1);
  dead.insert(services[0]);
  Die(shard, *workers[0]);
  AddOwner();
  EXPECT_TRUE(Until([&] { return !services[1]->shards.empty(); }));
  EXPECT_EQ(Grants(), 0);
  EXPECT_EQ(KeptBytes(), 0u);
}

TEST_F(StreamTest, shouldNotWaitForTheRevocationThatADeadOwnerHasBegun) {
  StartService();
  AddOwner();
  ASSERT_TRUE(Until([&] { return !services[0]->shards.empty(); }));
  Shard& shard = *services[0]->shards.at(0);
  const auto ring = Stream::OpenRing(shard, kRingBytes);
  ASSERT_TRUE(ring.ok()) << ring.status();
  ASSERT_EQ(shard.Commit(), absl::OkStatus());
  driver_process::Engine& engine = keeper.engine();
  engine.Run([&] {
    EXPECT_TRUE(
        driver::BeginRevoke(engine.arena(), engine.driver().objects().get(), ring->grant).ok());
  });
  EXPECT_EQ(Stream::CloseRing(shard, *ring), absl::OkStatus());
  EXPECT_EQ(HeapGrants::RevokeLost(shard), absl::OkStatus());
  ASSERT_EQ(shard.Commit(), absl::OkStatus());
  EXPECT_EQ(KeptBytes(), 0u);
  engine.Run(
      [&] { driver::FinishRevoke(engine.arena(), engine.driver().objects().get(), ring->grant); });
  EXPECT_EQ(Grants(), 0);
}

}  // namespace
}  // namespace baton
