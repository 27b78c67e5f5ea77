// What succeeds: every opcode, sizes, order.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/lib/verbs/connected_test.h"

namespace baton::verbs::testing {
namespace {

class Messages : public ConnectedTest {
 protected:
  void SetUp() override { Join(); }

  SendRequest Remote(Opcode opcode, uint64_t wr_id, size_t offset) {
    return RemoteRequest(opcode, wr_id, theirs.address(offset), theirs.region->rkey());
  }
};

TEST_P(Messages, shouldDeliverSendIntoPostedReceive) {
  ours.Fill(0, "hello");
  ASSERT_TRUE(PostReceive(*server.queue_pair, 7, {theirs.Sge(0, 100)}).ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 3), {ours.Sge(0, 5)}).ok());
  const Completion received = AwaitCompletion(server, client);
  Expect(received, 7, CompletionStatus::kSuccess);
  EXPECT_EQ(received.opcode, CompletionOpcode::kReceive);
  EXPECT_EQ(received.byte_len, 5u);
  EXPECT_EQ(received.qp_number, server.queue_pair->number());
  EXPECT_FALSE(received.has_immediate);
  EXPECT_EQ(theirs.Text(0, 5), "hello");
  const Completion sent = AwaitCompletion(client, server);
  Expect(sent, 3, CompletionStatus::kSuccess);
  EXPECT_EQ(sent.opcode, CompletionOpcode::kSend);
}

TEST_P(Messages, shouldCarryImmediateWithSend) {
  ASSERT_TRUE(PostReceive(*server.queue_pair, 7, {}).ok());
  SendRequest request = Request(Opcode::kSendWithImmediate, 3);
  request.immediate = 0xdeadbeef;
  ASSERT_TRUE(PostSend(*client.queue_pair, request, {}).ok());
  const Completion received = AwaitCompletion(server, client);
  Expect(received, 7, CompletionStatus::kSuccess);
  EXPECT_TRUE(received.has_immediate);
  EXPECT_EQ(received.immediate, 0xdeadbeef);
  EXPECT_EQ(received.byte_len, 0u);
}

TEST_P(Messages, shouldGatherAndScatterOverManyEntries) {
  ours.Fill(0, "abcdefghij");
  ASSERT_TRUE(
      PostReceive(*server.queue_pair, 7,
                  {theirs.Sge(0, 4), theirs.Sge(100, 0), theirs.Sge(200, 3), theirs.Sge(300, 50)})
          .ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 3),
                       {ours.Sge(5, 5), ours.Sge(0, 1), ours.Sge(1, 4)})
                  .ok());
  ExpectServer(7, CompletionStatus::kSuccess);
  EXPECT_EQ(theirs.Text(0, 4) + theirs.Text(200, 3) + theirs.Text(300, 3), "fghijabcde");
}

TEST_P(Messages, shouldWriteRemoteMemoryWithoutConsumingReceive) {
  ours.Fill(0, "written");
  ASSERT_TRUE(PostReceive(*server.queue_pair, 7, {}).ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Remote(Opcode::kWrite, 3, 64), {ours.Sge(0, 7)}).ok());
  const Completion sent = AwaitCompletion(client, server);
  Expect(sent, 3, CompletionStatus::kSuccess);
  EXPECT_EQ(sent.opcode, CompletionOpcode::kWrite);
  EXPECT_EQ(theirs.Text(64, 7), "written");
  EXPECT_TRUE(server.completions.empty());
}

TEST_P(Messages, shouldReportWhatWriteWithImmediateWrote) {
  ASSERT_TRUE(PostReceive(*server.queue_pair, 7, {}).ok());
  SendRequest request = Remote(Opcode::kWriteWithImmediate, 3, 0);
  request.immediate = 17;
  ASSERT_TRUE(PostSend(*client.queue_pair, request, {ours.Sge(0, 1000)}).ok());
  const Completion received = AwaitCompletion(server, client);
  Expect(received, 7, CompletionStatus::kSuccess);
  EXPECT_EQ(received.opcode, CompletionOpcode::kReceiveWithImmediate);
  EXPECT_EQ(received.byte_len, 1000u);
  EXPECT_TRUE(received.has_immediate);
  EXPECT_EQ(received.immediate, 17u);
}

