#include "tests/bench/bench_server.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace baton::bench {
namespace {

struct Request {
  enum Kind { kReceive, kSend, kRemote } kind;
  Op op = Op::kEcho;
  uint32_t slot = 0;
  size_t offset = 0;
  uint32_t length = 0;
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
};

class Recorder final : public Queue {
 public:
  absl::Status Receive(uint32_t slot, size_t offset, uint32_t length) override {
    requests.push_back({Request::kReceive, Op::kEcho, slot, offset, length, 0, 0});
    return absl::OkStatus();
  }
  absl::Status Send(size_t offset, uint32_t length) override {
    requests.push_back({Request::kSend, Op::kEcho, 0, offset, length, 0, 0});
    return absl::OkStatus();
  }
  absl::Status Remote(Op op, size_t offset, uint32_t length, uint64_t remote_address,
                      uint32_t rkey) override {
    requests.push_back({Request::kRemote, op, 0, offset, length, remote_address, rkey});
    return absl::OkStatus();
  }
  std::vector<Request> requests;
};

class BenchServerTest : public ::testing::Test {
 protected:
  BenchServerTest() {
    EXPECT_TRUE(server_.Start().ok());
    posted_ = queue_.requests;
    queue_.requests.clear();
  }
  absl::Status Receive(uint32_t slot, const Message& message) {
    std::memcpy(slab_.data() + posted_[slot].offset, &message, sizeof(message));
    return server_.OnReceived(slot);
  }
  Message SentIn(const Request& request) const {
    Message message;
    std::memcpy(&message, slab_.data() + request.offset, sizeof(message));
    return message;
  }

  std::vector<uint8_t> slab_ = std::vector<uint8_t>(kSlabBytes);
  uint64_t now_ = 1000;
  Recorder queue_;
  BenchServer server_{slab_.data(), &queue_, [this] { return now_; }};
  std::vector<Request> posted_;
};

Message Writes(uint32_t count, uint32_t window) {
  Message message;
  message.op = static_cast<uint32_t>(Op::kWrite);
  message.sequence = 7;
  message.size = 4096;
  message.count = count;
  message.window = window;
  message.remote_address = 0x1000;
  message.rkey = 5;
  return message;
}

TEST_F(BenchServerTest, shouldPostAReceiveForEachSlotOnceItStarts) {
  ASSERT_EQ(posted_.size(), kSlots);
  for (uint32_t i = 0; i < kSlots; ++i) {
    EXPECT_EQ(posted_[i].kind, Request::kReceive);
    EXPECT_EQ(posted_[i].slot, i);
  }
}

TEST_F(BenchServerTest, shouldPostTheReceiveAgainBeforeItSendsAMessageBack) {
  Message message;
  message.op = static_cast<uint32_t>(Op::kEcho);
  message.sequence = 42;
  ASSERT_TRUE(Receive(3, message).ok());
  ASSERT_EQ(queue_.requests.size(), 2u);
  EXPECT_EQ(queue_.requests[0].kind, Request::kReceive);
  EXPECT_EQ(queue_.requests[0].slot, 3u);
  EXPECT_EQ(queue_.requests[1].kind, Request::kSend);
  EXPECT_EQ(SentIn(queue_.requests[1]).sequence, 42u);
  EXPECT_FALSE(server_.resting());
}

TEST_F(BenchServerTest, shouldKeepTheWindowFullUntilAllIsWritten) {
  ASSERT_TRUE(Receive(0, Writes(5, 2)).ok());
  ASSERT_EQ(queue_.requests.size(), 3u);  // the receive, and two writes
  EXPECT_EQ(queue_.requests[1].kind, Request::kRemote);
  EXPECT_EQ(queue_.requests[1].op, Op::kWrite);
  EXPECT_EQ(queue_.requests[1].remote_address, 0x1000u);
  EXPECT_EQ(queue_.requests[1].rkey, 5u);
  EXPECT_EQ(slab_[queue_.requests[1].offset + 4095], 7);
  for (int i = 0; i < 4; ++i) {
    now_ += 100;
    ASSERT_TRUE(server_.OnRemoteDone().ok());
  }
  ASSERT_EQ(queue_.requests.size(), 6u);  // three more
  now_ += 100;
  ASSERT_TRUE(server_.OnRemoteDone().ok());
  ASSERT_EQ(queue_.requests.size(), 7u);
  ASSERT_EQ(queue_.requests.back().kind, Request::kSend);
  const Message reply = SentIn(queue_.requests.back());
  EXPECT_EQ(reply.failed, 0u);
  EXPECT_EQ(reply.total_ns, 500u);
  EXPECT_EQ(reply.p50_ns, 200u);  // in a window of two each waits for the one before it
  EXPECT_FALSE(server_.OnRemoteDone().ok());
}

TEST_F(BenchServerTest, shouldTellWhatItHasRead) {
  Message message = Writes(1, 1);
  message.op = static_cast<uint32_t>(Op::kRead);
  ASSERT_TRUE(Receive(0, message).ok());
  const Request read = queue_.requests.back();
  EXPECT_EQ(read.op, Op::kRead);
  EXPECT_EQ(slab_[read.offset + 4095], 0);
  slab_[read.offset + 4095] = 9;  // as the device does
  ASSERT_TRUE(server_.OnRemoteDone().ok());
  EXPECT_EQ(SentIn(queue_.requests.back()).last_byte, 9u);
}

TEST_F(BenchServerTest, shouldRefuseAtomicsOfAnotherSize) {
  Message message = Writes(1, 1);
  message.op = static_cast<uint32_t>(Op::kFetchAdd);
  ASSERT_TRUE(Receive(0, message).ok());
  EXPECT_EQ(SentIn(queue_.requests.back()).failed, 1u);
  message.size = kAtomicBytes;
  ASSERT_TRUE(Receive(1, message).ok());
  EXPECT_EQ(queue_.requests.back().op, Op::kFetchAdd);
}

TEST_F(BenchServerTest, shouldRefuseWritesThatWouldLeaveTheClientsMemory) {
  Message message = Writes(1, 1);
  message.size = kMaxRemoteBytes + 1;
  ASSERT_TRUE(Receive(0, message).ok());
  ASSERT_EQ(queue_.requests.back().kind, Request::kSend);
  EXPECT_EQ(SentIn(queue_.requests.back()).failed, 1u);
}

TEST_F(BenchServerTest, shouldSayThatItHasNoRoomToReplyRatherThanOverwriteAReply) {
  Message message;
  message.op = static_cast<uint32_t>(Op::kEcho);
  for (uint32_t i = 0; i < kSlots; ++i) ASSERT_TRUE(Receive(i, message).ok());
  EXPECT_EQ(Receive(0, message).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(server_.OnSent().ok());
  EXPECT_TRUE(Receive(0, message).ok());
}

TEST_F(BenchServerTest, shouldRestFromARequestToRestUntilTheNext) {
  Message message;
  message.op = static_cast<uint32_t>(Op::kRest);
  ASSERT_TRUE(Receive(0, message).ok());
  EXPECT_TRUE(server_.resting());
  message.op = static_cast<uint32_t>(Op::kEcho);
  ASSERT_TRUE(Receive(1, message).ok());
  EXPECT_FALSE(server_.resting());
}

}  // namespace
}  // namespace baton::bench
