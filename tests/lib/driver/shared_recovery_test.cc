// Shared receives of a driver that is killed, of a device that refuses them, and of connections
// that end while the device still holds one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/driver/queue_driver.h"
#include "tests/harness/stopped_clock.h"
#include "tests/lib/driver/scripted_driver_fixture.h"

namespace baton::driver {
namespace {

using arena::CompletionEntry;
using arena::CompletionKind;
using arena::ConnectionState;
using arena::SharedReceiveState;
using testing::DriverDied;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using verbs::CompletionStatus;
using verbs::DeviceEventType;

class SharedRecoveryTest : public testing::ScriptedDriverTest {
 protected:
  static constexpr uint32_t kDepth = 8;

  void SetUp() override {
    arena::Shape shape = testing::TestShape();
    shape.shared_receive_queue_depth = kDepth;
    shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
    Start(shape);
    one = Established();
    two = Established();
  }

  uint32_t Qp(uint32_t connection) { return arena->connection(connection).qp_number; }

  void Stage(std::initializer_list<uint16_t> slots) {
    for (const uint16_t slot : slots) writer->SharedReceive(slot, slot * 64u, 64);
  }
  CommitOutcome Commit() {
    writer->Publish();
    return Apply();
  }
  void Post(std::initializer_list<uint16_t> slots) {
    Stage(slots);
    ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  }
  void Acknowledge() {
    writer->Acknowledge(read);
    ASSERT_EQ(Commit(), CommitOutcome::kApplied) << error;
  }
  // Applying what is open kills the driver after so many requests of its first post.
  void DieAfterPosting(int count) {
    device.die_after_posting = count;
    EXPECT_THROW(Commit(), DriverDied);
  }
  // The driver dies when it has posted so many of `slots`, and another recovers.
  void RecoverFrom(std::initializer_list<uint16_t> slots, int posted) {
    Stage(slots);
    DieAfterPosting(posted);
    Recover();
  }
  void HandleDeviceEvent(DeviceEventType type, uint32_t queue_pair = 0) {
    verbs::DeviceEvent event;
    event.type = type;
    event.qp_number = queue_pair;
    if (queue_pair == 0) event.shared_receive_queue = device.shared_queue;
    event.text = "told";
    device.Report(event);
    local->TurnManager();
    HandleNotices();
  }

  std::string Describe(const CompletionEntry& entry, const std::string& status) const override {
    switch (CompletionKind(entry.kind)) {
      case CompletionKind::kReceive:
        return absl::StrCat("receive in ", entry.sequence, " of ", entry.connection, status);
      case CompletionKind::kEstablished:
        return absl::StrCat("established ", entry.connection);
      default:
        return absl::StrCat("end of ", entry.connection, status);
    }
  }
  // At the device, oldest first.
  std::vector<uint32_t> Slots() {
    std::vector<uint32_t> slots;
    for (const auto& posted : device.shared()) {
      slots.push_back(arena::SharedReceiveSlot(posted.wr_id));
    }
    return slots;
  }
  SharedReceiveState StateAt(uint32_t slot) {
    return arena::StateOf(arena->shared_receive(0, slot));
  }
  const arena::ShardRecord& shard() { return arena->shard(0); }
  ConnectionState state(uint32_t connection) {
    return ConnectionState(arena->connection(connection).state);
  }