TEST_P(Messages, shouldReadRemoteMemory) {
  theirs.Fill(64, "to be read");
  ASSERT_TRUE(PostSend(*client.queue_pair, Remote(Opcode::kRead, 3, 64), {ours.Sge(0, 10)}).ok());
  const Completion read = AwaitCompletion(client, server);
  Expect(read, 3, CompletionStatus::kSuccess);
  EXPECT_EQ(read.opcode, CompletionOpcode::kRead);
  EXPECT_EQ(read.byte_len, 10u);
  EXPECT_EQ(ours.Text(0, 10), "to be read");
}

TEST_P(Messages, shouldSwapOnlyWhatCompares) {
  theirs.Word(8) = 5;
  SendRequest request = Remote(Opcode::kCompareAndSwap, 1, 8);
  request.compare_add = 5;
  request.swap = 9;
  ASSERT_TRUE(PostSend(*client.queue_pair, request, {ours.Sge(0, 8)}).ok());
  ExpectClient(1, CompletionStatus::kSuccess);
  EXPECT_EQ(ours.Word(0), 5u);
  EXPECT_EQ(theirs.Word(8), 9u);
  request.wr_id = 2;
  ASSERT_TRUE(PostSend(*client.queue_pair, request, {ours.Sge(0, 8)}).ok());
  ExpectClient(2, CompletionStatus::kSuccess);
  EXPECT_EQ(ours.Word(0), 9u);
  EXPECT_EQ(theirs.Word(8), 9u);
}

TEST_P(Messages, shouldFetchAndAdd) {
  theirs.Word(8) = 40;
  SendRequest request = Remote(Opcode::kFetchAndAdd, 1, 8);
  request.compare_add = 2;
  ASSERT_TRUE(PostSend(*client.queue_pair, request, {ours.Sge(0, 8)}).ok());
  const Completion completion = AwaitCompletion(client, server);
  Expect(completion, 1, CompletionStatus::kSuccess);
  EXPECT_EQ(completion.opcode, CompletionOpcode::kFetchAndAdd);
  EXPECT_EQ(completion.byte_len, 8u);
  EXPECT_EQ(ours.Word(0), 40u);
  EXPECT_EQ(theirs.Word(8), 42u);
}

TEST_P(Messages, shouldCompleteZeroLengthOneSidedRequestsWithoutKey) {
  ASSERT_TRUE(PostSend(*client.queue_pair, RemoteRequest(Opcode::kWrite, 1, 0, 0), {}).ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, RemoteRequest(Opcode::kRead, 2, 0, 0), {}).ok());
  ExpectClient(1, CompletionStatus::kSuccess);
  ExpectClient(2, CompletionStatus::kSuccess);
}

TEST_P(Messages, shouldMoveMegabytesUnharmedWithEachOpcode) {
  constexpr size_t kSize = 3'000'001;
  for (size_t i = 0; i < kSize; ++i) ours.data()[i] = static_cast<uint8_t>(i * 7 + (i >> 8));
  const auto same = [&](const uint8_t* a) { return std::memcmp(a, ours.data(), kSize) == 0; };
  ASSERT_TRUE(PostReceive(*server.queue_pair, 1,
                          {theirs.Sge(0, 1'000'000), theirs.Sge(1'000'000, 3'000'000)})
                  .ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 2), {ours.Sge(0, kSize)}).ok());
  ExpectServer(1, CompletionStatus::kSuccess);
  ExpectClient(2, CompletionStatus::kSuccess);
  EXPECT_TRUE(same(theirs.data()));
  std::memset(theirs.data(), 0, kSize);
  ASSERT_TRUE(
      PostSend(*client.queue_pair, Remote(Opcode::kWrite, 3, 4), {ours.Sge(0, kSize)}).ok());
  ExpectClient(3, CompletionStatus::kSuccess);
  EXPECT_TRUE(same(theirs.data() + 4));
  ASSERT_TRUE(
      PostSend(*client.queue_pair, Remote(Opcode::kRead, 4, 4), {ours.Sge(4'000'000, kSize)}).ok());
  ExpectClient(4, CompletionStatus::kSuccess);
  EXPECT_TRUE(same(ours.data() + 4'000'000));
}

