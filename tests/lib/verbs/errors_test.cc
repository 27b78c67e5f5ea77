// What fails, with which status, and what that does to the queue pairs.
//
// Where InfiniBand names one status and Linux's Soft-RoCE gives another (6.1, drivers/infiniband/
// sw/rxe), both are allowed, and why is said there: nobody may tell more from a status than that.
#include <gmock/gmock.h>

#include <initializer_list>

#include "tests/lib/verbs/connected_test.h"

namespace baton::verbs::testing {
namespace {

class Errors : public ConnectedTest {
 protected:
  SendRequest Remote(Opcode opcode, uint64_t wr_id, size_t offset) {
    return RemoteRequest(opcode, wr_id, theirs.address(offset), theirs.region->rkey());
  }
  static void ExpectOneOf(const Completion& completion, uint64_t wr_id,
                          std::initializer_list<CompletionStatus> statuses) {
    EXPECT_EQ(completion.wr_id, wr_id);
    EXPECT_THAT(statuses, ::testing::Contains(completion.status))
        << CompletionStatusName(completion.status);
  }
  void ExpectBothInError() {
    EXPECT_TRUE(Pump(client, server, [&] {
      return client.queue_pair->state() == QueuePairState::kError &&
             server.queue_pair->state() == QueuePairState::kError;
    }));
  }
};

TEST_P(Errors, shouldFailWithRemoteAccessOnUnknownKey) {
  Join();
  SendRequest request = Remote(Opcode::kWrite, 1, 0);
  request.rkey ^= 0x5a5a5a5a;
  ASSERT_TRUE(PostReceive(*server.queue_pair, 9, {}).ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, request, {ours.Sge(0, 8)}).ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Remote(Opcode::kWrite, 2, 0), {ours.Sge(0, 8)}).ok());
  ExpectClient(1, CompletionStatus::kRemoteAccessError);
  ExpectClient(2, CompletionStatus::kFlushError);
  ExpectServer(9, CompletionStatus::kFlushError);
  ExpectBothInError();
}

TEST_P(Errors, shouldFailWithRemoteAccessBeyondTheRegion) {
  Join();
  for (Opcode opcode : {Opcode::kRead}) {
    ASSERT_TRUE(PostSend(*client.queue_pair, Remote(opcode, 1, kBytes - 4), {ours.Sge(0, 8)}).ok());
    ExpectClient(1, CompletionStatus::kRemoteAccessError);
  }
  ExpectBothInError();
}

TEST_P(Errors, shouldFailWithRemoteAccessWithoutTheRight) {
  Join();
  Buffer readable(server.device.get(), 4096, kRemoteRead);
  ASSERT_TRUE(
      PostSend(*client.queue_pair,
               RemoteRequest(Opcode::kWrite, 1, readable.address(), readable.region->rkey()),
               {ours.Sge(0, 8)})
          .ok());
  ExpectClient(1, CompletionStatus::kRemoteAccessError);
  ExpectBothInError();
}

TEST_P(Errors, shouldFailWithRemoteAccessAfterDeregistration) {
  Join();
  const SendRequest request = Remote(Opcode::kRead, 1, 0);
  theirs.region.reset();
  ASSERT_TRUE(PostSend(*client.queue_pair, request, {ours.Sge(0, 8)}).ok());
  ExpectClient(1, CompletionStatus::kRemoteAccessError);
  ExpectBothInError();
}

// By the responder, or already when it is posted: Soft-RoCE's provider looks at the address
// (validate_send_wr in providers/rxe/rxe.c).
TEST_P(Errors, shouldFailMisalignedAtomicAsInvalidRequest) {
  Join();
  const absl::Status status =
      PostSend(*client.queue_pair, Remote(Opcode::kFetchAndAdd, 1, 4), {ours.Sge(0, 8)});
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(client.queue_pair->state(), QueuePairState::kReadyToSend);
    return;
  }
  ExpectClient(1, CompletionStatus::kRemoteInvalidRequest);
  ExpectBothInError();
}

