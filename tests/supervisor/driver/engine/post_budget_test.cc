#include "supervisor/driver/engine/post_budget.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <optional>
#include <string>

#include "lib/verbs/soft/soft_device.h"
#include "supervisor/driver/engine/engine.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::driver_process {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

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
  EXPECT_EQ(budget.NanosecondsToWait(0, 0), kSecondNs / 100);
  EXPECT_EQ(budget.NanosecondsToWait(0, kSecondNs / 100), 0u);
  // However long nobody posts.
  EXPECT_EQ(budget.NanosecondsToWait(0, 1000 * kSecondNs), 0u);
  budget.Take(0, 10);
  EXPECT_NE(budget.NanosecondsToWait(0, 1000 * kSecondNs), 0u);
}

TEST(PostBudgetTest, shouldLetALargeTransactionPassAndHoldBackWhatFollows) {
  PostBudget budget(10, 0, 1, 0);
  budget.Take(0, 6);  // with one in the bucket
  EXPECT_EQ(budget.NanosecondsToWait(0, 0), 6 * kSecondNs / 10);
  EXPECT_NE(budget.NanosecondsToWait(0, kSecondNs / 2), 0u);
  EXPECT_EQ(budget.NanosecondsToWait(0, 6 * kSecondNs / 10), 0u);
}

TEST(PostBudgetTest, shouldHoldNobodyBackForMuchMoreThanASecond) {
  PostBudget budget(10, 0, 1, 0);
  for (int i = 0; i < 100; ++i) budget.Take(0, 4096);
  EXPECT_EQ(budget.NanosecondsToWait(0, 0), 11 * kSecondNs / 10);
}

TEST(PostBudgetTest, shouldCountForTheWorkerAndForTheService) {
  PostBudget budget(100, 10, 2, 0);
  budget.Take(0, 2);
  EXPECT_EQ(budget.NanosecondsToWait(0, 0), 2 * kSecondNs / 10);
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

  static arena::Shape Shape() {
    arena::Shape shape = driver::testing::TestShape();
    shape.shared_receive_queue_depth = 64;
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

  uint64_t now = kSecondNs;
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
  now += kSecondNs * 4 / 10;
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

}  // namespace
}  // namespace baton::driver_process
