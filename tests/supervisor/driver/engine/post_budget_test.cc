#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "lib/verbs/soft/soft_device.h"
#include "supervisor/driver/engine/engine.h"
#include "supervisor/driver/engine/post_budget.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/lib/verbs/fake_device.h"
#include "tests/lib/verbs/forwarding_device.h"

namespace baton::driver_process {
namespace {

constexpr uint64_t kNsPerSecond = 1'000'000'000;

TEST(PostBudgetTest, shouldLetEverythingPassWithoutARate) {
  PostBudget budget(0, 0, 1, 5);
  budget.Take(0, 1 << 30);
  EXPECT_EQ(budget.NanosecondsToWait(0, 5), 0u);
}

TEST(PostBudgetTest, shouldBeginWithATenthOfASecond) {
  PostBudget budget(100, 0, 1, 0);
  budget.Take(0, 9);
  EXPECT_EQ(budget.NanosecondsToWait(0, 0), 0u);
  budget.Take(0, 1);
  EXPECT_EQ(budget.NanosecondsToWait(0, 0), kNsPerSecond / 100);
  EXPECT_EQ(budget.NanosecondsToWait(0, kNsPerSecond / 100), 0u);
  // However long nobody posts.
  EXPECT_EQ(budget.NanosecondsToWait(0, 1000 * kNsPerSecond), 0u);
  budget.Take(0, 10);
  EXPECT_NE(budget.NanosecondsToWait(0, 1000 * kNsPerSecond), 0u);
}

TEST(PostBudgetTest, shouldLetALargeTransactionPassAndHoldBackWhatFollows) {
  PostBudget budget(10, 0, 1, 0);
  budget.Take(0, 6);  // with one in the bucket
  EXPECT_EQ(budget.NanosecondsToWait(0, 0), 6 * kNsPerSecond / 10);
  EXPECT_NE(budget.NanosecondsToWait(0, kNsPerSecond / 2), 0u);
  EXPECT_EQ(budget.NanosecondsToWait(0, 6 * kNsPerSecond / 10), 0u);
}

TEST(PostBudgetTest, shouldHoldNobodyBackForMuchMoreThanASecond) {
  PostBudget budget(10, 0, 1, 0);
  for (int i = 0; i < 100; ++i) budget.Take(0, 4096);
  EXPECT_EQ(budget.NanosecondsToWait(0, 0), 11 * kNsPerSecond / 10);
}

TEST(PostBudgetTest, shouldCountForTheWorkerAndForTheService) {
  PostBudget budget(100, 10, 2, 0);
  budget.Take(0, 2);
  EXPECT_EQ(budget.NanosecondsToWait(0, 0), 2 * kNsPerSecond / 10);
  EXPECT_EQ(budget.NanosecondsToWait(1, 0), 0u);
  budget.Refill(0, 0);
  EXPECT_EQ(budget.NanosecondsToWait(0, 0), 0u);
  budget.Take(1, 11);  // more than the service has left
  EXPECT_NE(budget.NanosecondsToWait(0, 0), 0u);
}

// An engine that was not started, with a time of its own, and the owner of its one shard. Shared
// receives need no peer.
class PostRateTest : public ::testing::Test, private EngineListener {
 protected:
  PostRateTest() {
    EngineOptions options;
    options.nanoseconds = [this] { return now; };
    engine = Engine::Create(&arena, device.get(), this, options).value();
    Add(0, 1);
    Add(1, 2);
    EXPECT_EQ(engine->succession().owner(0).worker_id, 1u);
    writer.Begin(1);
  }

  static constexpr uint32_t kBufferBytes = 400 << 10;

  static arena::Shape Shape() {
    arena::Shape shape = driver::testing::TestShape();
    shape.shared_receive_queue_depth = 64;
    shape.buffer_bytes = kBufferBytes;
    shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
    return shape;
  }
  void Add(uint32_t slot, uint64_t id) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    wakes[slot].Reset(pair[0]);
    engine->AddWorker(slot, id, FileDescriptor(pair[1]));
    engine->succession().SetReady(slot);
  }
  // Commits a transaction of so many.
  void Post(uint16_t count) {
    for (uint16_t i = 0; i < count; ++i) writer.SharedReceive(next++, 0, 64);
    writer.Publish();
  }
  uint64_t Posted() {
    while (engine->Turn()) {
    }
    return engine->counters(0).receives_posted;
  }

