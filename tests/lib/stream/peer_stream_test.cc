// Two ends on plain verbs. Both fail at the first message that finds no receive.
#include "lib/stream/peer_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/stream/stream_peer.h"

namespace baton::stream {
namespace {

using baton::testing::kWindow;
using baton::testing::StreamPeer;
using ::testing::HasSubstr;

class PeerStreamTest : public ::testing::Test {
 protected:
  // `ratio`: turns of the first end for each of the second.
  [[nodiscard]] bool Until(const std::function<bool()>& done, int ratio = 1) {
    return driver::testing::Pump(
        [&] {
          for (int i = 0; i < ratio; ++i) a.Turn();
          b.Turn();
        },
        done);
  }
  void Establish() {
    b.Connect(a.Listen());
    ASSERT_TRUE(Until([&] { return a.established && b.established; }));
  }
  void ExpectAllArrived() {
    EXPECT_EQ(a.answers, b.sent);
    EXPECT_EQ(b.answers, a.sent);
    for (const StreamPeer* end : {&a, &b}) {
      EXPECT_FALSE(end->was_not_ready);
      EXPECT_FALSE(end->disconnected);
    }
  }
  // Messages for which there is no credit find no receive.
  void ExpectNotReady() {
    for (int i = 0; i <= kWindow; ++i) b.RingWrongly();
    EXPECT_TRUE(driver::testing::Pump(
        [&] {
          a.Progress();
          b.Turn();
        },
        [&] { return b.was_not_ready; }));
  }
  bool HasAllArrived() const {
    return a.sent == a.to_send && b.sent == b.to_send && a.answers == b.sent && b.answers == a.sent;
  }

