// Injected faults, and what only the soft device has.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "lib/base/clock.h"
#include "lib/verbs/soft/soft_device.h"
#include "tests/lib/verbs/verbs_harness.h"

namespace baton::verbs::testing {
namespace {

using soft::CreateSoftDevice;
using soft::FaultKind;
using soft::FaultRule;
using soft::SoftDeviceOptions;

SoftDeviceOptions WithFaults(std::vector<FaultRule> rules) {
  SoftDeviceOptions options;
  options.faults = {.seed = 11, .rules = std::move(rules)};
  return options;
}

// The client's device has the options, the server's is an ordinary one.
struct Pair {
  explicit Pair(const SoftDeviceOptions& options, const ConnectOptions& connect = {})
      : client(CreateSoftDevice(options).value()), server(CreateSoftDevice({}).value()) {
    Connect(client, server, connect);
  }
  void Send(uint64_t wr_id) {
    ASSERT_TRUE(PostReceive(*server.queue_pair, wr_id, {theirs.Sge(0, 64)}).ok());
    ASSERT_TRUE(
        PostSend(*client.queue_pair, Request(Opcode::kSend, wr_id), {ours.Sge(0, 64)}).ok());
  }
  CompletionStatus Sent(uint64_t wr_id) {
    const Completion completion = AwaitCompletion(client, server);
    EXPECT_EQ(completion.wr_id, wr_id);
    return completion.status;
  }

