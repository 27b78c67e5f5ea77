#include "lib/nic/queue_pair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/lib/nic/harness.h"

namespace baton::nic {
namespace {

using ::testing::HasSubstr;
using verbs::Completion;
using verbs::CompletionOpcode;
using verbs::CompletionStatus;
using verbs::Opcode;
using verbs::ScatterGather;
using verbs::SendRequest;

constexpr uint64_t kReceive = 1000;  // the first wr_id of receives

class NicQueuePairTest : public ::testing::Test {
 protected:
  NicQueuePairTest() : client_(nic_.Open()) { Make({}); }

  void Make(const Shard::Options& options) {
    driver_.reset();
    shard_ = std::make_unique<Shard>(client_.get(), options);
    driver_ = std::make_unique<Driver>(shard_.get());
  }
  char* Text(size_t at) { return reinterpret_cast<char*>(shard_->data()) + at; }
  ScatterGather Buffer(size_t at, uint32_t length) { return shard_->SgeOf(Text(at), length); }

  // Posts what a request of the first queue pair is.
  void Post(Opcode opcode, const ScatterGather& sge, size_t remote = 0, uint32_t key = 0) {
    SendRequest request =
        RequestOf(opcode, ++last_, sge, shard_->AddressOf(Text(remote)), key ? key : shard_->key());
    request.immediate = 0xabcd;
    request.compare_add = 5;
    request.swap = 77;
    driver_->Send(0, request);
  }
  Completion Next() {
    Completion completion;
    completion.wr_id = 0;
    EXPECT_TRUE(nic_.TurnUntil([&] {
      return driver_->queue().Take({&completion, 1}).value_or(1);
    }));
    return completion;
  }
  // One that completes with `status`, and has failed both queue pairs.
  void ExpectFailure(CompletionStatus status) {
    const Completion completion = Next();
    EXPECT_EQ(completion.wr_id, last_);
    EXPECT_EQ(completion.status, status) << verbs::CompletionStatusName(completion.status);
    EXPECT_EQ((*driver_)[0].state(), verbs::QueuePairState::kError);
  }