// A local protection error; Soft-RoCE makes an operation error of a key that it does not know
// (rxe_requester: only what leaves its region is -EFAULT).
TEST_P(Errors, shouldFailLocallyOnBadLkeyOnceEarlierRequestsAreDone) {
  Join();
  ScatterGather bad = ours.Sge(0, 8);
  bad.lkey ^= 0x77777777;
  ASSERT_TRUE(PostSend(*client.queue_pair, Remote(Opcode::kWrite, 1, 0), {ours.Sge(0, 8)}).ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Remote(Opcode::kWrite, 2, 0), {bad}).ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Remote(Opcode::kWrite, 3, 0), {ours.Sge(0, 8)}).ok());
  ExpectClient(1, CompletionStatus::kSuccess);
  ExpectOneOf(AwaitCompletion(client, server), 2,
              {CompletionStatus::kLocalProtectionError, CompletionStatus::kLocalQpError});
  ExpectClient(3, CompletionStatus::kFlushError);
  EXPECT_EQ(client.queue_pair->state(), QueuePairState::kError);
}

TEST_P(Errors, shouldFailLocallyWhenEntryLeavesItsRegion) {
  Join();
  ASSERT_TRUE(
      PostSend(*client.queue_pair, Remote(Opcode::kWrite, 1, 0), {ours.Sge(kBytes - 4, 8)}).ok());
  ExpectClient(1, CompletionStatus::kLocalProtectionError);
}

TEST_P(Errors, shouldFailReadIntoMemoryWithoutLocalWrite) {
  Join();
  Buffer constant(client.device.get(), 4096, 0);
  ASSERT_TRUE(PostSend(*client.queue_pair, Remote(Opcode::kRead, 1, 0), {constant.Sge(0, 8)}).ok());
  ExpectClient(1, CompletionStatus::kLocalProtectionError);
}

TEST_P(Errors, shouldSendFromMemoryWithoutAnyRight) {
  Join();
  Buffer constant(client.device.get(), 4096, 0);
  ASSERT_TRUE(
      PostSend(*client.queue_pair, Remote(Opcode::kWrite, 1, 0), {constant.Sge(0, 8)}).ok());
  ExpectClient(1, CompletionStatus::kSuccess);
}

// A length error here and an invalid request there; Soft-RoCE takes what is longer than all of the
// receive for a malformed request of ours (copy_data: -EINVAL, RESPST_ERR_MALFORMED_WQE).
TEST_P(Errors, shouldFailBothSidesWhenReceiveIsTooSmall) {
  Join();
  ASSERT_TRUE(PostReceive(*server.queue_pair, 8, {theirs.Sge(0, 4)}).ok());
  ASSERT_TRUE(PostReceive(*server.queue_pair, 9, {theirs.Sge(0, 4)}).ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 1), {ours.Sge(0, 5)}).ok());
  ExpectOneOf(AwaitCompletion(server, client), 8,
              {CompletionStatus::kLocalLengthError, CompletionStatus::kLocalQpError});
  ExpectServer(9, CompletionStatus::kFlushError);
  ExpectOneOf(AwaitCompletion(client, server), 1,
              {CompletionStatus::kRemoteInvalidRequest, CompletionStatus::kRemoteOperationError});
  ExpectBothInError();
}

TEST_P(Errors, shouldFailBothSidesWhenReceiveHasBadLkey) {
  Join();
  ScatterGather bad = theirs.Sge(0, 100);
  bad.lkey ^= 0x1234567;
  ASSERT_TRUE(PostReceive(*server.queue_pair, 8, {bad}).ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 1), {ours.Sge(0, 5)}).ok());
  ExpectOneOf(AwaitCompletion(server, client), 8,
              {CompletionStatus::kLocalProtectionError, CompletionStatus::kLocalQpError});
  ExpectClient(1, CompletionStatus::kRemoteOperationError);
  ExpectBothInError();
}

