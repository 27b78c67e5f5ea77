// The protocol's positions: every step, what is refused, and the format of the state.
#include "worker/examples/pingd/ping_position.h"

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::pingd {
namespace {

constexpr uint32_t kMaxBytes = 100;

absl::StatusOr<Action> Advertise(PingPosition& position, const Advertisement& advertisement) {
  std::array<uint8_t, kMessageBytes> message;
  const Advertisement wire = SwapBytes(advertisement);
  std::memcpy(message.data(), &wire, sizeof(wire));
  return position.OnMessage(message, kMaxBytes);
}

absl::StatusOr<Action> EndReading(PingPosition& position, std::string text) {
  text.resize(position.data_bytes(), 'x');
  return position.OnRead({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

// After as many steps of a ping.
PingPosition After(int steps) {
  PingPosition position = PingPosition::Begin(Protocol::kRping);
  if (steps > 0) {
    EXPECT_TRUE(Advertise(position, {1, 2, 10}).ok());
  }
  if (steps > 1) {
    EXPECT_TRUE(EndReading(position, std::string("four\0", 5)).ok());
  }
  if (steps > 2) {
    EXPECT_TRUE(Advertise(position, {3, 4, 10}).ok());
  }
  if (steps > 3) {
    EXPECT_TRUE(position.OnWritten().ok());
  }
  return position;
}

void ExpectRefusal(const absl::StatusOr<Action>& refused, const std::string& reason) {
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr(reason));
}

TEST(PingPositionTest, shouldReadAdvertisementsInNetworkOrder) {
  PingPosition position = PingPosition::Begin(Protocol::kRping);
  const std::array<uint8_t, 16> message = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 64};
  const auto action = position.OnMessage(message, kMaxBytes);
  ASSERT_TRUE(action.ok());
  EXPECT_EQ(action->remote.address, 0x0102030405060708u);
  EXPECT_EQ(action->remote.rkey, 0x090a0b0cu);
  EXPECT_EQ(action->remote.size, 64u);
}

TEST(PingPositionTest, shouldReadThenWriteTheTextAndSendAfterEach) {
  PingPosition position = PingPosition::Begin(Protocol::kRping);
  for (uint64_t ping = 0; ping < 3; ++ping) {
    auto action = Advertise(position, {0x1000, 7, 10});
    ASSERT_TRUE(action.ok());
    EXPECT_EQ(action->kind, Action::Kind::kRead);
    EXPECT_EQ(action->remote.size, 10u);
    EXPECT_EQ(position.messages(), 2 * ping);

    action = EndReading(position, std::string("four\0", 5));
    ASSERT_TRUE(action.ok());
    EXPECT_EQ(action->kind, Action::Kind::kSend);
    EXPECT_EQ(position.messages(), 2 * ping + 1);
    action = position.OnSent();
    ASSERT_TRUE(action.ok());
    EXPECT_EQ(action->kind, Action::Kind::kNone);

    action = Advertise(position, {0x2000, 8, 10});
    ASSERT_TRUE(action.ok());
    EXPECT_EQ(action->kind, Action::Kind::kWrite);
    EXPECT_EQ(action->remote.address, 0x2000u);
    EXPECT_EQ(action->remote.rkey, 8u);
    EXPECT_EQ(action->remote.size, 5u);

    action = position.OnWritten();
    ASSERT_TRUE(action.ok());
    EXPECT_EQ(action->kind, Action::Kind::kSend);
    EXPECT_EQ(position.messages(), 2 * ping + 2);
  }
}

TEST(PingPositionTest, shouldWriteAllDataWhenTheyHaveNoEnd) {
  PingPosition position = After(1);
  ASSERT_TRUE(EndReading(position, "").ok());
  EXPECT_EQ(position.data_bytes(), 10u);
}

TEST(PingPositionTest, shouldRefuseWhatComesOutOfTurn) {
  PingPosition reading = After(1), writing = After(3), idle = After(4), waiting = After(2);
  ExpectRefusal(Advertise(reading, {1, 2, 10}), "a message came while reading");
  ExpectRefusal(Advertise(writing, {1, 2, 10}), "a message came while writing");
  ExpectRefusal(reading.OnWritten(), "the end of a WRITE came while reading");
  ExpectRefusal(idle.OnWritten(), "the end of a WRITE came while awaiting the source's");
  ExpectRefusal(waiting.OnRead({}), "the end of a READ came while awaiting the sink's");
  EXPECT_EQ(reading.phase(), Phase::kReading);
  EXPECT_EQ(reading.messages(), 0u);
}

TEST(PingPositionTest, shouldRefuseWrongSizes) {
  PingPosition source = After(0), sink = After(2);
  ExpectRefusal(Advertise(source, {1, 2, 0}), "a source of 0 bytes");
  ExpectRefusal(Advertise(source, {1, 2, kMaxBytes + 1}), "a source of 101 bytes");
  ExpectRefusal(Advertise(sink, {1, 2, 4}), "a sink of 4 bytes for 5 of data");
  ExpectRefusal(source.OnMessage({}, kMaxBytes), "a message of 0 bytes");
  EXPECT_TRUE(Advertise(source, {1, 2, kMaxBytes}).ok());
}

TEST(PingPositionTest, shouldAnswerOneMessageOfRdmaClientAndEnd) {
  PingPosition position = PingPosition::Begin(Protocol::kRdmaClient);
  const std::array<uint8_t, kMessageBytes> message = {};
  auto action = position.OnMessage(message, kMaxBytes);
  ASSERT_TRUE(action.ok());
  EXPECT_EQ(action->kind, Action::Kind::kSend);
  EXPECT_EQ(position.messages(), 1u);
  ExpectRefusal(position.OnMessage(message, kMaxBytes), "a message came while replying");
  action = position.OnSent();
  ASSERT_TRUE(action.ok());
  EXPECT_EQ(action->kind, Action::Kind::kDisconnect);
  EXPECT_EQ(position.phase(), Phase::kEnding);
}

TEST(PingPositionTest, shouldBeTheSameAfterSaveAndLoadAtEveryStep) {
  for (int steps = 0; steps <= 4; ++steps) {
    const PingPosition position = After(steps);
    const auto loaded = PingPosition::Load(position.Save(), kPositionStateVersion);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->phase(), position.phase());
    EXPECT_EQ(loaded->messages(), position.messages());
    EXPECT_EQ(loaded->data_bytes(), position.data_bytes());
    EXPECT_EQ(loaded->Save(), position.Save());
  }
}

TEST(PingPositionTest, shouldNotLoadAnythingElse) {
  const auto saved = After(3).Save();
  EXPECT_FALSE(PingPosition::Load({}, 0).ok());
  EXPECT_FALSE(PingPosition::Load(saved, kPositionStateVersion + 1).ok());
  EXPECT_FALSE(PingPosition::Load({saved.data(), saved.size() - 1}, kPositionStateVersion).ok());
  for (size_t byte = 0; byte < saved.size(); ++byte) {
    auto torn = saved;
    torn[byte] ^= 1;
    EXPECT_FALSE(PingPosition::Load(torn, kPositionStateVersion).ok()) << byte;
  }
}

TEST(PingPositionTest, shouldKeepTheFormatOfItsState) {
  PingPosition position = After(3);
  const auto saved = position.Save();
  const std::vector<uint8_t> expected = {'P', 'I', 'N', 'G', 1, 4, 0, 0, 1, 0, 0, 0,
                                         0,   0,   0,   0,   5, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_THAT(std::vector<uint8_t>(saved.begin(), saved.begin() + 24),
              testing::ElementsAreArray(expected));
}

}  // namespace
}  // namespace baton::pingd
