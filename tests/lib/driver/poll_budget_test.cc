// One poll of a completion queue that has much to tell: how far it goes, and when it publishes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "lib/arena/arena.h"
#include "lib/driver/ownership.h"
#include "lib/driver/queue_driver.h"
#include "tests/lib/driver/commit_writer.h"
#include "tests/lib/driver/scripted_device.h"

namespace baton::driver {
namespace {

using testing::CommitWriter;
using ::testing::ElementsAre;
using testing::ScriptedDevice;

class Observer : public DriverObserver {
  void OnConnectionState(uint32_t, std::string_view) override {}
  void OnRefusedConnection(std::string_view) override {}
};

// A connection with many sends outstanding, which all complete at once.
class PollBudgetTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kSends = 500;

  void SetUp() override {
    driver = QueueDriver::Create(&arena, &device, &observer).value();
    Ownership(&arena, 0).Grant(0, 1);
    CommitWriter writer(&arena, 0);
    writer.Begin(1);
    const uint32_t connection = driver->Connect(0, {"10.0.0.2", 2}, "", 7).value();
    device.Tell(verbs::CmEventType::kEstablished,
                driver->objects()->connections[connection].id.get());
    uint32_t shard;
    ASSERT_TRUE(driver->HandleEvent(&shard));
    for (uint32_t i = 0; i < kSends; ++i) writer.Send(connection, 0, 8);
    writer.Publish();
    absl::Status error;
    ASSERT_EQ(driver->ApplyNext(0, &error), CommitOutcome::kApplied) << error;
    for (uint32_t i = 0; i < kSends; ++i) {
      device.Complete(arena.connection(connection).qp_number, false);
    }
    before = arena.shard(0).completion_tail;
  }
  uint64_t published() const { return arena.shard(0).completion_tail - before; }
  void Recover() {
    const auto objects = driver->objects();
    driver.reset();
    driver = QueueDriver::Recover(&arena, &device, &observer, objects).value();
  }

  Observer observer;
  ScriptedDevice device;
  arena::Arena arena = arena::Arena::Create(testing::TestShape(1, 4, 512), "kv").value();
  std::unique_ptr<QueueDriver> driver;
  uint64_t before = 0;
};

TEST_F(PollBudgetTest, shouldEndBeforeTheQueueIsEmpty) {
  EXPECT_EQ(driver->PollCompletions(0), absl::StatusOr<bool>(true));
  EXPECT_EQ(published(), 256u);
  EXPECT_EQ(driver->PollCompletions(0), absl::StatusOr<bool>(true));
  EXPECT_EQ(published(), kSends);
  EXPECT_EQ(driver->PollCompletions(0), absl::StatusOr<bool>(false));
}

TEST_F(PollBudgetTest, shouldPublishWhatItHasBeforeItTakesMore) {
  std::vector<uint64_t> seen;
  device.when_polled = [&] { seen.push_back(published()); };
  ASSERT_TRUE(driver->PollCompletions(0).ok());
  EXPECT_THAT(seen, ElementsAre(0, 64, 128, 192));
}

// It decides by the completions what it posts.
TEST_F(PollBudgetTest, shouldNotEndARecoveryBeforeTheQueueIsEmpty) {
  Recover();
  EXPECT_EQ(published(), kSends);
}

TEST_F(PollBudgetTest, shouldTellEverythingBeforeADeviceIsGivenUp) {
  driver->EndAll("it is gone");
  driver->GiveUp(0, "it is gone");
  EXPECT_EQ(published(), kSends + 1);
  EXPECT_TRUE(driver->AllEnded());
}

}  // namespace
}  // namespace baton::driver