TEST_P(Errors, shouldFinishEarlierReadsBeforeALaterRequestFails) {
  Join();
  theirs.Fill(0, "read");
  SendRequest bad = Remote(Opcode::kWrite, 2, 0);
  bad.rkey ^= 0x5a5a5a5a;
  ASSERT_TRUE(PostSend(*client.queue_pair, Remote(Opcode::kRead, 1, 0), {ours.Sge(0, 4)}).ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, bad, {ours.Sge(0, 8)}).ok());
  ExpectClient(1, CompletionStatus::kSuccess);
  ExpectClient(2, CompletionStatus::kRemoteAccessError);
  EXPECT_EQ(ours.Text(0, 4), "read");
}

TEST_P(Errors, shouldWaitForReceiveWhenRnrRetriesAreUnlimited) {
  Join();
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 1), {ours.Sge(0, 5)}).ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 2), {ours.Sge(0, 6)}).ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Remote(Opcode::kWrite, 3, 0), {ours.Sge(0, 8)}).ok());
  for (int i = 0; i < 1000; ++i) {
    client.Turn();
    server.Turn();
  }
  EXPECT_TRUE(client.completions.empty());
  ASSERT_TRUE(PostReceive(*server.queue_pair, 8, {theirs.Sge(0, 10)}).ok());
  ASSERT_TRUE(PostReceive(*server.queue_pair, 9, {theirs.Sge(0, 10)}).ok());
  ExpectServer(8, CompletionStatus::kSuccess);
  ExpectServer(9, CompletionStatus::kSuccess);
  for (uint64_t i = 1; i <= 3; ++i) ExpectClient(i, CompletionStatus::kSuccess);
}

TEST_P(Errors, shouldRepeatWriteWithImmediateUntilReceiveIsPosted) {
  Join();
  SendRequest request = Remote(Opcode::kWriteWithImmediate, 1, 0);
  ASSERT_TRUE(PostSend(*client.queue_pair, request, {ours.Sge(0, 1'000'000)}).ok());
  for (int i = 0; i < 1000; ++i) {
    client.Turn();
    server.Turn();
  }
  ASSERT_TRUE(PostReceive(*server.queue_pair, 8, {}).ok());
  ExpectServer(8, CompletionStatus::kSuccess);
  ExpectClient(1, CompletionStatus::kSuccess);
}

TEST_P(Errors, shouldGiveUpWhenRnrRetriesAreUsedUp) {
  ConnectOptions options;
  options.client.rnr_retry_count = options.server.rnr_retry_count = 2;
  Join(options);
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 1), {ours.Sge(0, 5)}).ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 2), {ours.Sge(0, 5)}).ok());
  ExpectClient(1, CompletionStatus::kRnrRetryExceeded);
  ExpectClient(2, CompletionStatus::kFlushError);
  EXPECT_EQ(client.queue_pair->state(), QueuePairState::kError);
}

TEST_P(Errors, shouldFlushBothQueuesInOrderOnSetError) {
  Join();
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(PostReceive(*client.queue_pair, 100 + i, {ours.Sge(0, 8)}).ok());
    ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, i), {ours.Sge(0, 8)}).ok());
  }
  ASSERT_TRUE(client.queue_pair->SetError().ok());
  EXPECT_EQ(client.queue_pair->state(), QueuePairState::kError);
  uint64_t next_send = 0;
  uint64_t next_receive = 100;
  for (int i = 0; i < 10; ++i) {
    const Completion completion = AwaitCompletion(client, server);
    EXPECT_EQ(completion.status, CompletionStatus::kFlushError);
    EXPECT_EQ(completion.wr_id, completion.wr_id < 100 ? next_send++ : next_receive++);
  }
}