  const verbs::testing::Fabric fabric = verbs::testing::FabricUnderTest();
  StreamPeer a{fabric}, b{fabric};
};

TEST_F(PeerStreamTest, shouldCarryMessagesOfAnyLengthBothWays) {
  ASSERT_NO_FATAL_FAILURE(Establish());
  a.to_send = 3000;
  b.to_send = 2000;
  EXPECT_TRUE(Until([&] { return HasAllArrived(); }));
  ExpectAllArrived();
}

TEST_F(PeerStreamTest, shouldNeverFindASlowReceiverNotReady) {
  ASSERT_NO_FATAL_FAILURE(Establish());
  a.to_send = 3000;
  EXPECT_TRUE(Until([&] { return HasAllArrived(); }, /*ratio=*/20));
  ExpectAllArrived();
}

TEST_F(PeerStreamTest, shouldGetMoreMessagesThanTheWindowAndReleaseThemTogether) {
  ASSERT_NO_FATAL_FAILURE(Establish());
  a.sent = b.answers = baton::testing::kKeptBegin;
  a.to_send = b.kept = baton::testing::kKeptEnd;
  EXPECT_TRUE(Until([&] { return HasAllArrived(); }));
  EXPECT_EQ(b.state().receiver.head, b.state().receiver.tail);
  ExpectAllArrived();
}

// The control of the other tests.
TEST_F(PeerStreamTest, shouldBeFoundNotReadyWithoutCredit) {
  ASSERT_NO_FATAL_FAILURE(Establish());
  ExpectNotReady();
}

// The control of tests whose other end is a service: with its number of retries, nothing fails.
TEST_F(PeerStreamTest, shouldBeFoundNotReadyAlthoughItIsTriedAgain) {
  if (fabric.device != "soft") GTEST_SKIP() << "only counters of the device tell";
  a.rnr_retry_count = verbs::ConnectionParameters().rnr_retry_count;
  ASSERT_NO_FATAL_FAILURE(Establish());
  ExpectNotReady();
  EXPECT_FALSE(b.disconnected);
}

TEST_F(PeerStreamTest, shouldRefuseWrongSizes) {
  const auto open = [](const PeerStream::Memory& memory, const PeerStream::Requests& requests) {
    return PeerStream(nullptr, memory, requests).Open().code();
  };
  constexpr auto kWrong = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(open({nullptr, baton::testing::kRingBytes + 1, 1, 0, 0}, {kWindow, 2}), kWrong);
  EXPECT_EQ(open({nullptr, baton::testing::kRingBytes, 0, 0, 0}, {kWindow, 2}), kWrong);
  EXPECT_EQ(open({nullptr, baton::testing::kRingBytes, 1, 0, 0}, {kWindow, 1}), kWrong);
  EXPECT_EQ(open({nullptr, baton::testing::kRingBytes, 1, 0, 0}, {kMaxWindow + 1, 2}), kWrong);
}

TEST_F(PeerStreamTest, shouldBoundItsMessagesByTheDevices) {
  constexpr uint64_t kMost = 256;
  static_assert(kMost < baton::testing::kRingBytes);
  StreamPeer limited(fabric, baton::testing::kRingBytes, kMost);
  size_t arrived = 0;
  a.on_message = [&](absl::Span<const uint8_t> message) {
    arrived += message.size();
    return true;
  };
  limited.Connect(a.Listen());
  const auto until = [&](const std::function<bool()>& done) {
    return driver::testing::Pump(
        [&] {
          a.Turn();
          limited.Turn();
        },
        done);
  };
  ASSERT_TRUE(until([&] { return a.established && limited.established; }));
  const std::vector<uint8_t> message(kMost + 1);
  const absl::Status status = limited.Send(message);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the device sends at most 256"));
  EXPECT_EQ(limited.state().sender.messages, 0u);
  EXPECT_EQ(limited.Send({message.data(), kMost}), absl::OkStatus());
  EXPECT_TRUE(until([&] { return arrived == kMost; }));
}

// Notes where sends WRITE to.
class CountingQueuePair final : public verbs::QueuePair {
 public:
  uint32_t number() const override { return 1; }
  verbs::QueuePairState state() const override { return verbs::QueuePairState::kReadyToReceive; }
  absl::Status PostSend(absl::Span<const verbs::SendRequest> requests, size_t* posted) override {
    if (!is_connected) return absl::FailedPreconditionError("a send before RTS");
    for (const verbs::SendRequest& request : requests) written.push_back(request.remote_address);
    *posted = requests.size();
    return absl::OkStatus();
  }
  absl::Status PostReceive(absl::Span<const verbs::ReceiveRequest> requests,
                           size_t* posted) override {
    *posted = requests.size();
    return absl::OkStatus();
  }
  absl::Status SetError() override { return absl::OkStatus(); }

  bool is_connected = false;
  std::vector<uint64_t> written;
};

// The peer would look for the next message at another place than it is.
TEST_F(PeerStreamTest, shouldNotCountAMessageThatIsNotPosted) {
  constexpr uint64_t kAddress = 4096;
  constexpr uint32_t kMessageBytes = 64;
  std::vector<uint8_t> memory(baton::testing::kRingBytes + kMessageBytes);
  CountingQueuePair queue_pair;
  PeerStream stream(&queue_pair, {memory.data(), baton::testing::kRingBytes, kMessageBytes, 0, 0},
                    {kWindow, 4});
  ASSERT_EQ(stream.Open(), absl::OkStatus());
  ASSERT_EQ(stream.Begin(Encode({kGreetingMagic, kStreamVersion, kWindow,
                                 baton::testing::kRingBytes, 0, kAddress})),
            absl::OkStatus());
  const std::array<uint8_t, kMessageBytes> message = {};
  EXPECT_EQ(stream.Send(message).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(stream.state().sender.messages, 0u);
  queue_pair.is_connected = true;
  EXPECT_EQ(stream.Send(message), absl::OkStatus());
  EXPECT_EQ(queue_pair.written, std::vector<uint64_t>{kAddress});
}

TEST_F(PeerStreamTest, shouldNotSendBeforeTheGreeting) {
  PeerStream stream(nullptr, {}, {kWindow, 2});
  const std::array<uint8_t, 1> message = {};
  EXPECT_EQ(stream.Send(message).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(stream.Begin("hello").code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::stream