  uint32_t one = 0, two = 0;
};

// ---- Any order.

TEST_F(SharedRecoveryTest, shouldLogCompletionsInTheOrderInWhichTheyCome) {
  Post({0, 1, 2, 3});
  device.CompleteShared(Qp(two), 2, "c");
  device.CompleteShared(Qp(one), 0, "a");
  device.CompleteShared(Qp(two), 1, "d");
  Poll();
  EXPECT_THAT(ReadAll(),
              ElementsAre("receive in 2 of 1", "receive in 0 of 0", "receive in 3 of 1"));
  EXPECT_THAT(Slots(), ElementsAre(1));
  EXPECT_EQ(shard().shared_receives_posted, 1u);
}

// ---- A driver dies.

TEST_F(SharedRecoveryTest, shouldNotPostAgainWhatItsPredecessorMayHavePosted) {
  RecoverFrom({0, 1}, 0);
  // The first is never posted again: nobody knows. The second was not reached.
  EXPECT_THAT(Slots(), ElementsAre(1));
  EXPECT_EQ(StateAt(0), SharedReceiveState::kAttempted);
  EXPECT_EQ(StateAt(1), SharedReceiveState::kPosted);
  EXPECT_EQ(shard().shared_receives_posted, 1u);
  EXPECT_EQ(shard().shared_receives_unsure, 1u);
  EXPECT_EQ(driver->recovery().shared_receives_ambiguous, 1u);
  EXPECT_EQ(driver->recovery().transactions_resumed, 1u);
}

TEST_F(SharedRecoveryTest, shouldDeliverWhatItsPredecessorPostedUnseen) {
  RecoverFrom({0, 1}, 1);
  EXPECT_THAT(Slots(), ElementsAre(0, 1));
  device.CompleteShared(Qp(two), 0, "x");
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("receive in 0 of 1"));
  EXPECT_EQ(shard().shared_receives_unsure, 0u);
  EXPECT_EQ(shard().shared_receives_posted, 1u);
  Acknowledge();
  EXPECT_EQ(StateAt(0), SharedReceiveState::kFree);
}

// ---- A device that says what is queued.

TEST_F(SharedRecoveryTest, shouldPostWhatItsPredecessorHasNot) {
  device.answers = true;
  RecoverFrom({0, 1}, 0);
  EXPECT_THAT(Slots(), ElementsAre(0, 1));
  EXPECT_EQ(StateAt(0), SharedReceiveState::kPosted);
  EXPECT_EQ(shard().shared_receives_posted, 2u);
  EXPECT_EQ(shard().shared_receives_unsure, 0u);
  EXPECT_EQ(driver->recovery().answers, 1u);
  const ShardCounters& counters = driver->counters(0);
  EXPECT_EQ(counters.receives_committed, 2u);
  EXPECT_EQ(counters.receives_posted, 2u);
  device.CompleteShared(Qp(one), 0, "a");
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("receive in 0 of 0"));
}

TEST_F(SharedRecoveryTest, shouldNotPostWhatItsPredecessorHas) {
  device.answers = true;
  for (const bool completed : {false, true}) {
    Stage({0, 1});
    DieAfterPosting(1);
    if (completed) device.CompleteShared(Qp(one), 0, "a");
    Recover();
    Recover();
    EXPECT_EQ(Slots(), completed ? std::vector<uint32_t>{1} : (std::vector<uint32_t>{0, 1}));
    while (!device.shared().empty()) device.CompleteShared(Qp(one), 0, "b");
    Poll();
    EXPECT_THAT(ReadAll(), ElementsAre("receive in 0 of 0", "receive in 1 of 0"));
    Acknowledge();
  }
}

// Its completion was taken from the queue by a driver that died before it had logged it.
TEST_F(SharedRecoveryTest, shouldNotPostWhatHasCompletedAndIsNotLogged) {
  device.answers = true;
  for (const PollDeath death :
       {PollDeath::kBeforeTaking, PollDeath::kHalfWritten, PollDeath::kAfterTaking}) {
    Stage({0, 1});
    DieAfterPosting(1);
    device.CompleteShared(Qp(one), 0, "a");
    DiePolling(death);
    Recover();
    EXPECT_THAT(ReadAll(), ElementsAre("receive in 0 of 0"));
    EXPECT_THAT(Slots(), ElementsAre(1));
    EXPECT_EQ(shard().shared_receives_posted, 1u);
    device.CompleteShared(Qp(one), 0, "b");
    Poll();
    EXPECT_THAT(ReadAll(), ElementsAre("receive in 1 of 0"));
    Acknowledge();
  }
}