TEST_P(Errors, shouldFlushWhatIsPostedInTheErrorState) {
  Join();
  ASSERT_TRUE(client.queue_pair->SetError().ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Request(Opcode::kSend, 1), {ours.Sge(0, 8)}).ok());
  ASSERT_TRUE(PostReceive(*client.queue_pair, 2, {ours.Sge(0, 8)}).ok());
  ExpectClient(1, CompletionStatus::kFlushError);
  ExpectClient(2, CompletionStatus::kFlushError);
}

// Soft-RoCE retries for ever where 7 times are asked for (COMPST_ERROR_RETRY does not count then).
TEST_P(Errors, shouldExceedRetriesWhenThePeersQueuePairIsInError) {
  ConnectOptions options;
  options.client.retry_count = options.server.retry_count = 1;
  Join(options);
  ASSERT_TRUE(server.queue_pair->SetError().ok());
  ASSERT_TRUE(PostSend(*client.queue_pair, Remote(Opcode::kWrite, 1, 0), {ours.Sge(0, 8)}).ok());
  ExpectClient(1, CompletionStatus::kRetryExceeded);
  EXPECT_EQ(client.queue_pair->state(), QueuePairState::kError);
}

TEST_P(Errors, shouldRefuseSendsBeforeTheConnection) {
  const absl::Status status =
      PostSend(*client.queue_pair, Request(Opcode::kSend, 1), {ours.Sge(0, 8)});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(Errors, shouldRefuseReadsAndAtomicsThatThePeerDoesNotAnswer) {
  ConnectOptions options;
  options.server.responder_resources = 0;
  Join(options);
  for (const Opcode opcode : {Opcode::kRead, Opcode::kCompareAndSwap, Opcode::kFetchAndAdd}) {
    const absl::Status status =
        PostSend(*client.queue_pair, Remote(opcode, 1, 0), {ours.Sge(0, 8)});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << OpcodeName(opcode);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("responder_resources"));
  }
  ASSERT_TRUE(PostSend(*client.queue_pair, Remote(Opcode::kWrite, 2, 0), {ours.Sge(0, 8)}).ok());
  ExpectClient(2, CompletionStatus::kSuccess);
}

TEST_P(Errors, shouldRefuseInlineDataThatTheQueuePairHasNoRoomFor) {
  client.queue_pair = client.MakeQueuePair(64, 64, 4, 64);
  Join();
  SendRequest request = Request(Opcode::kSend, 1);
  request.inline_data = true;
  const uint32_t most = client.queue_pair->max_inline_data();
  const absl::Status status =
      PostSend(*client.queue_pair, request, {ours.Sge(0, most), ours.Sge(0, 1)});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(std::to_string(most)));
  // Nothing of it was posted.
  ASSERT_TRUE(PostReceive(*server.queue_pair, 9, {theirs.Sge(0, most)}).ok());
  request.wr_id = 2;
  ASSERT_TRUE(PostSend(*client.queue_pair, request, {ours.Sge(0, most)}).ok());
  ExpectClient(2, CompletionStatus::kSuccess);
}

TEST_P(Errors, shouldRefuseToReadInline) {
  client.queue_pair = client.MakeQueuePair(64, 64, 4, 64);
  Join();
  for (const Opcode opcode : {Opcode::kRead, Opcode::kCompareAndSwap, Opcode::kFetchAndAdd}) {
    SendRequest request = Remote(opcode, 1, 0);
    request.inline_data = true;
    EXPECT_EQ(PostSend(*client.queue_pair, request, {ours.Sge(0, 8)}).code(),
              absl::StatusCode::kInvalidArgument)
        << OpcodeName(opcode);
  }
}

TEST_P(Errors, shouldRefuseQueuePairsWithMoreInlineDataThanTheDeviceHas) {
  QueuePairOptions options;
  options.send_queue = options.receive_queue = client.queue.get();
  options.max_send_requests = options.max_receive_requests = 1;
  options.max_inline_data = 1 << 20;
  const absl::Status status = client.device->CreateQueuePair(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("1048576"));
}

