// Streams between a service, whose owners die and change, and a peer without Baton.
#include "worker/stream.h"

#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "lib/arena/atomic_access.h"
#include "lib/base/check.h"
#include "lib/stream/peer_stream.h"
#include "tests/worker/worker_fixture.h"
#include "worker/heap.h"

namespace baton {
namespace {

using stream::PeerStream;
using testing::RawPeer;
using testing::ScriptedService;
using testing::WorkerFixture;
using Kind = Completion::Kind;

constexpr uint32_t kRingBytes = 8192;
constexpr uint16_t kWindow = 8;
constexpr uint32_t kDepth = 16;
constexpr uint32_t kFormat = 1;
constexpr uint64_t kMessagesPerAnswer = 4;

// Messages have a number, and bytes that follow from it.
std::vector<uint8_t> MessageOf(uint64_t number, uint32_t length) {
  std::vector<uint8_t> message(length);
  for (uint32_t i = 0; i < length; ++i) message[i] = static_cast<uint8_t>(number * 31 + i);
  std::memcpy(message.data(), &number, sizeof(number));
  return message;
}
// Short ones, long ones, and some as long as the ring.
uint32_t LengthOf(uint64_t number) {
  if (number % 41 == 7) return kRingBytes;
  return static_cast<uint32_t>(8 + number * 7919 % (number % 5 == 0 ? 4000 : 200));
}

// What the service keeps of a connection.
struct Account {
  stream::StreamState ends;
  uint64_t messages;  // that were read
  uint64_t answers;   // that were sent
};

Account AccountOf(const Connection& connection) {
  Account account = {};
  EXPECT_EQ(connection.state().size(), sizeof(account));
  std::memcpy(&account, connection.state().data(),
              std::min(connection.state().size(), sizeof(account)));
  return account;
}

// An end on plain verbs, which sends `to_send` messages as fast as it has credit.
class StreamPeer {
 public:
  explicit StreamPeer(const verbs::testing::Fabric& fabric)
      : fabric_(fabric), device_(verbs::testing::OpenDevice(fabric).value()) {
    void* mapped =
        mmap(nullptr, 2 * kRingBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    BATON_CHECK(mapped != MAP_FAILED);
    memory_ = static_cast<uint8_t*>(mapped);
    region_ =
        device_->RegisterMemory(memory_, 2 * kRingBytes, verbs::kLocalWrite | verbs::kRemoteWrite)
            .value();
    queue_ = device_->CreateCompletionQueue(4 * kDepth).value();
    queue_pair_ = device_->CreateQueuePair({queue_.get(), queue_.get(), kDepth, kDepth, 1}).value();
    const PeerStream::Memory memory = {memory_, kRingBytes, kRingBytes, region_->lkey(),
                                       region_->rkey()};
    stream_ = std::make_unique<PeerStream>(queue_pair_.get(), memory,
                                           PeerStream::Requests{kWindow, kDepth});
    EXPECT_EQ(stream_->Open(), absl::OkStatus());
  }
  ~StreamPeer() {
    id_.reset();
    listener_.reset();
    queue_pair_.reset();
    queue_.reset();
    region_.reset();
    device_.reset();
    munmap(memory_, 2 * kRingBytes);
  }

  void Connect(uint16_t port) {
    verbs::ConnectionParameters parameters;
    parameters.private_data = stream_->Greeting();
    parameters.rnr_retry_count = 0;  // a service whose send finds no receive fails
    id_ = device_->Connect({fabric_.host, port}, queue_pair_.get(), parameters).value();
  }
  uint16_t Listen() {
    listener_ = device_->Listen({fabric_.host, 0}, 8).value();
    return listener_->address().port;
  }
  void Disconnect() { id_->Disconnect().IgnoreError(); }
  // A bell that belongs to no message.
  void RingWrongly() {
    verbs::SendRequest request;
    request.opcode = verbs::Opcode::kWriteWithImmediate;
    request.immediate = stream::Pack({stream::BellKind::kWrapped, 0, 0});
    request.remote_address = state().sender.remote_address;
    request.rkey = state().sender.rkey;
    size_t posted = 0;
    EXPECT_EQ(queue_pair_->PostSend({&request, 1}, &posted), absl::OkStatus());
  }

  void Turn() {
    device_->Progress();
    verbs::CmEvent event;
    while (device_->NextEvent(&event)) OnEvent(std::exchange(event, {}));
    verbs::Completion completion;
    while (queue_->Poll({&completion, 1}).value() == 1) OnCompletion(completion);
    if (established && !disconnected) SendMore();
  }

  const stream::StreamState& state() const { return stream_->state(); }

  uint64_t to_send = 0;
  uint64_t sent = 0;
  uint64_t answers = 0;
  bool established = false;
  bool rejected = false;
  bool disconnected = false;

 private:
  void OnEvent(verbs::CmEvent event) {
    switch (event.type) {
      case verbs::CmEventType::kConnectRequest: {
        id_ = std::move(event.new_id);
        EXPECT_EQ(stream_->Begin(event.private_data), absl::OkStatus());
        verbs::ConnectionParameters parameters;
        parameters.private_data = stream_->Greeting();
        parameters.rnr_retry_count = 0;
        EXPECT_EQ(id_->Accept(queue_pair_.get(), parameters), absl::OkStatus());
        break;
      }
      case verbs::CmEventType::kEstablished:
        if (!listener_) {
          EXPECT_EQ(stream_->Begin(event.private_data), absl::OkStatus());
        }
        established = true;
        break;
      case verbs::CmEventType::kRejected:
        rejected = true;
        break;
      default:
        disconnected = true;
    }
  }
  void OnCompletion(const verbs::Completion& completion) {
    if (completion.status != verbs::CompletionStatus::kSuccess) {
      EXPECT_EQ(completion.status, verbs::CompletionStatus::kFlushError);
      return;
    }
    const auto event = stream_->OnCompletion(completion);
    ASSERT_TRUE(event.ok()) << event.status();
    if (event->kind != PeerStream::Event::Kind::kMessage) return;
    const std::vector<uint8_t> message(event->message.begin(), event->message.end());
    EXPECT_EQ(message, MessageOf(answers, LengthOf(answers))) << "answer " << answers;
    ++answers;
    EXPECT_EQ(stream_->Release(*event), absl::OkStatus());
  }
  void SendMore() {
    while (sent < to_send) {
      const absl::Status status = stream_->Send(MessageOf(sent, LengthOf(sent)));
      if (absl::IsResourceExhausted(status)) return;
      ASSERT_EQ(status, absl::OkStatus());
      ++sent;
    }
  }

  const verbs::testing::Fabric fabric_;
  std::unique_ptr<verbs::Device> device_;
  uint8_t* memory_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::unique_ptr<verbs::QueuePair> queue_pair_;
  std::unique_ptr<verbs::Listener> listener_;
  std::unique_ptr<verbs::ConnectionId> id_;
  std::unique_ptr<PeerStream> stream_;
};

class StreamTest : public WorkerFixture {
 protected:
  // Where an owner dies in its handler.
  enum Step { kBegin, kRead, kReleased, kAnswered, kStored, kSteps };