  Side client;
  Side server;
  Buffer ours{client.device.get(), 1 << 20, kAllAccess};
  Buffer theirs{server.device.get(), 1 << 20, kAllAccess};
};

TEST(SoftFaults, shouldDelayAMessageAndThoseBehindIt) {
  Pair pair(WithFaults({{.kind = FaultKind::kDelay, .nth = 2, .duration_us = 20000}}));
  const uint64_t start = MonotonicNanoseconds();
  for (uint64_t i = 1; i <= 3; ++i) pair.Send(i);
  EXPECT_EQ(pair.Sent(1), CompletionStatus::kSuccess);
  EXPECT_EQ(pair.Sent(2), CompletionStatus::kSuccess);
  EXPECT_GE(MonotonicNanoseconds() - start, 20'000'000u);
  EXPECT_EQ(pair.Sent(3), CompletionStatus::kSuccess);
}

TEST(SoftFaults, shouldStallBothDirections) {
  Pair pair(WithFaults({{.kind = FaultKind::kStall, .nth = 1, .duration_us = 20000}}));
  const uint64_t start = MonotonicNanoseconds();
  pair.Send(1);
  ASSERT_TRUE(PostReceive(*pair.client.queue_pair, 9, {pair.ours.Sge(64, 64)}).ok());
  ASSERT_TRUE(
      PostSend(*pair.server.queue_pair, Request(Opcode::kSend, 8), {pair.theirs.Sge(0, 64)}).ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(AwaitCompletion(pair.client, pair.server).status, CompletionStatus::kSuccess);
  }
  EXPECT_GE(MonotonicNanoseconds() - start, 20'000'000u);
}

// The peer is not to blame for a silence that is ours.
TEST(SoftFaults, shouldStallForLongerThanAPeerMayBeSilent) {
  SoftDeviceOptions options =
      WithFaults({{.kind = FaultKind::kStall, .nth = 1, .duration_us = 400'000}});
  options.ack_timeout_ms = 100;
  ConnectOptions connect;
  connect.client.retry_count = 0;
  Pair pair(options, connect);
  pair.Send(1);
  EXPECT_EQ(pair.Sent(1), CompletionStatus::kSuccess);
}

TEST(SoftFaults, shouldRetryAfterInjectedRnr) {
  Pair pair(WithFaults({{.kind = FaultKind::kRnr, .every = 1, .duration_us = 100}}));
  for (uint64_t i = 1; i <= 5; ++i) pair.Send(i);
  for (uint64_t i = 1; i <= 5; ++i) EXPECT_EQ(pair.Sent(i), CompletionStatus::kSuccess);
}

TEST(SoftFaults, shouldCountInjectedRnrAgainstTheRetries) {
  ConnectOptions connect;
  connect.server.rnr_retry_count = 0;
  Pair pair(WithFaults({{.kind = FaultKind::kRnr, .nth = 2}}), connect);
  for (uint64_t i = 1; i <= 3; ++i) pair.Send(i);
  EXPECT_EQ(pair.Sent(1), CompletionStatus::kSuccess);
  EXPECT_EQ(pair.Sent(2), CompletionStatus::kRnrRetryExceeded);
  EXPECT_EQ(pair.Sent(3), CompletionStatus::kFlushError);
}

TEST(SoftFaults, shouldLoseTheConnectionAtBothSidesWhenTheLinkIsCut) {
  Pair pair(WithFaults({{.kind = FaultKind::kCut, .nth = 2}}));
  pair.Send(1);
  EXPECT_EQ(pair.Sent(1), CompletionStatus::kSuccess);
  pair.Send(2);
  pair.Send(3);
  EXPECT_EQ(pair.Sent(2), CompletionStatus::kFlushError);
  EXPECT_EQ(pair.Sent(3), CompletionStatus::kFlushError);
  CmEvent event;
  EXPECT_TRUE(AwaitEvent(pair.client, pair.server, CmEventType::kDisconnected, &event));
  EXPECT_TRUE(AwaitEvent(pair.server, pair.client, CmEventType::kDisconnected, &event));
  EXPECT_EQ(pair.server.queue_pair->state(), QueuePairState::kError);
}

TEST(SoftFaults, shouldExhaustRetries) {
  Pair pair(WithFaults({{.kind = FaultKind::kRetry, .nth = 2, .duration_us = 1000}}));
  for (uint64_t i = 1; i <= 3; ++i) pair.Send(i);
  EXPECT_EQ(pair.Sent(1), CompletionStatus::kSuccess);
  EXPECT_EQ(pair.Sent(2), CompletionStatus::kRetryExceeded);
  EXPECT_EQ(pair.Sent(3), CompletionStatus::kFlushError);
  EXPECT_EQ(pair.client.queue_pair->state(), QueuePairState::kError);
}

TEST(SoftFaults, shouldCompleteWithTheChosenError) {
  Pair pair(WithFaults(
      {{.kind = FaultKind::kError, .nth = 1, .status = CompletionStatus::kRemoteOperationError}}));
  pair.Send(1);
  EXPECT_EQ(pair.Sent(1), CompletionStatus::kRemoteOperationError);
}

TEST(SoftFaults, shouldTellOnceThatTheDeviceIsLost) {
  Pair pair(WithFaults({{.kind = FaultKind::kLost, .every = 2}}));
  for (uint64_t i = 1; i <= 5; ++i) {
    pair.Send(i);
    EXPECT_EQ(pair.Sent(i), CompletionStatus::kSuccess);
    EXPECT_EQ(pair.client.device_events.size(), i < 2 ? 0u : 1u);
  }
  EXPECT_EQ(pair.client.device_events.front().type, DeviceEventType::kDeviceLost);
  EXPECT_TRUE(pair.server.device_events.empty());
}

TEST(SoftFaults, shouldRepeatARunWithTheSameSeed) {
  const auto run = [] {
    Pair pair(WithFaults({{.kind = FaultKind::kDelay, .probability = 0.2, .duration_us = 50},
                          {.kind = FaultKind::kError,
                           .probability = 0.02,
                           .status = CompletionStatus::kGeneralError}}));
    uint64_t sent = 1;
    for (; sent < 1000; ++sent) {
      pair.Send(sent);
      if (pair.Sent(sent) != CompletionStatus::kSuccess) break;
    }
    return sent;
  };
  const uint64_t first = run();
  EXPECT_LT(first, 1000u);
  EXPECT_EQ(run(), first);
}

TEST(SoftDevice, shouldExceedRetriesWhenThePeerFallsSilent) {
  SoftDeviceOptions options;
  options.ack_timeout_ms = 10;
  ConnectOptions connect;
  connect.client.retry_count = 1;
  Pair pair(options, connect);
  pair.Send(1);
  pair.Send(2);
  const uint64_t deadline = MonotonicNanoseconds() + 10'000'000'000;
  while (pair.client.completions.size() < 2 && MonotonicNanoseconds() < deadline) {
    pair.client.Turn();  // the server does not turn
  }
  EXPECT_EQ(pair.Sent(1), CompletionStatus::kRetryExceeded);
  EXPECT_EQ(pair.Sent(2), CompletionStatus::kFlushError);
}

TEST(SoftDevice, shouldInvalidateARegionThatAllowsIt) {
  Pair pair({});
  Buffer granted(pair.server.device.get(), 4096, kAllAccess | soft::kSoftRemoteInvalidate);
  SendRequest request = Request(Opcode::kSendWithInvalidate, 1);
  request.invalidate_rkey = granted.region->rkey();
  ASSERT_TRUE(PostReceive(*pair.server.queue_pair, 2, {granted.Sge(0, 8)}).ok());
  ASSERT_TRUE(PostSend(*pair.client.queue_pair, request, {pair.ours.Sge(0, 8)}).ok());
  const Completion received = AwaitCompletion(pair.server, pair.client);
  EXPECT_EQ(received.status, CompletionStatus::kSuccess);
  EXPECT_TRUE(received.has_invalidate);
  EXPECT_EQ(received.immediate, granted.region->rkey());
  EXPECT_EQ(pair.Sent(1), CompletionStatus::kSuccess);
  // The key is gone for peers; the region is still good locally.
  ASSERT_TRUE(PostReceive(*pair.server.queue_pair, 3, {granted.Sge(0, 8)}).ok());
  ASSERT_TRUE(
      PostSend(*pair.client.queue_pair, Request(Opcode::kSend, 4), {pair.ours.Sge(0, 8)}).ok());
  EXPECT_EQ(pair.Sent(4), CompletionStatus::kSuccess);
  ASSERT_TRUE(PostSend(*pair.client.queue_pair,
                       RemoteRequest(Opcode::kWrite, 5, granted.address(), granted.region->rkey()),
                       {pair.ours.Sge(0, 8)})
                  .ok());
  EXPECT_EQ(pair.Sent(5), CompletionStatus::kRemoteAccessError);
}

TEST(SoftDevice, shouldLoseTheConnectionWhenMemoryGoesWhileItIsBeingSent) {
  Pair pair({});
  Buffer large(pair.client.device.get(), 16 << 20, kAllAccess);
  ASSERT_TRUE(PostReceive(*pair.server.queue_pair, 1, {pair.theirs.Sge(0, 1 << 20)}).ok());
  ASSERT_TRUE(PostSend(*pair.client.queue_pair, Request(Opcode::kSend, 2),
                       {large.Sge(0, 16 << 20)})  // more than the sockets hold
                  .ok());
  large.region.reset();
  EXPECT_EQ(pair.Sent(2), CompletionStatus::kFlushError);
  CmEvent event;
  EXPECT_TRUE(AwaitEvent(pair.client, pair.server, CmEventType::kDisconnected, &event));
  EXPECT_TRUE(AwaitEvent(pair.server, pair.client, CmEventType::kDisconnected, &event));
}

TEST(SoftDevice, shouldNotTouchMemoryOfFlushedRequests) {
  Pair pair({});
  {
    Buffer large(pair.client.device.get(), 16 << 20, kAllAccess);
    ASSERT_TRUE(
        PostSend(*pair.client.queue_pair, Request(Opcode::kSend, 2), {large.Sge(0, 16 << 20)})
            .ok());
    ASSERT_TRUE(pair.client.queue_pair->SetError().ok());
    EXPECT_EQ(pair.Sent(2), CompletionStatus::kFlushError);
  }  // unmapped
  ASSERT_TRUE(pair.client.id->Disconnect().ok());
  CmEvent event;
  EXPECT_TRUE(AwaitEvent(pair.server, pair.client, CmEventType::kDisconnected, &event));
  EXPECT_TRUE(AwaitEvent(pair.client, pair.server, CmEventType::kDisconnected, &event));
  EXPECT_TRUE(event.status.ok()) << event.status;  // the stream stayed whole up to the request
}

// The READ is longer than what a socket holds whose peer does not read.
TEST(SoftDevice, shouldAnswerReadsThatASetErrorCutsShort) {
  constexpr size_t kLong = 64 << 20;
  Pair pair({});
  Buffer ours(pair.client.device.get(), kLong, kAllAccess);
  Buffer theirs(pair.server.device.get(), kLong, kAllAccess);
  ASSERT_TRUE(PostSend(*pair.client.queue_pair,
                       RemoteRequest(Opcode::kRead, 1, theirs.address(), theirs.region->rkey()),
                       {ours.Sge(0, kLong)})
                  .ok());
  pair.server.device->Progress();
  ASSERT_TRUE(pair.server.queue_pair->SetError().ok());
  EXPECT_EQ(pair.Sent(1), CompletionStatus::kRetryExceeded);
}

TEST(SoftDevice, shouldDisconnectWhenAQueuePairIsDestroyedUnderItsConnection) {
  Pair pair({});
  pair.Send(1);
  pair.client.queue_pair.reset();
  CmEvent event;
  EXPECT_TRUE(AwaitEvent(pair.server, pair.client, CmEventType::kDisconnected, &event));
  EXPECT_TRUE(AwaitEvent(pair.client, pair.server, CmEventType::kDisconnected, &event));
}

// Less than a poll has room for means that the queue is empty.
TEST(SoftDevice, shouldPollWhatDestroyedQueuePairsHaveLeftTogetherWithTheRest) {
  Pair pair({});
  const auto flush = [&](QueuePair& queue_pair, uint64_t wr_id) {
    ASSERT_TRUE(PostReceive(queue_pair, wr_id, {pair.ours.Sge(0, 8)}).ok());
    ASSERT_TRUE(queue_pair.SetError().ok());
  };
  std::unique_ptr<QueuePair> gone = pair.client.MakeQueuePair();
  const std::unique_ptr<QueuePair> left = pair.client.MakeQueuePair();
  flush(*gone, 1);
  gone.reset();
  flush(*left, 2);
  std::array<Completion, 4> taken;
  ASSERT_EQ(pair.client.queue->Poll(absl::MakeSpan(taken)).value(), 2);
  EXPECT_EQ(taken[0].wr_id, 1u);
  EXPECT_EQ(taken[1].wr_id, 2u);
}

TEST(SoftDevice, shouldUseTheSameNumbersForTheSameSeedOnly) {
  SoftDeviceOptions options;
  options.seed = 5;
  Side a(CreateSoftDevice(options).value());
  Side b(CreateSoftDevice(options).value());
  options.seed = 6;
  Side c(CreateSoftDevice(options).value());
  EXPECT_EQ(a.queue_pair->number(), b.queue_pair->number());
  EXPECT_NE(a.queue_pair->number(), c.queue_pair->number());
}

TEST(SoftDevice, shouldKeepToItsLimitOfQueuePairs) {
  SoftDeviceOptions options;
  options.max_queue_pairs = 1;
  Side side(CreateSoftDevice(options).value());
  QueuePairOptions pair;
  pair.send_queue = pair.receive_queue = side.queue.get();
  pair.max_send_requests = pair.max_receive_requests = 1;
  EXPECT_EQ(side.device->CreateQueuePair(pair).status().code(),
            absl::StatusCode::kResourceExhausted);
  side.queue_pair.reset();
  EXPECT_TRUE(side.device->CreateQueuePair(pair).ok());
}

TEST(SoftDevice, shouldRefuseForkedProcesses) {
  const auto device = CreateSoftDevice({}).value();
  for (const absl::Status& status : {device->CheckForkable(), device->AfterFork()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_TRUE(absl::StrContains(status.message(), "its connections live in the process"))
        << status;
  }
}

}  // namespace
}  // namespace baton::verbs::testing