TEST_P(Errors, shouldRefuseMoreEntriesThanTheQueuePairHas) {
  Join();
  const std::vector<ScatterGather> five(5, ours.Sge(0, 8));
  EXPECT_EQ(PostSend(*client.queue_pair, Request(Opcode::kSend, 1), five).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PostReceive(*client.queue_pair, 1, five).code(), absl::StatusCode::kInvalidArgument);
}

// A device may make a queue longer than it was asked for (ibv_create_qp(3)), never shorter.
TEST_P(Errors, shouldRefuseWhatExceedsTheQueuesAndTellHowManyWereTaken) {
  Join();
  const ScatterGather sge = ours.Sge(0, 8);
  SendRequest request = Request(Opcode::kSend, 1);
  request.sges = absl::MakeConstSpan(&sge, 1);
  const std::vector<SendRequest> many(1000, request);
  size_t posted = 0;
  EXPECT_EQ(client.queue_pair->PostSend(many, &posted).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_GE(posted, 64u);
  EXPECT_LT(posted, 1000u);
  ReceiveRequest receive;
  const std::vector<ReceiveRequest> receives(1000, receive);
  EXPECT_EQ(client.queue_pair->PostReceive(receives, &posted).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_GE(posted, 64u);
  EXPECT_LT(posted, 1000u);
}

// The test asks for a queue of four entries. A device may give more (ibv_create_cq(3)).
TEST_P(Errors, shouldMakeAnOverrunCompletionQueueUnusable) {
  Side small(GetParam().create().value(), 4);
  Connect(small, server, {.host = GetParam().host});
  Buffer memory(small.device.get(), 4096, kAllAccess);
  for (uint64_t i = 0; i < 64; ++i) {
    ASSERT_TRUE(PostSend(*small.queue_pair, Remote(Opcode::kWrite, i, 0), {memory.Sge(0, 8)}).ok());
  }
  const auto turn = [&] {
    small.device->Progress();
    server.Turn();
    return small.queue_pair->state() == QueuePairState::kError;
  };
  for (int i = 0; i < 100'000 && !turn(); ++i) continue;
  Completion taken[16];
  EXPECT_EQ(small.queue->Poll(absl::MakeSpan(taken)).status().code(), absl::StatusCode::kDataLoss);
  DeviceEvent told;
  ASSERT_TRUE(Pump(small, server, [&] { return small.device->NextDeviceEvent(&told); }));
  EXPECT_EQ(static_cast<int>(told.type), static_cast<int>(DeviceEventType::kCompletionQueueFailed));
  EXPECT_FALSE(told.text.empty());
}

TEST_P(Errors, shouldRefuseRemoteRightsWithoutLocalWrite) {
  EXPECT_EQ(client.device->RegisterMemory(ours.data(), 4096, kRemoteWrite).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// The responder finds it when the message is there. It may have acknowledged that: its own error
// (class J in rxe_responder) needs no NAK, so the requester may see a success.
TEST_P(Errors, shouldFailSendWithInvalidateOfAnOrdinaryRegion) {
  Join();
  ASSERT_TRUE(PostReceive(*server.queue_pair, 8, {theirs.Sge(0, 100)}).ok());
  SendRequest request = Request(Opcode::kSendWithInvalidate, 1);
  request.invalidate_rkey = theirs.region->rkey();
  ASSERT_TRUE(PostSend(*client.queue_pair, request, {ours.Sge(0, 5)}).ok());
  ExpectServer(8, CompletionStatus::kRemoteInvalidRequest);
  EXPECT_EQ(server.queue_pair->state(), QueuePairState::kError);
  ExpectOneOf(AwaitCompletion(client, server), 1,
              {CompletionStatus::kRemoteOperationError, CompletionStatus::kSuccess});
}

INSTANTIATE_TEST_SUITE_P(Devices, Errors, ::testing::ValuesIn(AllDevices()), DeviceName);

}  // namespace
}  // namespace baton::verbs::testing