  uint64_t now = kNsPerSecond;
  arena::Arena arena = arena::Arena::Create(Shape(), "kv").value();
  std::unique_ptr<verbs::Device> device = verbs::soft::CreateSoftDevice({}).value();
  std::unique_ptr<Engine> engine;
  FileDescriptor wakes[2];
  driver::testing::CommitWriter writer{&arena, 0};
  uint16_t next = 0;

 private:
  void OnEvent(std::string_view, const std::string&, uint64_t, int, int) override {}
  void OnFenced(uint64_t) override { ADD_FAILURE() << "a valid transaction was refused"; }
  void OnDeviceLost(const absl::Status&) override {}
};

TEST_F(PostRateTest, shouldPostEverythingAtOnceWithoutARate) {
  for (int i = 0; i < 4; ++i) Post(8);
  EXPECT_EQ(Posted(), 32u);
}

TEST_F(PostRateTest, shouldHaveWaitWhatIsMoreAndLoseNothing) {
  engine->SetPostRates(10, 0);
  Post(4);
  Post(4);
  Post(4);
  EXPECT_EQ(Posted(), 4u);
  EXPECT_TRUE(engine->BeginSleep());  // nobody is busy with what waits
  engine->EndSleep();
  now += kNsPerSecond * 4 / 10;
  EXPECT_FALSE(engine->BeginSleep());
  engine->EndSleep();
  EXPECT_EQ(Posted(), 8u);
  engine->SetPostRates(0, 0);  // raised: at once
  EXPECT_EQ(Posted(), 12u);
}

TEST_F(PostRateTest, shouldHoldBackTheWorkerThatHasHadItsShare) {
  engine->SetPostRates(0, 10);
  Post(4);
  Post(4);
  EXPECT_EQ(Posted(), 4u);
  engine->SetPostRates(10, 0);
  EXPECT_EQ(Posted(), 8u);
}

TEST_F(PostRateTest, shouldKeepNoSuccessorWaitingForWhatTheDeadHadCommitted) {
  engine->SetPostRates(10, 10);
  for (int i = 0; i < 4; ++i) Post(4);
  EXPECT_EQ(Posted(), 4u);
  engine->succession().WorkerDead(0, 1);
  EXPECT_EQ(engine->counters(0).receives_posted, 16u);
  EXPECT_EQ(engine->succession().owner(0).worker_id, 2u);
}

TEST_F(PostRateTest, shouldKeepNoHandoffWaiting) {
  engine->SetPostRates(10, 10);
  for (int i = 0; i < 4; ++i) Post(4);
  writer.Release();
  writer.Publish();
  EXPECT_EQ(Posted(), 4u);
  engine->succession().Handoff(0, 1, nullptr);
  EXPECT_EQ(Posted(), 16u);
  EXPECT_EQ(engine->succession().owner(0).worker_id, 2u);
}

// Where the device sends within the call that posts, nobody learns meanwhile which memory is free.
TEST_F(PostRateTest, shouldSendNoMoreThanAMebibyteAndATransactionInATurn) {
  driver::testing::RawPeer peer;
  peer.Connect(engine->Listen({"127.0.0.1", 0}).value().port);
  const auto turn = [&] {
    engine->Turn();
    peer.Turn();
  };
  const auto has = [&](arena::ConnectionState state) {
    return arena.connection(0).state == static_cast<uint32_t>(state);
  };
  ASSERT_TRUE(driver::testing::Pump(turn, [&] { return has(arena::ConnectionState::kRequested); }));
  writer.Accept(0, 0);
  writer.Publish();
  ASSERT_TRUE(driver::testing::Pump(
      turn, [&] { return peer.established && has(arena::ConnectionState::kEstablished); }));
  for (uint64_t i = 0; i < 5; ++i) {
    writer.Connection(0).send_end = i;  // those before are not applied yet
    writer.Send(0, 0, kBufferBytes);
    writer.Publish();
  }
  engine->Turn();
  EXPECT_EQ(engine->counters(0).bytes_sent, 3 * kBufferBytes);
  engine->Turn();
  EXPECT_EQ(engine->counters(0).bytes_sent, 5 * kBufferBytes);
}

// Has as many events and completions as its test says. None is of a connection.
class FloodedDevice final : public verbs::testing::ForwardingDevice {
 public:
  FloodedDevice() : ForwardingDevice(verbs::soft::CreateSoftDevice({}).value()) {}