TEST_P(Messages, shouldCompleteMixedRequestsInOrder) {
  constexpr uint64_t kCount = 60;
  uint64_t posted = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    if (i % 3 == 0) {
      ASSERT_TRUE(PostReceive(*server.queue_pair, i, {theirs.Sge(4096, 64)}).ok());
    }
  }
  for (; posted < kCount; ++posted) {
    const Opcode opcode = posted % 3 == 0   ? Opcode::kSend
                          : posted % 3 == 1 ? Opcode::kRead
                                            : Opcode::kWrite;
    ASSERT_TRUE(
        PostSend(*client.queue_pair, Remote(opcode, posted, 0), {ours.Sge(posted * 64, 64)}).ok());
  }
  for (uint64_t i = 0; i < kCount; ++i) ExpectClient(i, CompletionStatus::kSuccess);
  for (uint64_t i = 0; i < kCount; i += 3) ExpectServer(i, CompletionStatus::kSuccess);
}

TEST_P(Messages, shouldKeepBothDirectionsGoingUnderLoad) {
  constexpr uint64_t kCount = 2000;
  constexpr size_t kSize = 20'000;
  uint64_t sent[2] = {}, received[2] = {};
  Side* sides[2] = {&client, &server};
  Buffer* buffers[2] = {&ours, &theirs};
  for (int s = 0; s < 2; ++s) {
    for (uint64_t i = 0; i < 32; ++i) {
      ASSERT_TRUE(
          PostReceive(*sides[s]->queue_pair, ~i, {buffers[s]->Sge(4'000'000 + i * kSize, kSize)})
              .ok());
    }
  }
  uint64_t posted[2] = {};
  const auto turn = [&](int s) {
    for (; posted[s] < kCount && posted[s] < sent[s] + 32; ++posted[s]) {
      buffers[s]->Word(posted[s] % 32 * kSize) = posted[s];
      ASSERT_TRUE(PostSend(*sides[s]->queue_pair, Request(Opcode::kSend, posted[s]),
                           {buffers[s]->Sge(posted[s] % 32 * kSize, kSize)})
                      .ok());
    }
    for (; !sides[s]->completions.empty(); sides[s]->completions.pop_front()) {
      const Completion& completion = sides[s]->completions.front();
      ASSERT_EQ(completion.status, CompletionStatus::kSuccess);
      if (completion.opcode == CompletionOpcode::kSend) {
        ASSERT_EQ(completion.wr_id, sent[s]++);
        continue;
      }
      const size_t offset = 4'000'000 + ~completion.wr_id * kSize;
      ASSERT_EQ(buffers[s]->Word(offset), received[s]++);
      ASSERT_TRUE(
          PostReceive(*sides[s]->queue_pair, completion.wr_id, {buffers[s]->Sge(offset, kSize)})
              .ok());
    }
  };
  EXPECT_TRUE(Pump(client, server, [&] {
    turn(0);
    turn(1);
    return HasFatalFailure() ||
           (std::min(sent[0], sent[1]) == kCount && std::min(received[0], received[1]) == kCount);
  }));
}

TEST_P(Messages, shouldHoldFencedRequestUntilReadsAreDone) {
  theirs.Fill(0, "old");
  ours.Fill(100, "new");
  ASSERT_TRUE(PostSend(*client.queue_pair, Remote(Opcode::kRead, 1, 0), {ours.Sge(0, 3)}).ok());
  SendRequest fenced = Remote(Opcode::kWrite, 2, 0);
  fenced.fence = true;
  ASSERT_TRUE(PostSend(*client.queue_pair, fenced, {ours.Sge(100, 3)}).ok());
  ExpectClient(1, CompletionStatus::kSuccess);
  ExpectClient(2, CompletionStatus::kSuccess);
  EXPECT_EQ(ours.Text(0, 3), "old");
  EXPECT_EQ(theirs.Text(0, 3), "new");
}

TEST_P(Messages, shouldCompleteMoreReadsThanInitiatorDepth) {
  for (uint64_t i = 0; i < 64; ++i) {
    ASSERT_TRUE(
        PostSend(*client.queue_pair, Remote(Opcode::kRead, i, 0), {ours.Sge(i * 8, 8)}).ok());
  }
  for (uint64_t i = 0; i < 64; ++i) ExpectClient(i, CompletionStatus::kSuccess);
}