  void StartService() {
    Start([](v1::ServiceConfig* config) {
      config->set_send_queue_depth(kDepth);
      config->set_receive_queue_depth(kDepth);
      config->set_connection_state_bytes(256);
      config->set_shard_heap_bytes(1 << 20);
      config->set_max_workers(64);
    });
  }
  Worker* AddOwner() {
    ScriptedService& service = NewService();
    Worker* worker = Add(&service, CommitMode::kAfterEachCompletion);
    service.on_adopt = [](Shard& shard) { return Stream::RevokeLost(shard); };
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
      EXPECT_EQ(shard.Disconnect(*completion.connection), absl::OkStatus());
    };
    services.push_back(&service);
    return worker;
  }
  void Die(const Shard& shard, const Worker& worker) {
    driver_process::Engine& engine = keeper.engine();
    engine.Run([&] {
      engine.succession().WorkerEnded(engine.succession().ownership(shard.index()).owner_slot(),
                                      worker.id(), "crash");
    });
  }
  void KeepStandbys() {
    while (services.size() < dead.size() + 2) AddOwner();
  }

  absl::Status Handle(Shard& shard, const Completion& completion,
                      const std::function<bool(Step)>& ends) {
    Connection& connection = *completion.connection;
    switch (completion.kind) {
      case Kind::kConnectRequest:
        return AcceptStream(shard, connection);
      case Kind::kReceive:
      case Kind::kSend:
        return Work(shard, completion, ends);
      case Kind::kDisconnected: {
        if (connection.state().empty()) return absl::OkStatus();
        BATON_ASSIGN_OR_RETURN(const Stream stream, Stream::Load(connection, connection.state()));
        return Stream::CloseRing(shard, stream.ring());
      }
      default:
        return on_outcome ? on_outcome(shard, completion) : absl::OkStatus();
    }
  }
  absl::Status AcceptStream(Shard& shard, Connection& connection) {
    BATON_ASSIGN_OR_RETURN(const StreamRing ring, Stream::OpenRing(shard, kRingBytes));
    const absl::StatusOr<Stream> stream = Stream::Accept(connection, ring, kWindow);
    if (stream.ok()) return Save(shard, connection, *stream, 0, 0);
    errors.push_back(stream.status());
    BATON_RETURN_IF_ERROR(Stream::CloseRing(shard, ring));
    shard.Abandon();
    return shard.Reject(connection);
  }
  absl::Status Work(Shard& shard, const Completion& completion,
                    const std::function<bool(Step)>& ends) {
    Connection& connection = *completion.connection;
    if (connection.state().empty()) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(Stream stream, Stream::Load(connection, connection.state()));
    Account account = AccountOf(connection);
    if (ends(kBegin)) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const Stream::Event event, stream.OnCompletion(completion));
    if (ends(kRead)) return absl::OkStatus();
    if (event.kind == Stream::Event::Kind::kMessage) {
      const uint8_t* const at = shard.heap().At(event.message);
      const std::vector<uint8_t> message(at, at + event.message.length);
      EXPECT_EQ(message, MessageOf(account.messages, LengthOf(account.messages)))
          << "message " << account.messages;
      ++account.messages;
      BATON_RETURN_IF_ERROR(stream.Release(event));
    }
    if (ends(kReleased)) return absl::OkStatus();
    while ((account.answers + 1) * kMessagesPerAnswer <= account.messages) {
      const absl::Status sent =
          stream.SendCopy(MessageOf(account.answers, LengthOf(account.answers)));
      if (absl::IsResourceExhausted(sent)) break;  // an event with credit comes
      BATON_RETURN_IF_ERROR(sent);
      ++account.answers;
    }
    if (ends(kAnswered)) return absl::OkStatus();
    BATON_RETURN_IF_ERROR(Save(shard, connection, stream, account.messages, account.answers));
    (void)ends(kStored);
    return absl::OkStatus();
  }
  static absl::Status Save(Shard& shard, Connection& connection, const Stream& stream,
                           uint64_t messages, uint64_t answers) {
    Account account = {{}, messages, answers};
    std::memcpy(&account.ends, stream.state().data(), Stream::kStateBytes);
    return shard.SetState(connection, {reinterpret_cast<const uint8_t*>(&account), sizeof(account)},
                          kFormat);
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
  bool HasAnswered(const StreamPeer& peer) {
    return peer.sent == peer.to_send && peer.answers == peer.to_send / kMessagesPerAnswer;
  }
  // All credit is with one of the ends, when nothing is on the way.
  static bool IsConserved(const stream::SenderState& from, const stream::ReceiverState& to) {
    const uint32_t left = from.allowed - from.bells;
    const uint16_t unreturned = static_cast<uint16_t>(to.posted - from.allowed);
    return left + unreturned == to.window && to.owed == 0 && to.tail == from.tail &&
           to.head == to.tail && from.freed <= to.head && from.freed >= to.reported_head;
  }
  void ExpectConserved(StreamPeer& peer) {
    EXPECT_TRUE(UntilWith(peer, [&] {
      Connection* connection = FindConnection();
      if (connection == nullptr) return false;
      const stream::StreamState service = AccountOf(*connection).ends;
      return IsConserved(peer.state().sender, service.receiver) &&
             IsConserved(service.sender, peer.state().receiver);
    })) << "credit was lost, or made";
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

  std::function<bool(Step)> dies;
  std::function<absl::Status(Shard&, const Completion&)> on_outcome;
  std::vector<ScriptedService*> services;
  std::set<const ScriptedService*> dead;
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
    if (step != static_cast<Step>(dead.size() % kSteps) || ++passed < 20) return false;
    if (random() % 4 != 0) return false;
    passed = 0;
    return true;
  };
  while (dead.size() < 6 * kSteps) {
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

TEST_F(StreamTest, shouldConnectToAPeer) {
  StartService();
  AddOwner();
  StreamPeer peer(fabric);
  ASSERT_TRUE(UntilWith(peer, [&] { return !services[0]->shards.empty(); }));
  Shard& shard = *services[0]->shards.at(0);
  const auto opened = Stream::OpenRing(shard, kRingBytes);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const StreamRing ring = *opened;
  on_outcome = [&](Shard& owned, const Completion& completion) -> absl::Status {
    if (completion.kind != Kind::kEstablished) return absl::InternalError("it was not established");
    BATON_ASSIGN_OR_RETURN(const Stream stream,
                           Stream::Connected(*completion.connection, ring, kWindow));
    return Save(owned, *completion.connection, stream, 0, 0);
  };
  const auto connection =
      workers[0]->Connect(shard, fabric.host, peer.Listen(), Stream::GreetingOf(ring), 1);
  ASSERT_TRUE(connection.ok()) << connection.status();
  peer.to_send = 500;
  EXPECT_TRUE(UntilWith(peer, [&] { return HasAnswered(peer); }));
  ExpectConserved(peer);
  EXPECT_TRUE(errors.empty());
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

}  // namespace
}  // namespace baton
