// Receives that the connections of a shard share, as an application sees them.
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/worker_fixture.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using testing::RawPeer;
using testing::ScriptedService;
using testing::SendSlot;
using testing::WorkerFixture;
using Kind = Completion::Kind;

constexpr uint32_t kSharedDepth = 8;
// Behind what the connections' slots take.
constexpr uint64_t kSharedBuffers = 512 << 10;

class SharedReceiveTest : public WorkerFixture {
 protected:
  void SetUp() override {
    Start([](v1::ServiceConfig* service) {
      service->set_shared_receive_queue_depth(kSharedDepth);
      service->set_buffer_bytes(1 << 20);
    });
  }

  static Buffer BufferOf(uint64_t slot) { return {kSharedBuffers + slot * 1024, 1024}; }
  static void Fill(Shard& shard) {
    while (shard.shared_receive_room() > 0) {
      const uint32_t slot = shard.next_shared_receive();
      const Buffer buffer = BufferOf(slot);
      ASSERT_EQ(shard.ReceiveShared({&buffer, 1}, 1000 + slot), absl::OkStatus());
    }
  }
  static std::string TextOf(Shard& shard, const Completion& completion) {
    const auto* text = shard.worker().buffers().data() + BufferOf(completion.sequence).offset;
    return std::string(reinterpret_cast<const char*>(text), completion.byte_len);
  }
  // Accepts, answers each message with itself, and keeps all receives posted.
  ScriptedService& NewEcho() {
    ScriptedService& service = NewService();
    service.on_adopt = [](Shard& shard) {
      Fill(shard);
      return absl::OkStatus();
    };
    service.on_completion = [](Shard& shard, const Completion& completion) {
      Connection& connection = *completion.connection;
      if (completion.kind == Kind::kConnectRequest) {
        EXPECT_EQ(shard.Accept(connection), absl::OkStatus());
      }
      if (completion.kind != Kind::kReceive) return;
      EXPECT_EQ(completion.tag, 1000 + completion.sequence);
      if (completion.status == verbs::CompletionStatus::kSuccess) {
        const std::string text = TextOf(shard, completion);
        const Buffer out =
            SendSlot(connection, connection.next_send(), static_cast<uint32_t>(text.size()));
        std::copy(text.begin(), text.end(), shard.worker().buffers().data() + out.offset);
        SendWork work;
        work.buffers = {&out, 1};
        EXPECT_EQ(shard.Send(connection, work), absl::OkStatus());
      }
      Fill(shard);
    };
    return service;
  }
};

TEST_F(SharedReceiveTest, shouldServeManyConnectionsFromOneWindow) {
  constexpr size_t kPeers = 3, kMessages = 100;
  Worker* worker = Add(&NewEcho());
  EXPECT_EQ(worker->capacity().shared_receive_queue_depth, kSharedDepth);
  EXPECT_EQ(worker->capacity().receive_queue_depth, 0u);
  std::deque<RawPeer> clients(kPeers);
  for (RawPeer& peer : clients) Establish(peer, *worker);
  std::vector<size_t> sent(kPeers), expected(kPeers);
  ASSERT_TRUE(Until([&] {
    bool done = true;
    for (size_t i = 0; i < kPeers; ++i) {
      for (; expected[i] < clients[i].received.size() + 8; ++expected[i]) clients[i].Receive();
      // Together they want more than the window holds.
      while (sent[i] < kMessages && sent[i] < clients[i].received.size() + 6) {
        clients[i].Send(absl::StrCat("message ", sent[i]++, " of ", i));
      }
      done = done && clients[i].received.size() == kMessages;
    }
    return done;
  }));
  for (size_t i = 0; i < kPeers; ++i) {
    for (size_t j = 0; j < kMessages; ++j) {
      ASSERT_EQ(clients[i].received[j], absl::StrCat("message ", j, " of ", i));
    }
  }
}

TEST_F(SharedReceiveTest, shouldRefuseReceivesOfAConnection) {
  ScriptedService& service = NewService();
  absl::Status refused;
  service.on_completion = [&](Shard& shard, const Completion& completion) {
    if (completion.kind != Kind::kConnectRequest) return;
    EXPECT_EQ(completion.connection->receive_room(), 0u);
    const Buffer buffer = BufferOf(0);
    refused = shard.Receive(*completion.connection, {&buffer, 1});
    EXPECT_EQ(shard.Accept(*completion.connection), absl::OkStatus());
  };
  Worker* worker = Add(&service);
  RawPeer peer;
  Establish(peer, *worker);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("ReceiveShared"));
}

