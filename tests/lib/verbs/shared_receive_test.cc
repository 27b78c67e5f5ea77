// Receives that several queue pairs share: who gets them, and what ends with a queue pair.
#include <algorithm>
#include <array>

#include "tests/lib/verbs/connected_test.h"

namespace baton::verbs::testing {
namespace {

constexpr size_t kPairs = 2;

class SharedReceives : public ConnectedTest {
 protected:
  struct Pair {
    std::unique_ptr<QueuePair> client, server;
    std::unique_ptr<ConnectionId> client_id, server_id;
  };

  // Two connections; the server's ends of both take their receives from `shared`.
  void SetUp() override {
    for (Pair& pair : pairs) {
      client.queue_pair = client.MakeQueuePair();
      server.queue_pair = MakeShared();
      Join();
      pair = {std::move(client.queue_pair), std::move(server.queue_pair), std::move(client.id),
              std::move(server.id)};
    }
  }
  void TearDown() override {
    for (Pair& pair : pairs) {
      pair.client_id.reset();
      pair.server_id.reset();
      pair.client.reset();
      pair.server.reset();
    }
  }

  std::unique_ptr<QueuePair> MakeShared() {
    QueuePairOptions options;
    options.send_queue = options.receive_queue = server.queue.get();
    options.max_send_requests = 64;
    options.max_scatter_gather = 4;
    options.shared_receive_queue = shared.get();
    return server.device->CreateQueuePair(options).value();
  }
  absl::Status Post(uint64_t wr_id, const std::vector<ScatterGather>& sges) {
    ReceiveRequest request;
    request.wr_id = wr_id;
    request.sges = sges;
    size_t posted = 0;
    return shared->PostReceive(absl::MakeConstSpan(&request, 1), &posted);
  }
  void Send(size_t pair, uint64_t wr_id, size_t length = 5) {
    ASSERT_TRUE(
        PostSend(*pairs[pair].client, Request(Opcode::kSend, wr_id), {ours.Sge(0, length)}).ok());
  }
  void ExpectReceived(size_t pair, uint64_t wr_id) {
    const Completion completion = AwaitCompletion(server, client);
    Expect(completion, wr_id, CompletionStatus::kSuccess);
    EXPECT_EQ(completion.qp_number, pairs[pair].server->number());
  }
  void Turns() {
    for (int i = 0; i < 1000; ++i) {
      client.Turn();
      server.Turn();
    }
  }
  // Takes what the server's device has told of this kind so far.
  std::vector<DeviceEvent> Told(DeviceEventType type) {
    std::vector<DeviceEvent> told;
    std::erase_if(server.device_events, [&](const DeviceEvent& event) {
      if (event.type == type) told.push_back(event);
      return event.type == type;
    });
    return told;
  }
  DeviceEvent AwaitTold(DeviceEventType type) {
    EXPECT_TRUE(Pump(client, server, [&] {
      return std::any_of(server.device_events.begin(), server.device_events.end(),
                         [type](const DeviceEvent& event) { return event.type == type; });
    }));
    const std::vector<DeviceEvent> told = Told(type);
    EXPECT_EQ(told.size(), 1u);
    return told.empty() ? DeviceEvent{} : told.front();
  }
  void AwaitLastReceive(size_t pair) {
    EXPECT_EQ(AwaitTold(DeviceEventType::kLastWorkRequestReached).qp_number,
              pairs[pair].server->number());
    EXPECT_TRUE(pairs[pair].server->holds_no_receive());
    server.Turn();
  }