// An owner that lives has counted on it.
TEST_F(SharedRecoveryTest, shouldLeaveUnsureWhatAnOwnerHasSeenUnsure) {
  RecoverFrom({0, 1, 2}, 0);
  EXPECT_EQ(shard().shared_receives_unsure, 1u);
  device.answers = true;
  RecoverFrom({3}, 0);
  EXPECT_THAT(Slots(), ElementsAre(1, 2));
  EXPECT_EQ(shard().shared_receives_unsure, 2u);
}

// The whole window was named. The room for what is sure is that of an owner that saw none unsure.
TEST_F(SharedRecoveryTest, shouldFillItsWindowAgain) {
  device.answers = true;
  for (uint16_t i = 0; i < kDepth; ++i) writer->SharedReceive(i, i * 64u, 64);
  DieAfterPosting(0);
  device.when_polled = [&] { EXPECT_EQ(shard().shared_receives_unsure, 0u); };
  Recover();
  EXPECT_EQ(shard().shared_receives_posted, kDepth);
  Stage({kDepth});
  EXPECT_EQ(Commit(), CommitOutcome::kInvalid);
}

TEST_F(SharedRecoveryTest, shouldTakeAQueueForBrokenThatMakesNoSense) {
  device.answers = device.is_confused = true;
  RecoverFrom({0, 1}, 0);
  EXPECT_THAT(ReadAll(), ElementsAre("end of 0 general error", "end of 1 general error"));
  EXPECT_THAT(observer.states.back(), HasSubstr("out of use or unknown"));
}

// What is only maybe posted leaves its place in the window to others.
TEST_F(SharedRecoveryTest, shouldNotCountWhatIsUnsureAsPosted) {
  for (uint16_t i = 0; i < kDepth; ++i) writer->SharedReceive(i, i * 64u, 64);
  DieAfterPosting(0);
  Recover();
  EXPECT_EQ(shard().shared_receives_posted, kDepth - 1);
  Post({kDepth});
  EXPECT_EQ(shard().shared_receives_posted, kDepth);
  Stage({kDepth + 1});
  EXPECT_EQ(Commit(), CommitOutcome::kInvalid);
}

TEST_F(SharedRecoveryTest, shouldLogOnceWhatItsPredecessorHadTakenFromTheQueue) {
  for (const PollDeath death :
       {PollDeath::kBeforeTaking, PollDeath::kHalfWritten, PollDeath::kAfterTaking}) {
    Post({0, 1, 2});
    device.CompleteShared(Qp(one), 0, "a");
    device.CompleteShared(Qp(two), 1, "c");
    DiePolling(death);
    Recover();
    EXPECT_THAT(ReadAll(), ElementsAre("receive in 0 of 0", "receive in 2 of 1"));
    EXPECT_THAT(Slots(), ElementsAre(1));
    device.CompleteShared(Qp(one), 0, "b");
    Poll();
    EXPECT_THAT(ReadAll(), ElementsAre("receive in 1 of 0"));
    Acknowledge();
    EXPECT_EQ(shard().shared_receives_posted, 0u);
  }
}

// A slot is used again and again: what one use of it left is not taken for the next one's.
TEST_F(SharedRecoveryTest, shouldNotTakeACompletionForThatOfALaterUse) {
  for (int round = 0; round < 300; ++round) {
    Post({3});
    ASSERT_EQ(arena::GenerationOf(arena->shared_receive(0, 3)),
              arena::WrIdGeneration(device.shared().back().wr_id));
    device.CompleteShared(Qp(one), 0, "x");
    Poll();
    ASSERT_THAT(ReadAll(), ElementsAre("receive in 3 of 0"));
    Acknowledge();
  }
  const uint64_t stale = arena->completion(0, read - 1).wr_id;
  Post({3});
  auto* const slots = reinterpret_cast<verbs::Completion*>(arena->poll_slots(0));
  slots[0] = {};
  slots[0].wr_id = stale;
  slots[0].qp_number = Qp(one);
  Recover();
  EXPECT_THAT(ReadAll(), IsEmpty());
  EXPECT_EQ(StateAt(3), SharedReceiveState::kPosted);
}