TEST_F(SharedReceiveTest, shouldHaveRoomForTheDepthAndGiveBackWhatIsAbandoned) {
  ScriptedService& service = NewService();
  service.on_adopt = [&](Shard& shard) {
    EXPECT_EQ(shard.shared_receive_room(), kSharedDepth);
    EXPECT_EQ(shard.shared_receives_outstanding(), 0u);
    const uint32_t first = shard.next_shared_receive();
    Fill(shard);
    EXPECT_EQ(shard.shared_receive_room(), 0u);
    const Buffer buffer = BufferOf(0);
    EXPECT_EQ(shard.ReceiveShared({&buffer, 1}).code(), absl::StatusCode::kResourceExhausted);
    shard.Abandon();
    EXPECT_EQ(shard.shared_receive_room(), kSharedDepth);
    EXPECT_EQ(shard.next_shared_receive(), first);
    const Buffer outside = {uint64_t{1} << 40, 1};
    EXPECT_EQ(shard.ReceiveShared({&outside, 1}).code(), absl::StatusCode::kInvalidArgument);
    return absl::OkStatus();
  };
  Add(&service);
  ASSERT_TRUE(Until([&] { return !service.calls.empty(); }));
}

TEST_F(SharedReceiveTest, shouldTellASuccessorWhatIsPosted) {
  ScriptedService& first = NewEcho();
  Worker* worker = Add(&first);
  RawPeer peer;
  Establish(peer, *worker);
  peer.Receive();
  peer.Send("before");
  ASSERT_TRUE(Until([&] { return peer.received.size() == 1; }));
  ScriptedService& second = NewEcho();
  uint32_t outstanding = 0, room = 0;
  std::set<uint64_t> tags;
  second.on_adopt = [&](Shard& shard) {
    outstanding = shard.shared_receives_outstanding();
    room = shard.shared_receive_room();
    shard.ForEachSharedBufferInUse([&](const Buffer& buffer, uint64_t tag) {
      EXPECT_EQ(buffer.offset, BufferOf(tag - 1000).offset);
      tags.insert(tag);
    });
    return absl::OkStatus();
  };
  Worker* heir = Add(&second);
  ASSERT_EQ(Handoff(*heir), absl::OkStatus());
  EXPECT_EQ(outstanding, kSharedDepth);
  EXPECT_EQ(room, 0u);
  EXPECT_EQ(tags.size(), kSharedDepth);
  for (int i = 0; i < 30; ++i) {
    peer.Receive();
    peer.Send(absl::StrCat("after ", i));
    ASSERT_TRUE(Until([&] { return peer.received.size() == static_cast<size_t>(i) + 2; }));
    EXPECT_EQ(peer.received.back(), absl::StrCat("after ", i));
  }
}

TEST_F(SharedReceiveTest, shouldGoOnWithoutTheConnectionsThatEnd) {
  ScriptedService& service = NewEcho();
  Worker* worker = Add(&service);
  RawPeer stays;
  Establish(stays, *worker);
  for (int round = 1; round <= 10; ++round) {
    {
      RawPeer goes;
      Establish(goes, *worker);
      for (uint32_t i = 0; i < kSharedDepth; ++i) goes.Send("the last words");
      for (int i = 0; i < round; ++i) Turn();
      peers.pop_back();
    }
    stays.Receive();
    stays.Send(absl::StrCat("round ", round));
    ASSERT_TRUE(Until([&] {
      return stays.received.size() == static_cast<size_t>(round) &&
             service.Count(Kind::kDisconnected) == round;
    }));
  }
  ASSERT_TRUE(Until([&] {
    return service.shards.begin()->second->shared_receives_outstanding() == kSharedDepth;
  }));
}

TEST_F(SharedReceiveTest, shouldShowTheWindowAsTheShards) {
  Worker* worker = Add(&NewEcho());
  RawPeer peer;
  Establish(peer, *worker);
  peer.Receive();
  peer.Send("one");
  ASSERT_TRUE(Until([&] { return !peer.received.empty(); }));
  baton::internal::ManagementRequest request;
  request.mutable_list_connections()->set_shard(-1);
  request.mutable_list_connections()->set_limit(3);
  v1::Connection connection;
  ASSERT_TRUE(Until([&] {
    const auto listed = keeper.Ask(request);
    EXPECT_TRUE(listed.ok()) << listed.status();
    connection = listed->connections().connections(0);
    return connection.receive_window() == kSharedDepth;
  }));
  EXPECT_TRUE(connection.receive_window_shared());
  EXPECT_GT(connection.receive_window_us(), 0);
  EXPECT_EQ(connection.receives_completed(), 1u);
  EXPECT_EQ(connection.receives_posted(), 1u);
}

class OwnReceiveTest : public WorkerFixture {};

TEST_F(OwnReceiveTest, shouldRefuseSharedReceivesWhereThereAreNone) {
  Start();
  ScriptedService& service = NewService();
  absl::Status refused;
  service.on_adopt = [&](Shard& shard) {
    EXPECT_EQ(shard.shared_receive_room(), 0u);
    const Buffer buffer = {0, 64};
    refused = shard.ReceiveShared({&buffer, 1});
    return absl::OkStatus();
  };
  Worker* worker = Add(&service);
  ASSERT_TRUE(Until([&] { return !service.calls.empty(); }));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(worker->capacity().shared_receive_queue_depth, 0u);
}

}  // namespace
}  // namespace baton