  EmbeddedNic nic_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Shard> shard_;
  std::unique_ptr<Driver> driver_;
  uint64_t last_ = 0;
};

TEST_F(NicQueuePairTest, shouldSend) {
  std::strcpy(Text(0), "hello");
  driver_->Receive(1, kReceive, Buffer(100, 32));
  driver_->Receive(1, kReceive + 1, Buffer(200, 32));
  Post(Opcode::kSend, Buffer(0, 6));
  Post(Opcode::kSendWithImmediate, Buffer(0, 3));
  const Completion received = Next();
  EXPECT_EQ(received.wr_id, kReceive);
  EXPECT_EQ(received.opcode, CompletionOpcode::kReceive);
  EXPECT_EQ(received.byte_len, 6u);
  EXPECT_STREQ(Text(100), "hello");
  const Completion immediate = Next();
  EXPECT_EQ(immediate.wr_id, kReceive + 1);
  EXPECT_TRUE(immediate.has_immediate);
  EXPECT_EQ(immediate.immediate, 0xabcdu);
  EXPECT_STREQ(Text(200), "hel");
  EXPECT_EQ(Next().wr_id, 1u);
  EXPECT_EQ(Next().wr_id, 2u);
}

TEST_F(NicQueuePairTest, shouldSendFromAndToSeveralBuffersAndInline) {
  std::strcpy(Text(0), "one");
  std::strcpy(Text(50), "two");
  const ScatterGather from[] = {Buffer(0, 3), Buffer(50, 3)};
  const ScatterGather to[] = {Buffer(100, 2), Buffer(200, 30)};
  verbs::ReceiveRequest receive;
  receive.sges = to;
  size_t posted = 0;
  ASSERT_TRUE((*driver_)[1].PostReceive({&receive, 1}, &posted).ok());
  ASSERT_TRUE((*driver_)[1].PostReceive({&receive, 1}, &posted).ok());
  SendRequest request;
  request.sges = from;
  driver_->Send(0, request);
  EXPECT_EQ(Next().byte_len, 6u);
  EXPECT_EQ(std::string(Text(100), 2) + Text(200), "onetwo");
  Next();
  // Inline data lie in this process alone. The NIC sees the copy in the queue.
  const char text[] = "inline";
  const ScatterGather ours = {reinterpret_cast<uintptr_t>(text), sizeof(text), 0};
  request.sges = {&ours, 1};
  request.inline_data = true;
  driver_->Send(0, request);
  EXPECT_EQ(Next().byte_len, 7u);
  EXPECT_EQ(std::string(Text(100), 2) + Text(200), "inline");
}

TEST_F(NicQueuePairTest, shouldWriteAndRead) {
  std::strcpy(Text(0), "written");
  driver_->Receive(1, kReceive, Buffer(500, 8));
  Post(Opcode::kWrite, Buffer(0, 8), 100);
  EXPECT_EQ(Next().opcode, CompletionOpcode::kWrite);
  EXPECT_STREQ(Text(100), "written");
  Post(Opcode::kWriteWithImmediate, Buffer(0, 8), 200);
  const Completion received = Next();
  EXPECT_EQ(received.opcode, CompletionOpcode::kReceiveWithImmediate);
  EXPECT_EQ(received.byte_len, 8u);
  EXPECT_EQ(received.immediate, 0xabcdu);
  EXPECT_STREQ(Text(200), "written");
  Next();
  Post(Opcode::kRead, Buffer(300, 8), 100);
  const Completion read = Next();
  EXPECT_EQ(read.opcode, CompletionOpcode::kRead);
  EXPECT_EQ(read.byte_len, 8u);
  EXPECT_STREQ(Text(300), "written");
}

TEST_F(NicQueuePairTest, shouldDoAtomics) {
  shard_->word(0) = 5;
  Post(Opcode::kFetchAndAdd, Buffer(64, 8), 0);
  EXPECT_EQ(Next().opcode, CompletionOpcode::kFetchAndAdd);
  EXPECT_EQ(shard_->word(0), 10u);
  EXPECT_EQ(shard_->word(8), 5u);
  Post(Opcode::kCompareAndSwap, Buffer(64, 8), 0);
  EXPECT_EQ(Next().opcode, CompletionOpcode::kCompareAndSwap);
  EXPECT_EQ(shard_->word(0), 10u);
  EXPECT_EQ(shard_->word(8), 10u);
  shard_->word(0) = 5;
  Post(Opcode::kCompareAndSwap, Buffer(64, 8), 0);
  Next();
  EXPECT_EQ(shard_->word(0), 77u);
  EXPECT_EQ(shard_->word(8), 5u);
}

TEST_F(NicQueuePairTest, shouldLookForNoMemoryWhereThereAreNoBytes) {
  driver_->Receive(1, kReceive, Buffer(0, 8));
  for (const Opcode opcode : {Opcode::kSend, Opcode::kWrite, Opcode::kRead}) {
    Post(opcode, {1, 0, 99}, 0, 98);
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Next().status, CompletionStatus::kSuccess);
}

TEST_F(NicQueuePairTest, shouldWaitForAReceive) {
  std::strcpy(Text(0), "later");
  Post(Opcode::kSend, Buffer(0, 6));
  for (int i = 0; i < 100; ++i) nic_.nic().Progress();
  Completion completion;
  EXPECT_EQ(*driver_->queue().Take({&completion, 1}), 0);
  EXPECT_TRUE(nic_.nic().PrepareToWait());  // a clock wakes it
  driver_->Receive(1, kReceive, Buffer(100, 8));
  EXPECT_EQ(Next().wr_id, kReceive);
  EXPECT_STREQ(Text(100), "later");
  EXPECT_EQ(Next().wr_id, 1u);
}

TEST_F(NicQueuePairTest, shouldWaitForAReceiveOnlySoOften) {
  Make({.rnr_retry_count = 3});
  Post(Opcode::kWriteWithImmediate, Buffer(0, 6), 100);
  ExpectFailure(CompletionStatus::kRnrRetryExceeded);
  EXPECT_EQ((*driver_)[1].state(), verbs::QueuePairState::kReadyToSend);
}

TEST_F(NicQueuePairTest, shouldRefuseLocalMemoryThatIsNotRegistered) {
  const ScatterGather good = Buffer(0, 8);
  const ScatterGather cases[] = {{good.address, 8, shard_->key() + 1},
                                 {good.address - 1, 8, good.lkey},
                                 {good.address + 4089, 8, good.lkey},
                                 {good.address, 4097, good.lkey},
                                 {~uint64_t{0}, 8, good.lkey}};
  for (const ScatterGather& sge : cases) {
    for (const Opcode opcode : {Opcode::kSend, Opcode::kWrite, Opcode::kRead}) {
      Make({});
      ScatterGather here = sge;
      if (here.lkey == good.lkey) here.lkey = shard_->key();
      Post(opcode, here, 100);
      ExpectFailure(CompletionStatus::kLocalProtectionError);
    }
  }
}

TEST_F(NicQueuePairTest, shouldRefuseRemoteMemoryThatIsNotRegistered) {
  for (const Opcode opcode :
       {Opcode::kWrite, Opcode::kRead, Opcode::kFetchAndAdd, Opcode::kCompareAndSwap}) {
    Make({});
    Post(opcode, Buffer(0, 8), 64, shard_->key() + 1);
    ExpectFailure(CompletionStatus::kRemoteAccessError);
    EXPECT_EQ((*driver_)[1].state(), verbs::QueuePairState::kError);
    Make({});
    Post(opcode, Buffer(0, 8), 4096);
    ExpectFailure(CompletionStatus::kRemoteAccessError);
  }
}

TEST_F(NicQueuePairTest, shouldGrantNoMoreThanWasRegistered) {
  const struct {
    Opcode opcode;
    uint32_t needed;
  } cases[] = {{Opcode::kWrite, verbs::kRemoteWrite},
               {Opcode::kRead, verbs::kRemoteRead},
               {Opcode::kFetchAndAdd, verbs::kRemoteAtomic}};
  for (const auto& [opcode, needed] : cases) {
    Make({.access = 15 & ~needed});
    Post(opcode, Buffer(0, 8), 64);
    ExpectFailure(CompletionStatus::kRemoteAccessError);
  }
  Make({.access = verbs::kRemoteRead});
  Post(Opcode::kRead, Buffer(0, 8), 64);
  ExpectFailure(CompletionStatus::kLocalProtectionError);
}

// Another file's memory, or that of another domain, is nobody's.
TEST_F(NicQueuePairTest, shouldKeepDomainsApart) {
  const std::unique_ptr<Client> other = nic_.Open();
  const Shard others(other.get(), {});
  Post(Opcode::kWrite, Buffer(0, 8), 0, others.key());
  ExpectFailure(CompletionStatus::kRemoteAccessError);
  Make({});
  const absl::StatusOr<uint32_t> key =
      client_->AddRegion({shard_->file(), 0, 0}, 64, 0x7000'0000, 15, /*domain=*/1);
  ASSERT_TRUE(key.ok()) << key.status();
  Post(Opcode::kWrite, Buffer(0, 8), 0, *key);
  ExpectFailure(CompletionStatus::kRemoteAccessError);
}

TEST_F(NicQueuePairTest, shouldRefuseAtomicsThatAreNotAligned) {
  Post(Opcode::kFetchAndAdd, Buffer(0, 8), 4);
  ExpectFailure(CompletionStatus::kRemoteInvalidRequest);
  // Where the address is, and the memory is not.
  Make({.address = 0x7000'0004});
  Post(Opcode::kFetchAndAdd, Buffer(0, 8), 4);
  ExpectFailure(CompletionStatus::kRemoteInvalidRequest);
}

TEST_F(NicQueuePairTest, shouldFailBothWhereAReceiveIsTooShortOrWrong) {
  driver_->Receive(1, kReceive, Buffer(100, 5));
  Post(Opcode::kSend, Buffer(0, 6));
  EXPECT_EQ(Next().status, CompletionStatus::kLocalLengthError);
  ExpectFailure(CompletionStatus::kRemoteInvalidRequest);
  EXPECT_EQ((*driver_)[1].state(), verbs::QueuePairState::kError);
  Make({});
  driver_->Receive(1, kReceive, {1, 6, 99});
  Post(Opcode::kSend, Buffer(0, 6));
  EXPECT_EQ(Next().status, CompletionStatus::kLocalProtectionError);
  ExpectFailure(CompletionStatus::kRemoteOperationError);
}

TEST_F(NicQueuePairTest, shouldFlushWhatIsQueuedAndWhatIsQueuedThen) {
  Post(Opcode::kSend, Buffer(0, 8));  // waits
  Post(Opcode::kSend, Buffer(0, 8));
  driver_->Receive(0, kReceive, Buffer(0, 8));
  nic_.nic().Progress();
  ASSERT_TRUE((*driver_)[0].SetError().ok());
  for (const uint64_t wr_id : {uint64_t{1}, uint64_t{2}, kReceive}) {
    const Completion completion = Next();
    EXPECT_EQ(completion.wr_id, wr_id);
    EXPECT_EQ(completion.status, CompletionStatus::kFlushError);
  }
  driver_->Receive(0, kReceive + 1, Buffer(0, 8));
  EXPECT_EQ(Next().wr_id, kReceive + 1);
  Post(Opcode::kSend, Buffer(0, 8));
  EXPECT_EQ(Next().status, CompletionStatus::kFlushError);
}

TEST_F(NicQueuePairTest, shouldGetNoAnswerOfAPeerInError) {
  ASSERT_TRUE((*driver_)[1].SetError().ok());
  Post(Opcode::kWrite, Buffer(0, 8), 64);
  ExpectFailure(CompletionStatus::kRetryExceeded);
}

TEST_F(NicQueuePairTest, shouldBeAsNewAfterAReset) {
  for (int round = 0; round < 3; ++round) {
    Post(Opcode::kWrite, Buffer(0, 8), 64);
    EXPECT_EQ(Next().status, CompletionStatus::kSuccess);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE((*driver_)[i].SetReset().ok());
      EXPECT_TRUE((*driver_)[i].SetInit().ok());
    }
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(ConnectQueuePair(client_.get(), shard_->number(i), shard_->number(i ^ 1)).ok());
    }
  }
}

// A peer that was not reset, too, answers the former use alone.
TEST_F(NicQueuePairTest, shouldGetNoAnswerOfWhoWasConnectedToItsFormerUse) {
  std::strcpy(Text(0), "new");
  for (const bool had_messages : {false, true}) {
    Make({});
    std::strcpy(Text(0), "new");
    if (had_messages) {
      Post(Opcode::kWrite, Buffer(0, 4), 100);
      EXPECT_EQ(Next().status, CompletionStatus::kSuccess);
    } else {
      driver_->Receive(0, kReceive, Buffer(200, 8));
      driver_->Send(1, RequestOf(Opcode::kSend, 7, Buffer(0, 4)));
      Next();
      Next();
    }
    ASSERT_TRUE((*driver_)[0].SetReset().ok());
    ASSERT_TRUE((*driver_)[0].SetInit().ok());
    ASSERT_TRUE(ConnectQueuePair(client_.get(), shard_->number(0), shard_->number(1)).ok());
    std::memset(Text(300), 0, 8);
    Post(Opcode::kWrite, Buffer(0, 4), 300);
    ExpectFailure(CompletionStatus::kRetryExceeded);
    EXPECT_STREQ(Text(300), "");
  }
}

// Its driver was killed, or is stopped, between the record and the ring.
TEST_F(NicQueuePairTest, shouldNotFailARequestThatNobodyHasRung) {
  Post(Opcode::kWrite, Buffer(0, 4), 100);
  EXPECT_EQ(Next().status, CompletionStatus::kSuccess);  // the time of the peer runs from here
  class Silent final : public verbs::mlx5::Doorbell {
    void Ring(uint64_t) override {}
    void Arm(uint64_t) override {}
    void ReceivesPosted(uint32_t, const uint32_t&) override {}
  } silent;
  verbs::mlx5::SendQueue queue(shard_->layout().SendsAt(shard_->queue_pair(0)), shard_->number(0),
                               kSendLimits, &silent);
  const ScatterGather sge = Buffer(0, 4);
  const SendRequest request =
      RequestOf(Opcode::kWrite, ++last_, sge, shard_->AddressOf(Text(200)), shard_->key());
  size_t posted = 0;
  ASSERT_TRUE(queue.Post({&request, 1}, &posted).ok());
  EXPECT_EQ(Next().status, CompletionStatus::kSuccess);
}

TEST_F(NicQueuePairTest, shouldGoAroundItsQueues) {
  for (uint64_t i = 0; i < 70'000; ++i) {  // and around the counters of 16 bits
    driver_->Receive(1, kReceive, Buffer(8, 8));
    Post(Opcode::kSend, Buffer(0, 8));
    ASSERT_EQ(Next().wr_id, kReceive);
    ASSERT_EQ(Next().wr_id, i + 1);
  }
}

TEST_F(NicQueuePairTest, shouldFailWhoOverrunsItsCompletionQueue) {
  Make({.entry_count = 4});
  for (int i = 0; i < 5; ++i) Post(Opcode::kWrite, Buffer(0, 8), 64);
  ASSERT_TRUE(
      nic_.TurnUntil([this] { return (*driver_)[0].state() == verbs::QueuePairState::kError; }));
  const std::vector<std::string> complaints = nic_.TakeComplaints();
  ASSERT_EQ(complaints.size(), 1u);
  EXPECT_THAT(complaints[0], HasSubstr("overrun"));
}

TEST_F(NicQueuePairTest, shouldNameWhoWritesNonsense) {
  Post(Opcode::kWrite, Buffer(0, 8), 64);
  uint8_t* const slot = shard_->layout().SendsAt(shard_->queue_pair(0)).slots;
  slot[0] = slot[1] = slot[2] = slot[3] = 0xff;
  ExpectFailure(CompletionStatus::kLocalQpError);
  const std::vector<std::string> complaints = nic_.TakeComplaints();
  ASSERT_EQ(complaints.size(), 1u);
  EXPECT_THAT(complaints[0], HasSubstr("send queue of queue pair"));
}

// A turn executes some of what is queued, and has seen more.
TEST_F(NicQueuePairTest, shouldFailWhoChangesWhatItHasQueued) {
  constexpr uint64_t kQueued = 24;
  Make({.send_slots = 32});
  for (uint64_t i = 0; i < kQueued; ++i) Post(Opcode::kWrite, Buffer(0, 8), 64);
  nic_.nic().Progress();
  const uint64_t executed = 16;
  uint8_t* const slots = shard_->layout().SendsAt(shard_->queue_pair(0)).slots;
  slots[executed * verbs::mlx5::kSlotBytes + 23] ^= 8;  // of the request behind these
  std::vector<verbs::CompletionStatus> statuses;
  for (uint64_t i = 0; i < kQueued; ++i) statuses.push_back(Next().status);
  EXPECT_EQ(std::count(statuses.begin(), statuses.end(), CompletionStatus::kSuccess), executed);
  EXPECT_EQ(statuses[executed], CompletionStatus::kLocalQpError);
  EXPECT_EQ((*driver_)[0].state(), verbs::QueuePairState::kError);
  const std::vector<std::string> complaints = nic_.TakeComplaints();
  ASSERT_EQ(complaints.size(), 1u);
  EXPECT_THAT(complaints[0], HasSubstr(absl::StrCat("of process ", getpid(), ": ")));
  EXPECT_THAT(complaints[0], HasSubstr("was changed after it was queued"));
}

}  // namespace
}  // namespace baton::nic