// Its predecessor had destroyed the queue pair, and died before it looked what that had completed.
TEST_F(SharedRecoveryTest, shouldDeliverWhatADestroyedQueuePairHadReceived) {
  Post({0, 1});
  device.CompleteShared(Qp(one), 0, "a");
  arena->connection(one).state = static_cast<uint32_t>(ConnectionState::kDraining);
  arena->connection(one).abandoned = 1;
  driver->objects()->connections[one].id.reset();
  driver->objects()->connections[one].queue_pair.reset();
  Recover();
  EXPECT_EQ(Read(), "receive in 0 of 0");
}

TEST_F(SharedRecoveryTest, shouldSettleAnEntryThatWasLoggedAndNotNoted) {
  Post({0, 1});
  device.CompleteShared(Qp(one), 0, "a");
  Poll();
  // Simulates a predecessor that died right after it had appended the entry.
  arena->shared_receive(0, 0).word = arena::PackSharedReceiveState(
      SharedReceiveState::kPosted, arena::GenerationOf(arena->shared_receive(0, 0)));
  arena->shard(0).completion_tail -= 1;
  Recover();
  EXPECT_EQ(StateAt(0), SharedReceiveState::kCompleted);
  EXPECT_EQ(shard().shared_receives_posted, 1u);
  EXPECT_THAT(ReadAll(), ElementsAre("receive in 0 of 0"));
}

// ---- A device that refuses.

TEST_F(SharedRecoveryTest, shouldEndTheConnectionsOfAShardWhoseQueueRefuses) {
  Post({0});
  device.refuse = 1;
  Post({1, 2});
  EXPECT_EQ(StateAt(1), SharedReceiveState::kAttempted);
  EXPECT_EQ(StateAt(2), SharedReceiveState::kFree);  // nothing more is posted
  EXPECT_EQ(shard().shared_receives_unsure, 1u);
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("end of 0 general error", "end of 1 general error"));
  EXPECT_THAT(observer.states.back(), HasSubstr("shared receive queue is broken"));
  EXPECT_FALSE(Connect().ok());
}

TEST_F(SharedRecoveryTest, shouldPostNothingMoreToAQueueThatRefuses) {
  device.refuse = 1;
  Post({0});
  Post({1});
  EXPECT_EQ(StateAt(1), SharedReceiveState::kFree);
  EXPECT_EQ(shard().shared_receives_unsure, 1u);
}

TEST_F(SharedRecoveryTest, shouldEndTheConnectionsThatItsPredecessorDidNotComeTo) {
  // Simulates a predecessor that died right after the device's refusal.
  arena->shard(0).shared_receives_refused = 1;
  Recover();
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("end of 0 general error", "end of 1 general error"));
  EXPECT_FALSE(Connect().ok());
}

TEST_F(SharedRecoveryTest, shouldEndTheConnectionsOfAQueueThatFailed) {
  Post({0});
  HandleDeviceEvent(DeviceEventType::kSharedReceiveQueueFailed);
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("end of 0 general error", "end of 1 general error"));
  EXPECT_THAT(observer.events, ElementsAre("of shard 0: told"));
}

TEST_F(SharedRecoveryTest, shouldTellThatTheQueueIsLow) {
  Post({0, 1, 2, 3});
  EXPECT_EQ(device.limit, 0u);
  Post({4});
  EXPECT_EQ(device.limit, kDepth / 4);
  HandleDeviceEvent(DeviceEventType::kSharedReceiveQueueLow);
  EXPECT_THAT(observer.events, ElementsAre("of shard 0: told"));
  EXPECT_EQ(state(one), ConnectionState::kEstablished);
}

