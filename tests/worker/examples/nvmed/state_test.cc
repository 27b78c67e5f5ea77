// Another version of the program reads these very bytes of what outlives a worker. Saved queues are
// refused where they make no sense, and else keep the order of what waited.
#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/examples/nvmed/hex.h"
#include "worker/examples/nvmed/state.h"

namespace baton::nvmed {
namespace {

using testing::HasSubstr;

std::vector<uint8_t> Zeroes(size_t count) { return std::vector<uint8_t>(count); }

std::vector<uint8_t> Join(const std::vector<std::vector<uint8_t>>& pieces) {
  std::vector<uint8_t> all;
  for (const auto& piece : pieces) all.insert(all.end(), piece.begin(), piece.end());
  return all;
}

// A change of what follows needs another number here, or programs misread each other.
TEST(StateTest, shouldBeOfVersionOne) { EXPECT_EQ(kStateVersion, 1u); }

TEST(StateTest, shouldKeepTheFormatOfTheRegistry) {
  RegistryHeader header;
  header.controllers = 0x04030201;
  header.last_id = 0x0605;
  header.namespaces_hash = 0x100f0e0d0c0b0a09;
  EXPECT_EQ(ToBytes(header), Hex("01 02 03 04 05 06 00 00 09 0a 0b 0c 0d 0e 0f 10"));
}

TEST(StateTest, shouldKeepTheFormatOfControllers) {
  ControllerState controller;
  controller.id = 0x0201;
  controller.discovery = 0x03;
  controller.ending = 0x04;
  controller.configuration = 0x08070605;
  controller.status = 0x0c0b0a09;
  controller.keep_alive_ms = 0x100f0e0d;
  controller.deadline = 0x1817161514131211;
  controller.admin_connection = 0x1c1b1a19;
  controller.admin_generation = 0x201f1e1d;
  controller.granted_queues = 0x24232221;
  controller.event_configuration = 0x28272625;
  controller.queues = 0x302f2e2d2c2b2a29;
  controller.errors = 0x3837363534333231;
  controller.namespaces_changed = 0x3c3b3a39;
  controller.held_count = 0x403f3e3d;
  controller.held[0] = {0x4241, 0x4443};
  controller.held[3] = {0x4645, 0x4847};
  ErrorRecord& error = controller.error_log[1];
  error.count = 0x5857565554535251;
  error.lba = 0x605f5e5d5c5b5a59;
  error.nsid = 0x64636261;
  error.queue_id = 0x6665;
  error.command_id = 0x6867;
  error.status = 0x6a69;
  error.parameter = 0x6c6b;
  for (size_t i = 0; i < sizeof(controller.host_id); ++i) {
    controller.host_id[i] = static_cast<uint8_t>(0xf0 + i);
  }
  std::strcpy(controller.host_nqn, "abc");
  std::strcpy(controller.subsystem_nqn, "de");
  controller.reads = 0x7877767574737271;
  controller.writes = 0x807f7e7d7c7b7a79;
  controller.blocks_read = 0x8887868584838281;
  controller.blocks_written = 0x908f8e8d8c8b8a89;

  EXPECT_EQ(ToBytes(controller), Join({Hex("01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f 10"
                                           "11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f 20"
                                           "21 22 23 24 25 26 27 28 29 2a 2b 2c 2d 2e 2f 30"
                                           "31 32 33 34 35 36 37 38 39 3a 3b 3c 3d 3e 3f 40"
                                           "41 42 43 44 00 00 00 00 00 00 00 00 45 46 47 48"),
                                       Zeroes(32),  // of the error log
                                       Hex("51 52 53 54 55 56 57 58 59 5a 5b 5c 5d 5e 5f 60"
                                           "61 62 63 64 65 66 67 68 69 6a 6b 6c 00 00 00 00"),
                                       Zeroes(64),
                                       Hex("f0 f1 f2 f3 f4 f5 f6 f7 f8 f9 fa fb fc fd fe ff"
                                           "61 62 63"),
                                       Zeroes(221), Hex("64 65"), Zeroes(222),
                                       Hex("71 72 73 74 75 76 77 78 79 7a 7b 7c 7d 7e 7f 80"
                                           "81 82 83 84 85 86 87 88 89 8a 8b 8c 8d 8e 8f 90")}));
}

TEST(StateTest, shouldKeepTheFormatOfQueues) {
  QueueState queue;
  queue.controller = 0x0201;
  queue.id = 0x0403;
  queue.entries = 0x0605;
  queue.head = 0x0807;
  queue.phase = 0x09;
  queue.no_flow_control = 0x0a;
  queue.wrap = 0x0c0b;
  queue.reads = 0x1817161514131211;
  queue.writes = 0x201f1e1d1c1b1a19;
  queue.blocks_read = 0x2827262524232221;
  queue.blocks_written = 0x302f2e2d2c2b2a29;
  EXPECT_EQ(ToBytes(queue), Hex("01 02 03 04 05 06 07 08 09 0a 0b 0c 00 00 00 00"
                                "11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f 20"
                                "21 22 23 24 25 26 27 28 29 2a 2b 2c 2d 2e 2f 30"));
  EXPECT_EQ(QueueState::kAccepted, 1);
  EXPECT_EQ(QueueState::kConnected, 2);
  EXPECT_EQ(QueueState::kEnding, 3);
}

TEST(StateTest, shouldKeepTheFormatOfPendingCommands) {
  const PendingCommand pending = {0x0201, 0x0403, 0x08070605};
  EXPECT_EQ(ToBytes(pending), Hex("01 02 03 04 05 06 07 08"));
  EXPECT_EQ(PendingCommand::kIdle, 0);
  EXPECT_EQ(PendingCommand::kNoChunk, 1);
  EXPECT_EQ(PendingCommand::kChunk0, 2);
}

TEST(StateTest, shouldKeepTheLimitsThatAreInIt) {
  EXPECT_EQ(kMaxQueueEntries, 1024u);
  EXPECT_EQ(kMaxIoQueues, 64u);  // as many as the bits of ControllerState::queues
  EXPECT_EQ(kNqnBytes, 224u);
  EXPECT_EQ(kMaxHeldEvents, 4u);
  EXPECT_EQ(kErrorEntries, 4u);
}

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