// More READs than the peer answers at once wait for each other.
// Joined with the depths that a test wants.
class Depths : public ConnectedTest {};

TEST_P(Depths, shouldReadFromAPeerThatAnswersOneAtATime) {
  ConnectOptions options;
  options.client.responder_resources = options.server.responder_resources = 1;
  Join(options);
  const auto read = [](Side& from, Side& other, const Buffer& into, const Buffer& of) {
    for (uint64_t i = 0; i < 8; ++i) {
      of.Word(i * 8) = 100 + i;
      SendRequest request = RemoteRequest(Opcode::kRead, i, of.address(i * 8), of.region->rkey());
      ASSERT_TRUE(PostSend(*from.queue_pair, request, {into.Sge(4096 + i * 8, 8)}).ok());
    }
    for (uint64_t i = 0; i < 8; ++i) {
      Expect(AwaitCompletion(from, other), i, CompletionStatus::kSuccess);
      EXPECT_EQ(into.Word(4096 + i * 8), 100 + i);
    }
  };
  read(client, server, ours, theirs);
  read(server, client, theirs, ours);
}

// What is posted behind a READ, fenced, and without a receive at the peer is sent (again) when the
// buffers have long changed: the one device waits for the READ, the other for the receive.
class Inline : public ConnectedTest {
 protected:
  static constexpr uint32_t kBytes = 96;

  void SetUp() override {
    client.queue_pair = client.MakeQueuePair(64, 64, 4, kBytes);
    Join();
  }
  static constexpr uint64_t kReadId = 99;
  void PostRead() {
    const SendRequest read =
        RemoteRequest(Opcode::kRead, kReadId, theirs.address(4096), theirs.region->rkey());
    ASSERT_TRUE(PostSend(*client.queue_pair, read, {ours.Sge(4096, 8)}).ok());
  }
  static SendRequest FencedSend(uint64_t wr_id) {
    SendRequest request = Request(Opcode::kSend, wr_id);
    request.fence = true;
    return request;
  }
  static SendRequest InlineRequest(SendRequest request) {
    request.inline_data = true;
    return request;
  }
  SendRequest Write(Opcode opcode, uint64_t wr_id, size_t offset) {
    return InlineRequest(
        RemoteRequest(opcode, wr_id, theirs.address(offset), theirs.region->rkey()));
  }
};

TEST_P(Inline, shouldBeGrantedWhatWasAskedForOrMore) {
  EXPECT_GE(client.queue_pair->max_inline_data(), kBytes);
}

TEST_P(Inline, shouldSendWhatTheBufferHeldWhenItWasPosted) {
  QueuePair& queue_pair = *client.queue_pair;
  ours.Fill(0, "first, ");
  ours.Fill(100, "then");
  PostRead();
  ASSERT_TRUE(
      PostSend(queue_pair, InlineRequest(FencedSend(0)), {ours.Sge(0, 7), ours.Sge(100, 4)}).ok());
  for (uint64_t i = 1; i <= 20; ++i) {
    const std::string text = std::to_string(1000 + i);
    ours.Fill(0, text);
    ASSERT_TRUE(
        PostSend(queue_pair, Write(Opcode::kWrite, i, 1024 + 4 * i), {ours.Sge(0, 4)}).ok());
  }
  ours.Fill(0, std::string(kBytes, 'w'));
  ASSERT_TRUE(
      PostSend(queue_pair, Write(Opcode::kWriteWithImmediate, 21, 2048), {ours.Sge(0, kBytes)})
          .ok());
  ours.Fill(0, std::string(200, '!'));
  ASSERT_TRUE(PostReceive(*server.queue_pair, 7, {theirs.Sge(0, 100)}).ok());
  ASSERT_TRUE(PostReceive(*server.queue_pair, 8, {}).ok());
  const Completion received = AwaitCompletion(server, client);
  Expect(received, 7, CompletionStatus::kSuccess);
  EXPECT_EQ(received.byte_len, 11u);
  EXPECT_EQ(theirs.Text(0, 11), "first, then");
  ExpectServer(8, CompletionStatus::kSuccess);
  ExpectClient(kReadId, CompletionStatus::kSuccess);
  for (uint64_t i = 0; i <= 21; ++i) ExpectClient(i, CompletionStatus::kSuccess);
  for (uint64_t i = 1; i <= 20; ++i) {
    EXPECT_EQ(theirs.Text(1024 + 4 * i, 4), std::to_string(1000 + i));
  }
  EXPECT_EQ(theirs.Text(2048, kBytes), std::string(kBytes, 'w'));
}