// Operators are told at most every 10 s of a queue that is low again and again.
TEST_F(SharedRecoveryTest, shouldArmTheLimitAgainWhenTenSecondsHavePassed) {
  harness::StoppedClock clock;
  Post({0, 1, 2, 3, 4});
  HandleDeviceEvent(DeviceEventType::kSharedReceiveQueueLow);
  device.limit = 0;
  clock.Pass(9'999'999'999);
  Post({5});
  local->TurnManager();
  EXPECT_EQ(device.limit, 0u);
  clock.Pass(1);
  local->TurnManager();
  EXPECT_EQ(device.limit, kDepth / 4);
  device.limit = 0;
  clock.Pass(20'000'000'000);
  Post({6});
  local->TurnManager();
  EXPECT_EQ(device.limit, 0u);  // it is armed
}

// ---- A connection ends while its queue pair may hold a receive.

TEST_F(SharedRecoveryTest, shouldNotEndAConnectionBeforeItsLastReceiveIsLogged) {
  Post({0, 1});
  device.holds_no_receive = false;
  writer->Disconnect(one);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied);
  Poll();
  EXPECT_EQ(state(one), ConnectionState::kDraining);
  EXPECT_TRUE(driver->objects()->connections[one].queue_pair);
  device.CompleteShared(Qp(one), 0, "", CompletionStatus::kFlushError);
  device.holds_no_receive = true;
  HandleDeviceEvent(DeviceEventType::kLastWorkRequestReached, Qp(one));
  EXPECT_TRUE(driver->objects()->connections[one].queue_pair);  // its completion is to be taken
  Poll();
  EXPECT_FALSE(driver->objects()->connections[one].queue_pair);
  EXPECT_THAT(ReadAll(), ElementsAre("receive in 0 of 0 flushed", "end of 0"));
  EXPECT_EQ(state(two), ConnectionState::kEstablished);
  EXPECT_THAT(observer.events, IsEmpty());
}

TEST_F(SharedRecoveryTest, shouldEndAConnectionWhosePredecessorWasToldThatItMay) {
  Post({0});
  device.holds_no_receive = false;
  writer->Disconnect(one);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied);
  Poll();
  device.holds_no_receive = true;  // the event was taken by who died
  Recover();
  EXPECT_THAT(ReadAll(), ElementsAre("end of 0"));
  EXPECT_EQ(StateAt(0), SharedReceiveState::kPosted);
}

// The truth of its receive is lost with a queue pair that is destroyed: the slot stays out of use.
TEST_F(SharedRecoveryTest, shouldKeepTheSlotOfAReceiveThatIsLost) {
  Post({0});
  device.holds_no_receive = false;
  driver->EndAll("no answer");
  driver->GiveUp(0, "no answer");
  EXPECT_THAT(ReadAll(), ElementsAre("end of 0 fatal error of the device",
                                     "end of 1 fatal error of the device"));
  EXPECT_EQ(StateAt(0), SharedReceiveState::kPosted);
}

// A completion of a queue pair that nobody knows any more is told nobody.
TEST_F(SharedRecoveryTest, shouldFreeTheSlotOfACompletionThatIsNobodys) {
  Post({0, 1});
  writer->Disconnect(one);
  ASSERT_EQ(Commit(), CommitOutcome::kApplied);
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("end of 0"));
  const uint32_t gone = Qp(one);
  Acknowledge();
  device.CompleteShared(gone, 0, "late");
  Poll();
  EXPECT_THAT(ReadAll(), IsEmpty());
  EXPECT_EQ(StateAt(0), SharedReceiveState::kFree);
  EXPECT_EQ(shard().shared_receives_posted, 1u);
}

}  // namespace
}  // namespace baton::driver