  std::unique_ptr<SharedReceiveQueue> shared =
      server.device->CreateSharedReceiveQueue(64, 4).value();
  std::array<Pair, kPairs> pairs;
};

TEST_P(SharedReceives, shouldBeTakenByWhoeverHasAMessage) {
  const DeviceLimits limits = server.device->limits();
  EXPECT_GT(limits.max_shared_receive_queues, 0u);
  EXPECT_GE(limits.max_shared_receive_requests, 64u);
  EXPECT_GE(limits.max_shared_receive_scatter_gather, 4u);
  ours.Fill(0, "hello");
  ASSERT_TRUE(Post(7, {theirs.Sge(0, 2), theirs.Sge(10, 100)}).ok());
  ASSERT_TRUE(Post(8, {theirs.Sge(200, 100)}).ok());
  ASSERT_TRUE(Post(9, {theirs.Sge(300, 100)}).ok());
  Send(1, 1);
  ExpectReceived(1, 7);
  EXPECT_EQ(theirs.Text(0, 2) + theirs.Text(10, 3), "hello");
  ExpectClient(1, CompletionStatus::kSuccess);  // there is no order between queue pairs
  Send(0, 2);
  ExpectReceived(0, 8);
  ExpectClient(2, CompletionStatus::kSuccess);
  Send(1, 3);
  ExpectReceived(1, 9);
  ExpectClient(3, CompletionStatus::kSuccess);
  EXPECT_EQ(theirs.Text(300, 5), "hello");
}

TEST_P(SharedReceives, shouldBeTakenByWriteWithImmediate) {
  ASSERT_TRUE(Post(7, {}).ok());
  SendRequest request =
      RemoteRequest(Opcode::kWriteWithImmediate, 1, theirs.address(0), theirs.region->rkey());
  request.immediate = 17;
  ASSERT_TRUE(PostSend(*pairs[0].client, request, {ours.Sge(0, 20'000)}).ok());
  const Completion received = AwaitCompletion(server, client);
  Expect(received, 7, CompletionStatus::kSuccess);
  EXPECT_EQ(received.opcode, CompletionOpcode::kReceiveWithImmediate);
  EXPECT_EQ(received.immediate, 17u);
  EXPECT_EQ(received.qp_number, pairs[0].server->number());
}

TEST_P(SharedReceives, shouldBeWaitedForByEveryQueuePair) {
  Send(0, 1);
  Send(1, 2);
  Turns();
  EXPECT_TRUE(server.completions.empty());
  ASSERT_TRUE(Post(7, {theirs.Sge(0, 100)}).ok());
  ASSERT_TRUE(Post(8, {theirs.Sge(100, 100)}).ok());
  Completion received[2] = {AwaitCompletion(server, client), AwaitCompletion(server, client)};
  if (received[0].wr_id == 8) std::swap(received[0], received[1]);
  Expect(received[0], 7, CompletionStatus::kSuccess);
  Expect(received[1], 8, CompletionStatus::kSuccess);
  EXPECT_NE(received[0].qp_number, received[1].qp_number);
}

TEST_P(SharedReceives, shouldKeepManyMessagesOfBothWhole) {
  constexpr uint64_t kCount = 400;
  constexpr size_t kSize = 20'000;
  for (uint64_t i = 0; i < 32; ++i) {
    ASSERT_TRUE(Post(i, {theirs.Sge(i * kSize, kSize)}).ok());
  }
  uint64_t posted[kPairs] = {}, sent[kPairs] = {}, received[kPairs] = {};
  const auto turn = [&] {
    for (size_t p = 0; p < kPairs; ++p) {
      for (; posted[p] < kCount && posted[p] < sent[p] + 16; ++posted[p]) {
        const size_t offset = (p * 16 + posted[p] % 16) * kSize;
        ours.Word(offset) = ours.Word(offset + kSize - 8) = posted[p] * kPairs + p;
        ASSERT_TRUE(
            PostSend(*pairs[p].client, Request(Opcode::kSend, p), {ours.Sge(offset, kSize)}).ok());
      }
    }
    for (; !client.completions.empty(); client.completions.pop_front()) {
      ASSERT_EQ(client.completions.front().status, CompletionStatus::kSuccess);
      ++sent[client.completions.front().wr_id];
    }
    for (; !server.completions.empty(); server.completions.pop_front()) {
      const Completion& completion = server.completions.front();
      ASSERT_EQ(completion.status, CompletionStatus::kSuccess);
      const size_t p = completion.qp_number == pairs[0].server->number() ? 0 : 1;
      const size_t offset = completion.wr_id * kSize;
      ASSERT_EQ(theirs.Word(offset), received[p] * kPairs + p);
      ASSERT_EQ(theirs.Word(offset + kSize - 8), received[p]++ * kPairs + p);
      ASSERT_TRUE(Post(completion.wr_id, {theirs.Sge(offset, kSize)}).ok());
    }
  };
  EXPECT_TRUE(Pump(client, server, [&] {
    turn();
    return HasFatalFailure() || std::min(received[0], received[1]) == kCount;
  }));
}

TEST_P(SharedReceives, shouldStayForTheOthersWhenAQueuePairFails) {
  ASSERT_TRUE(Post(7, {theirs.Sge(0, 100)}).ok());
  ASSERT_TRUE(Post(8, {theirs.Sge(0, 100)}).ok());
  EXPECT_FALSE(pairs[0].server->holds_no_receive());
  ASSERT_TRUE(pairs[0].server->SetError().ok());
  AwaitLastReceive(0);
  EXPECT_TRUE(server.completions.empty());
  Send(1, 1);
  ExpectReceived(1, 7);
  pairs[0].server_id.reset();
  pairs[0].server.reset();
  Send(1, 2);
  ExpectReceived(1, 8);
  EXPECT_FALSE(pairs[1].server->holds_no_receive());
}

TEST_P(SharedReceives, shouldFailOneQueuePairOfWhichAMessageIsTooLong) {
  ASSERT_TRUE(Post(7, {theirs.Sge(0, 4)}).ok());
  ASSERT_TRUE(Post(8, {theirs.Sge(0, 4)}).ok());
  Send(0, 1);
  const Completion failed = AwaitCompletion(server, client);
  EXPECT_EQ(failed.wr_id, 7u);
  EXPECT_NE(failed.status, CompletionStatus::kSuccess);
  EXPECT_EQ(failed.qp_number, pairs[0].server->number());
  AwaitLastReceive(0);
  EXPECT_TRUE(server.completions.empty());
  Send(1, 2, 4);
  ExpectReceived(1, 8);
}

// The receive that a message has begun to fill completes, or was never taken.
TEST_P(SharedReceives, shouldNotBeLostWithAMessageThatIsCutInTheMiddle) {
  constexpr size_t kSize = 3 << 20;
  ASSERT_TRUE(Post(7, {theirs.Sge(0, kSize)}).ok());
  ASSERT_TRUE(Post(8, {theirs.Sge(kSize, kSize)}).ok());
  Send(0, 1, kSize);
  // Some of it arrives: its last byte has not.
  ours.data()[0] = 1;
  theirs.data()[0] = 0;
  ASSERT_TRUE(Pump(client, server, [&] {
    return *static_cast<volatile uint8_t*>(theirs.data()) == 1 || !server.completions.empty();
  }));
  pairs[0].client_id.reset();
  pairs[0].client.reset();
  ASSERT_TRUE(pairs[0].server->SetError().ok());
  AwaitLastReceive(0);
  std::vector<uint64_t> taken;
  for (const Completion& completion : server.completions) {
    EXPECT_EQ(completion.qp_number, pairs[0].server->number());
    taken.push_back(completion.wr_id);
  }
  server.completions.clear();
  ASSERT_LE(taken.size(), 1u);
  pairs[0].server_id.reset();
  pairs[0].server.reset();
  for (uint64_t wr_id : {7, 8}) {
    if (std::find(taken.begin(), taken.end(), wr_id) != taken.end()) continue;
    Send(1, 2);
    ExpectReceived(1, wr_id);
  }
}

TEST_P(SharedReceives, shouldBePostedToTheirQueueOnly) {
  EXPECT_EQ(PostReceive(*pairs[0].server, 7, {theirs.Sge(0, 8)}).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Post(8, {theirs.Sge(0, 8)}).ok());
  Send(0, 1);
  ExpectReceived(0, 8);
}

// A device whose queues only its library knows cannot say.
TEST_P(SharedReceives, shouldSayWhichAreQueued) {
  if (GetParam().name == "rdma") {
    EXPECT_EQ(shared->IsQueued(1).status().code(), absl::StatusCode::kUnimplemented);
    return;
  }
  EXPECT_FALSE(shared->IsQueued(0).value());
  for (uint64_t round = 0; round < 40; ++round) {
    const uint64_t first = 100 * (round + 1);
    for (uint64_t i = 0; i < 3; ++i) {
      EXPECT_FALSE(shared->IsQueued(first + i).value());
      ASSERT_TRUE(Post(first + i, {theirs.Sge(0, 8)}).ok());
    }
    for (uint64_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(shared->IsQueued(first + i).value());
      Send((round + i) % kPairs, 1);
      ExpectReceived((round + i) % kPairs, first + i);
      EXPECT_FALSE(shared->IsQueued(first + i).value());
    }
  }
}

// A device may make a queue longer than it was asked for (ibv_create_srq(3)), never shorter.
TEST_P(SharedReceives, shouldBeRefusedWhenTheQueueIsFull) {
  const std::vector<ReceiveRequest> receives(1000, ReceiveRequest{});
  size_t posted = 0;
  EXPECT_EQ(shared->PostReceive(receives, &posted).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GE(posted, 64u);
  EXPECT_LT(posted, 1000u);
  const std::vector<ScatterGather> five(5, theirs.Sge(0, 8));
  EXPECT_EQ(Post(1, five).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(SharedReceives, shouldBeMadeWithinTheLimits) {
  const DeviceLimits limits = server.device->limits();
  for (const auto& [entries, sges] : {std::pair{0u, 1u},
                                      {1u, 0u},
                                      {limits.max_shared_receive_requests + 1, 1u},
                                      {1u, limits.max_shared_receive_scatter_gather + 1}}) {
    EXPECT_EQ(server.device->CreateSharedReceiveQueue(entries, sges).status().code(),
              absl::StatusCode::kInvalidArgument)
        << entries << ", " << sges;
  }
}

TEST_P(SharedReceives, shouldTellThatTheyAreFewOnceEachTimeItWasAsked) {
  for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(Post(i, {theirs.Sge(0, 8)}).ok());
  ASSERT_TRUE(shared->ArmLimit(4).ok());
  Send(0, 1);  // leaves 4
  ExpectReceived(0, 0);
  server.Turn();
  EXPECT_TRUE(Told(DeviceEventType::kSharedReceiveQueueLow).empty());
  Send(0, 2);  // leaves 3
  ExpectReceived(0, 1);
  EXPECT_EQ(AwaitTold(DeviceEventType::kSharedReceiveQueueLow).shared_receive_queue, shared.get());
  Send(1, 3);
  ExpectReceived(1, 2);
  Turns();
  EXPECT_TRUE(Told(DeviceEventType::kSharedReceiveQueueLow).empty());
  ASSERT_TRUE(shared->ArmLimit(4).ok());
  Send(1, 4);
  ExpectReceived(1, 3);
  AwaitTold(DeviceEventType::kSharedReceiveQueueLow);
}

INSTANTIATE_TEST_SUITE_P(Devices, SharedReceives, ::testing::ValuesIn(AllDevices()), DeviceName);

}  // namespace
}  // namespace baton::verbs::testing