// What the test before would see of a device that takes no notice of `inline_data`.
TEST_P(Inline, shouldSendWhatTheBufferHoldsLaterWhenItIsNotInline) {
  ours.Fill(0, "first");
  PostRead();
  ASSERT_TRUE(PostSend(*client.queue_pair, FencedSend(0), {ours.Sge(0, 5)}).ok());
  ours.Fill(0, "later");
  ASSERT_TRUE(PostReceive(*server.queue_pair, 7, {theirs.Sge(0, 100)}).ok());
  ExpectServer(7, CompletionStatus::kSuccess);
  EXPECT_EQ(theirs.Text(0, 5), "later");
}

TEST_P(Inline, shouldNotLookAtKeys) {
  std::string text = "of no region";
  const ScatterGather sge = {reinterpret_cast<uint64_t>(text.data()),
                             static_cast<uint32_t>(text.size()), 0x5a5a5a5a};
  ASSERT_TRUE(PostSend(*client.queue_pair, Write(Opcode::kWrite, 1, 0), {sge}).ok());
  ExpectClient(1, CompletionStatus::kSuccess);
  EXPECT_EQ(theirs.Text(0, text.size()), text);
}

TEST_P(Inline, shouldCarryNothing) {
  ASSERT_TRUE(PostReceive(*server.queue_pair, 7, {}).ok());
  ASSERT_TRUE(
      PostSend(*client.queue_pair, InlineRequest(Request(Opcode::kSend, 1)), {ours.Sge(0, 0)})
          .ok());
  ExpectServer(7, CompletionStatus::kSuccess);
  ExpectClient(1, CompletionStatus::kSuccess);
}

TEST_P(Depths, shouldBeTheSmallerOfWhatOneWantsAndTheOtherAnswers) {
  ConnectOptions options;
  options.client.responder_resources = 3;
  options.client.initiator_depth = 5;
  options.server.responder_resources = 4;
  options.server.initiator_depth = 2;
  Join(options);
  EXPECT_EQ(client.id->depths().ours, 4);
  EXPECT_EQ(client.id->depths().theirs, 2);
  EXPECT_EQ(server.id->depths().ours, 2);
  EXPECT_EQ(server.id->depths().theirs, 4);
}

class TwoQueues : public ConnectedTest {
 protected:
  void TearDown() override {
    server.id.reset();
    server.queue_pair.reset();
  }

  std::unique_ptr<CompletionQueue> sends = server.device->CreateCompletionQueue(16).value();
};

TEST_P(TwoQueues, shouldCompleteSendsInOneAndReceivesInTheOther) {
  QueuePairOptions options;
  options.send_queue = sends.get();
  options.receive_queue = server.queue.get();
  options.max_send_requests = options.max_receive_requests = 8;
  options.max_scatter_gather = 1;
  server.queue_pair = server.device->CreateQueuePair(options).value();
  Join();
  ASSERT_TRUE(PostReceive(*server.queue_pair, 1, {theirs.Sge(0, 8)}).ok());
  ASSERT_TRUE(PostReceive(*client.queue_pair, 2, {ours.Sge(0, 8)}).ok());
  ASSERT_TRUE(PostSend(*server.queue_pair, Request(Opcode::kSend, 3), {theirs.Sge(8, 8)}).ok());
  Completion sent;
  ASSERT_TRUE(Pump(client, server, [&] { return sends->Poll({&sent, 1}).value_or(0) == 1; }));
  ASSERT_EQ(sent.status, CompletionStatus::kSuccess);
  EXPECT_EQ(sent.wr_id, 3u);
  ExpectClient(2, CompletionStatus::kSuccess);
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 4), {ours.Sge(8, 8)}).ok());
  ExpectServer(1, CompletionStatus::kSuccess);
  EXPECT_EQ(sends->Poll({&sent, 1}).value_or(-1), 0);
  EXPECT_TRUE(server.completions.empty());
}