  absl::StatusOr<std::unique_ptr<verbs::CompletionQueue>> CreateCompletionQueue(uint32_t) override {
    return std::make_unique<Queue>(&completions[queues_++]);
  }
  bool NextEvent(verbs::CmEvent* event) override {
    if (events == 0) return false;
    --events;
    *event = {};
    event->type = verbs::CmEventType::kEstablished;
    event->id = &id_;
    return true;
  }
  bool NextDeviceEvent(verbs::DeviceEvent* event) override {
    if (device_events == 0) return false;
    --device_events;
    *event = {};
    event->type = verbs::DeviceEventType::kPathMigrated;
    return true;
  }

  std::array<uint32_t, 2> completions = {};  // left, by shard
  uint32_t events = 0, device_events = 0;    // left

 private:
  class Queue final : public verbs::CompletionQueue {
   public:
    explicit Queue(uint32_t* left) : left_(left) {}
    absl::StatusOr<int> Poll(absl::Span<verbs::Completion> completions) override {
      const uint32_t count = std::min(static_cast<uint32_t>(completions.size()), *left_);
      for (uint32_t i = 0; i < count; ++i) completions[i] = verbs::Completion{.wr_id = kNobodys};
      *left_ -= count;
      return static_cast<int>(count);
    }
    absl::Status RequestNotification() override { return absl::OkStatus(); }

   private:
    static constexpr uint64_t kNobodys = ~uint64_t{0} - 1;
    uint32_t* const left_;
  };

  size_t queues_ = 0;
  verbs::testing::FakeConnectionId id_;
};

// The engine goes on with everything in each turn of a flood. Turns are counted, and not timed.
class EngineBudgetTest : public ::testing::Test, private EngineListener {
 protected:
  void SetUp() override {
    engine = Engine::Create(&arena, &device, this, {}).value();  // not started: turns are counted
  }
  void OnEvent(std::string_view, const std::string&, uint64_t, int, int) override {}
  void OnFenced(uint64_t) override {}
  void OnDeviceLost(const absl::Status&) override {}

  FloodedDevice device;
  arena::Arena arena = arena::Arena::Create(driver::testing::TestShape(2), "kv").value();
  std::unique_ptr<Engine> engine;
};

TEST_F(EngineBudgetTest, shouldServeEveryShardInEachTurnOfAFlood) {
  constexpr uint32_t kMany = 10'000, kPerTurn = 256;
  device.completions = {kMany, 1};
  for (uint32_t turns = 1; turns * kPerTurn < kMany; ++turns) {
    ASSERT_TRUE(engine->Turn());
    ASSERT_EQ(device.completions[0], kMany - turns * kPerTurn);
    ASSERT_EQ(device.completions[1], 0u);
  }
  EXPECT_TRUE(engine->Turn());
  EXPECT_EQ(device.completions[0], 0u);
  EXPECT_FALSE(engine->Turn());
}

TEST_F(EngineBudgetTest, shouldNotSleepInAFlood) {
  device.completions[0] = 1000;
  EXPECT_FALSE(engine->BeginSleep());
  engine->EndSleep();
  EXPECT_GT(device.completions[0], 0u);
}

TEST_F(EngineBudgetTest, shouldPollInEachTurnOfAFloodOfEvents) {
  constexpr uint32_t kPerTurn = 64;
  for (uint32_t* const flood : {&device.events, &device.device_events}) {
    *flood = 10 * kPerTurn;
    for (uint32_t turn = 1; turn <= 10; ++turn) {
      device.completions[1] = 1;
      ASSERT_TRUE(engine->Turn());
      ASSERT_EQ(*flood, (10 - turn) * kPerTurn);
      ASSERT_EQ(device.completions[1], 0u);
    }
    EXPECT_FALSE(engine->Turn());
  }
}

}  // namespace
}  // namespace baton::driver_process
