// Queues as they were committed: every refusal, and the order of what waited.
#include "worker/examples/nvmed/saved_queue.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/examples/nvmed/hex.h"

namespace baton::nvmed {
namespace {

using testing::HasSubstr;

constexpr uint32_t kMaxEntries = 32;

QueueState Sane() {
  QueueState state;
  state.controller = 5;
  state.id = 3;
  state.entries = 8;
  state.wrap = 8;
  state.head = 7;
  state.phase = QueueState::kConnected;
  return state;
}

std::vector<uint8_t> BytesOf(const QueueState& state,
                             const std::vector<PendingCommand>& pending = {}) {
  std::vector<uint8_t> bytes = ToBytes(state);
  for (const PendingCommand& one : pending) {
    const std::vector<uint8_t> more = ToBytes(one);
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  return bytes;
}

void ExpectRefusal(const std::vector<uint8_t>& bytes, const std::string& why,
                   uint32_t version = kStateVersion) {
  const auto saved = ReadQueue(bytes, version, kMaxEntries);
  ASSERT_EQ(saved.status().code(), absl::StatusCode::kInvalidArgument) << why;
  EXPECT_THAT(std::string(saved.status().message()), HasSubstr(why));
}

TEST(SavedQueueTest, shouldWriteWhatIsRead) {
  std::vector<PendingCommand> pending(8);
  pending[5] = {PendingCommand::kChunk0 + 3, 64, 77};
  std::vector<uint8_t> bytes(1000, 0xff);  // what was there before does not matter
  for (const absl::Span<const PendingCommand> commands :
       {absl::Span<const PendingCommand>(pending), absl::Span<const PendingCommand>()}) {
    WriteQueue(Sane(), commands, &bytes);
    const auto saved = ReadQueue(bytes, kStateVersion, kMaxEntries);
    ASSERT_TRUE(saved.ok()) << saved.status();
    EXPECT_EQ(ToBytes(saved->state), ToBytes(Sane()));
    EXPECT_EQ(saved->pending[5].where, commands.empty() ? 0 : PendingCommand::kChunk0 + 3);
  }
}

TEST(SavedQueueTest, shouldReadQueuesWithoutCommands) {
  const auto saved = ReadQueue(BytesOf(Sane()), kStateVersion, kMaxEntries);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(ToBytes(saved->state), ToBytes(Sane()));
  ASSERT_EQ(saved->pending.size(), 8u);
  for (const PendingCommand& pending : saved->pending) {
    EXPECT_EQ(pending.where, PendingCommand::kIdle);
  }
}

TEST(SavedQueueTest, shouldReadQueuesWithCommands) {
  std::vector<PendingCommand> pending(8);
  pending[2] = {PendingCommand::kNoChunk, 64, 77};
  pending[7] = {PendingCommand::kChunk0 + 9, 128, 76};
  const auto saved = ReadQueue(BytesOf(Sane(), pending), kStateVersion, kMaxEntries);
  ASSERT_TRUE(saved.ok()) << saved.status();
  ASSERT_EQ(saved->pending.size(), 8u);
  for (size_t slot = 0; slot < 8; ++slot) {
    EXPECT_EQ(ToBytes(saved->pending[slot]), ToBytes(pending[slot])) << slot;
  }
}

TEST(SavedQueueTest, shouldRefuseWhatIsNoQueue) {
  ExpectRefusal(BytesOf(Sane()), "48 bytes of state of version 2", kStateVersion + 1);
  ExpectRefusal(BytesOf(Sane()), "version 0", 0);
  for (const size_t bytes : {0, 1, 47}) {
    std::vector<uint8_t> state = BytesOf(Sane());
    state.resize(bytes);
    ExpectRefusal(state, std::to_string(bytes) + " bytes of state of version 1: 48 at least");
  }
}

TEST(SavedQueueTest, shouldRefuseCommandsThatAreNotOneForEachSlot) {
  for (const size_t extra : {1, 7, 8, 56, 63, 65, 72}) {
    std::vector<uint8_t> state = BytesOf(Sane());
    state.resize(state.size() + extra);
    ExpectRefusal(state, "bytes of commands " + std::to_string(extra));
  }
}

TEST(SavedQueueTest, shouldRefuseFieldsThatCouldNotBeUsed) {
  const auto refuses = [](void (*spoil)(QueueState&), const std::string& why) {
    QueueState state = Sane();
    spoil(state);
    ExpectRefusal(BytesOf(state), "the queue's state: " + why);
  };
  refuses([](QueueState& s) { s.phase = 0; }, "phase 0");
  refuses([](QueueState& s) { s.phase = 4; }, "phase 4");
  refuses([](QueueState& s) { s.entries = 0; }, "entries 0");
  refuses([](QueueState& s) { s.entries = 33; }, "entries 33");
  refuses([](QueueState& s) { s.entries = 0xffff; }, "entries 65535");
  refuses([](QueueState& s) { s.wrap = 0; }, "wrap 0");
  refuses([](QueueState& s) { s.wrap = 9; }, "wrap 9");
  refuses([](QueueState& s) { s.id = 65; }, "id 65");
  refuses([](QueueState& s) { s.id = 0xffff; }, "id 65535");
  refuses([](QueueState& s) { s.controller = 0; }, "controller 0");
  refuses([](QueueState& s) { s.phase = QueueState::kAccepted; }, "controller 5");
}

TEST(SavedQueueTest, shouldReadEveryPhase) {
  QueueState accepted = Sane();
  accepted.phase = QueueState::kAccepted;
  accepted.controller = 0;
  EXPECT_TRUE(ReadQueue(BytesOf(accepted), kStateVersion, kMaxEntries).ok());
  // Disconnected before it was anything.
  QueueState ending;
  ending.phase = QueueState::kEnding;
  const auto saved = ReadQueue(BytesOf(ending), kStateVersion, kMaxEntries);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_TRUE(saved->pending.empty());
  ending.id = 65;
  ExpectRefusal(BytesOf(ending), "id 65");
  ending.id = 0;
  ending.entries = 33;
  ExpectRefusal(BytesOf(ending), "entries 33");
}

TEST(SavedQueueTest, shouldReadTheLargestQueue) {
  QueueState state = Sane();
  state.entries = state.wrap = kMaxEntries;
  state.id = kMaxIoQueues;
  const auto saved = ReadQueue(BytesOf(state), kStateVersion, kMaxEntries);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->pending.size(), kMaxEntries);
}

TEST(SavedQueueTest, shouldKnowWhichSlotsMayBeHeld) {
  std::vector<PendingCommand> admin(8);
  ControllerState controller;
  EXPECT_TRUE(HoldsSlotsOf(controller, admin));
  EXPECT_TRUE(HoldsSlotsOf(controller, {}));
  controller.held_count = 2;
  controller.held[0] = {7, 1};
  controller.held[1] = {0, 2};
  controller.held[2] = {99, 3};  // not held
  EXPECT_TRUE(HoldsSlotsOf(controller, admin));
  controller.held[1].slot = 8;
  EXPECT_FALSE(HoldsSlotsOf(controller, admin)) << "beyond the queue";
  controller.held[1].slot = 7;
  EXPECT_FALSE(HoldsSlotsOf(controller, admin)) << "twice";
  controller.held[1].slot = 0;
  admin[0].where = PendingCommand::kNoChunk;
  EXPECT_FALSE(HoldsSlotsOf(controller, admin)) << "of another command";
  admin[0].where = PendingCommand::kIdle;
  controller.held_count = kMaxHeldEvents + 1;
  EXPECT_FALSE(HoldsSlotsOf(controller, admin)) << "too many";
}

TEST(SavedQueueTest, shouldOrderCommandsAsTheyArrivedAlsoWhereNumbersBeginAnew) {
  const std::vector<uint32_t> arrived = {0xfffffff0, 0xfffffffe, 0xffffffff, 0, 1, 0x100};
  for (const uint32_t any : arrived) {
    std::vector<uint32_t> orders = arrived;
    std::reverse(orders.begin(), orders.end());
    std::sort(orders.begin(), orders.end(),
              [any](uint32_t a, uint32_t b) { return ComesBefore(a, b, any); });
    EXPECT_EQ(orders, arrived) << any;
  }
}

// A sort by an order that contradicts itself may read and write anywhere.
TEST(SavedQueueTest, shouldOrderAnyNumbersWithoutContradiction) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    // Often near half of all numbers apart.
    const auto number = [&] { return (random() % 4 << 30) + random() % 3; };
    const auto a = static_cast<uint32_t>(number()), b = static_cast<uint32_t>(number()),
               c = static_cast<uint32_t>(number()), any = static_cast<uint32_t>(number());
    ASSERT_FALSE(ComesBefore(a, a, any));
    ASSERT_TRUE(a == b || ComesBefore(a, b, any) != ComesBefore(b, a, any));
    ASSERT_TRUE(!ComesBefore(a, b, any) || !ComesBefore(b, c, any) || ComesBefore(a, c, any));
  }
}

}  // namespace
}  // namespace baton::nvmed