INSTANTIATE_TEST_SUITE_P(Devices, Inline, ::testing::ValuesIn(AllDevices()), DeviceName);
// A device whose queues only its library knows cannot say.
TEST_P(Messages, shouldSayWhatIsQueuedLast) {
  const auto says = [](const QueuePair& queue_pair, bool receive) {
    return queue_pair.LastQueued(receive);
  };
  if (GetParam().name == "rdma") {
    EXPECT_EQ(says(*client.queue_pair, false).status().code(), absl::StatusCode::kUnimplemented);
    return;
  }
  EXPECT_EQ(says(*client.queue_pair, false).value(), std::nullopt);
  EXPECT_EQ(says(*server.queue_pair, true).value(), std::nullopt);
  // One waits for a receive, and the others behind it.
  for (const uint64_t wr_id : {3, 4, 5}) {
    ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, wr_id), {ours.Sge(0, 5)}).ok());
    EXPECT_EQ(says(*client.queue_pair, false).value(), wr_id);
  }
  EXPECT_EQ(says(*client.queue_pair, true).value(), std::nullopt);
  for (const uint64_t wr_id : {7, 8}) {
    ASSERT_TRUE(PostReceive(*server.queue_pair, wr_id, {theirs.Sge(0, 100)}).ok());
  }
  EXPECT_EQ(says(*server.queue_pair, true).value(), 8u);
  ExpectServer(7, CompletionStatus::kSuccess);
  ExpectServer(8, CompletionStatus::kSuccess);
  EXPECT_EQ(says(*server.queue_pair, true).value(), std::nullopt);
  EXPECT_EQ(says(*client.queue_pair, false).value(), 5u);
  ASSERT_TRUE(PostReceive(*server.queue_pair, 9, {theirs.Sge(0, 100)}).ok());
  for (const uint64_t wr_id : {3, 4, 5}) ExpectClient(wr_id, CompletionStatus::kSuccess);
  EXPECT_EQ(says(*client.queue_pair, false).value(), std::nullopt);
}

// Completions are there, and nobody has polled them. The end of another queue pair may take them
// from where they are.
TEST_P(Messages, shouldHaveSomethingQueuedUntilItsCompletionIsPolled) {
  const auto last_queued = [this](bool receive) -> std::optional<uint64_t> {
    return client.queue_pair->LastQueued(receive).value();
  };
  const bool says = GetParam().name != "rdma";
  std::unique_ptr<QueuePair> other = client.MakeQueuePair();
  ASSERT_TRUE(PostReceive(*server.queue_pair, 7, {theirs.Sge(0, 100)}).ok());
  ASSERT_TRUE(PostReceive(*client.queue_pair, 8, {ours.Sge(0, 100)}).ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 3), {ours.Sge(0, 5)}).ok());
  // The client does not poll.
  const auto await_server = [this] {
    for (int i = 0; i < 10'000'000 && server.completions.empty(); ++i) {
      client.device->Progress();
      server.Turn();
    }
    return !server.completions.empty();
  };
  ASSERT_TRUE(await_server());
  EXPECT_EQ(server.completions.front().wr_id, 7u);
  server.completions.clear();
  ASSERT_TRUE(PostSend(*server.queue_pair, Request(Opcode::kSend, 4), {theirs.Sge(0, 5)}).ok());
  ASSERT_TRUE(await_server());
  other.reset();
  if (says) {
    EXPECT_EQ(last_queued(false), 3u);
    EXPECT_EQ(last_queued(true), 8u);
  }
  ExpectClient(3, CompletionStatus::kSuccess);
  ExpectClient(8, CompletionStatus::kSuccess);
  if (says) {
    EXPECT_EQ(last_queued(false), std::nullopt);
    EXPECT_EQ(last_queued(true), std::nullopt);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Messages, ::testing::ValuesIn(AllDevices()), DeviceName);
INSTANTIATE_TEST_SUITE_P(Devices, Depths, ::testing::ValuesIn(AllDevices()), DeviceName);
INSTANTIATE_TEST_SUITE_P(Devices, TwoQueues, ::testing::ValuesIn(AllDevices()), DeviceName);

}  // namespace
}  // namespace baton::verbs::testing
