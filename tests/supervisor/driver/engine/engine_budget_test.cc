// The engine goes on with everything in each turn of a flood. Turns are counted, and not timed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/verbs/soft/soft_device.h"
#include "supervisor/driver/engine/engine.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/verbs/forwarding_device.h"
#include "tests/lib/verbs/silent_connection_id.h"

namespace baton::driver_process {
namespace {

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
  verbs::testing::SilentConnectionId id_;
};

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
