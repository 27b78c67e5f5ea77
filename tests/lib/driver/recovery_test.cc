// What a driver leaves when it is killed in the middle of something, and what its successor makes
// of it: one test for each case of layout.md, "When a driver dies".
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/driver/connection_state.h"
#include "lib/driver/queue_driver.h"
#include "tests/harness/stopped_clock.h"
#include "tests/lib/driver/scripted_driver_fixture.h"

namespace baton::driver {
namespace {

using arena::CompletionEntry;
using arena::CompletionKind;
using arena::ConnectionState;
using testing::DriverDied;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::PostedRequest;
using ::testing::SizeIs;
using testing::TestShape;
using verbs::CompletionStatus;

class RecoveryTest : public testing::ScriptedDriverTest {
 protected:
  void SetUp() override { Make(TestShape()); }

  void Make(const arena::Shape& shape) {
    Start(shape);
    Establish();
  }
  // The queue pairs are those of a pool.
  void BeNative() {
    arena::Shape shape = TestShape();
    shape.pooled_queue_pairs = 4;
    Make(shape);
  }
  void Establish() {
    connection = Established();
    queue_pair = arena->connection(connection).qp_number;
  }

  // Another connection, which the device has established and ended. The driver has polled what
  // that completed, and taken no event yet.
  void EndBeforeTheDriverKnows() {
    connection = Connect().value();
    queue_pair = arena->connection(connection).qp_number;
    ApplyReceives(2);
    device.Complete(queue_pair, true, "hello");
    device.Flush(queue_pair);
    Poll();
    ASSERT_THAT(ReadAll(), ElementsAre("receive 0 of 5", "receive 1 of 0 flushed"));
    ASSERT_EQ(StateOf(arena->connection(connection)), ConnectionState::kConnecting);
  }

  void CommitSends(int count) {
    for (int i = 0; i < count; ++i) writer->Send(connection, 1024, 8);
    writer->Publish();
  }
  void CommitReceives(int count) {
    const uint64_t first = arena->connection(connection).receive.committed;
    for (int i = 0; i < count; ++i) {
      writer->Receive(connection, BufferOf(first + static_cast<uint64_t>(i)), 64);
    }
    writer->Publish();
  }
  void CommitReceiveLargerThanASpare() {
    arena::WorkRequest& request = writer->Receive(connection, 0, 65536);
    request.sges[1] = {0, 8, 0};
    request.sge_count = 2;
    writer->Publish();
  }
  static uint64_t BufferOf(uint64_t receive) { return 4096 + receive * 64; }
  std::string TextAt(uint64_t offset, size_t length) {
    return std::string(reinterpret_cast<const char*>(arena->buffers()) + offset, length);
  }

  void ApplySends(int count) {
    CommitSends(count);
    ASSERT_EQ(Apply(), CommitOutcome::kApplied) << error;
  }
  void ApplyReceives(int count) {
    CommitReceives(count);
    ASSERT_EQ(Apply(), CommitOutcome::kApplied) << error;
  }

  // The test takes the count back, because recoveries may die here at the same again and again.
  void DieRecovering() {
    ScriptedDriverTest::DieRecovering();
    arena->shard(0).fatal_deaths = 0;
  }
  // The next transaction kills the driver after so many requests of its post.
  void DieAfterPosting(int count) {
    device.die_after_posting = count;
    EXPECT_THROW(Apply(), DriverDied);
  }
  // The driver dies when it has posted `posted` of `count`, and another recovers.
  void RecoverSends(int count, int posted) {
    CommitSends(count);
    DieAfterPosting(posted);
    Recover();
  }
  void RecoverReceives(int count, int posted) {
    CommitReceives(count);
    DieAfterPosting(posted);
    Recover();
  }
  void ExpectNoChangeWhenDoneAgain() {
    RecoverReceives(3, 1);
    RecoverSends(2, 1);
    const std::string memory = Memory();
    const size_t posts = device.history().size();
    for (int i = 0; i < 3; ++i) Recover();
    EXPECT_TRUE(Memory() == memory);
    EXPECT_THAT(device.history(), SizeIs(posts));
  }

  void ReportDisconnected() {
    device.Report(verbs::CmEventType::kDisconnected, device.IdOf(connection));
  }
  void HandleEvent() {
    local->TurnManager();
    ASSERT_EQ(HandleNotices(), 1);
  }

  // Outstanding at the device, in words.
  std::vector<std::string> Outstanding(bool receive) {
    return Words(device.outstanding(queue_pair, receive));
  }
  static std::vector<std::string> Words(const std::vector<PostedRequest>& requests) {
    std::vector<std::string> words;
    for (const PostedRequest& one : requests) {
      const uint64_t sequence = arena::WrIdSequence(one.wr_id);
      words.push_back(sequence >= arena::kSpareSequence    ? "spare"
                      : sequence >= arena::kMarkerSequence ? "marker"
                                                           : absl::StrCat(sequence));
    }
    return words;
  }
  void CompleteSend() { device.Complete(queue_pair, false); }
  void CompleteReceive(std::string_view bytes) { device.Complete(queue_pair, true, bytes); }
  ConnectionState state() { return ConnectionState(arena->connection(connection).state); }
  std::string Memory() {
    return std::string(reinterpret_cast<const char*>(&arena->header()), arena->driver_map().total) +
           std::string(reinterpret_cast<const char*>(arena->poll_slots(0)),
                       arena->recovery_map().spare_buffers);
  }

  uint32_t connection = 0, queue_pair = 0;
};

// ---- Sends: each of their fates.

TEST_F(RecoveryTest, shouldPostASendThatWasNeverPosted) {
  RecoverSends(1, 0);
  EXPECT_THAT(Outstanding(false), ElementsAre("marker"));
  CompleteSend();
  Poll();
  EXPECT_THAT(Outstanding(false), ElementsAre("0"));
  CompleteSend();
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("send 0"));
}

TEST_F(RecoveryTest, shouldNotPostASendAgainThatIsInFlight) {
  RecoverSends(1, 1);
  EXPECT_THAT(Outstanding(false), ElementsAre("0", "marker"));
  CompleteSend();
  CompleteSend();
  Poll();
  EXPECT_THAT(Outstanding(false), IsEmpty());
  EXPECT_THAT(ReadAll(), ElementsAre("send 0"));
  EXPECT_THAT(Words(device.history()), ElementsAre("0", "marker"));
}

TEST_F(RecoveryTest, shouldNeedNoMarkerForASendWhoseCompletionIsInTheQueue) {
  CommitSends(1);
  DieAfterPosting(1);
  CompleteSend();
  Recover();
  EXPECT_THAT(ReadAll(), ElementsAre("send 0"));
  EXPECT_THAT(Words(device.history()), ElementsAre("0"));
}

TEST_F(RecoveryTest, shouldCountACompletionThatWasPolledAndNotLogged) {
  ApplySends(1);
  CompleteSend();
  DiePolling(PollDeath::kAfterTaking);
  EXPECT_THAT(ReadAll(), IsEmpty());
  Recover();
  EXPECT_THAT(ReadAll(), ElementsAre("send 0"));
}

TEST_F(RecoveryTest, shouldPostTheRestOfSendsOfWhichTheFirstWerePosted) {
  RecoverSends(4, 2);
  EXPECT_THAT(Outstanding(false), ElementsAre("0", "1", "marker"));
  for (int i = 0; i < 3; ++i) CompleteSend();
  Poll();
  EXPECT_THAT(Outstanding(false), ElementsAre("2", "3"));
  EXPECT_THAT(ReadAll(), ElementsAre("send 0", "send 1"));
}

TEST_F(RecoveryTest, shouldHoldSendsThatAreCommittedBeforeTheMarkerHasCompleted) {
  RecoverSends(1, 1);
  ApplySends(2);
  EXPECT_THAT(Outstanding(false), ElementsAre("0", "marker"));
  CompleteSend();
  Poll();
  EXPECT_THAT(Outstanding(false), ElementsAre("marker"));
  CompleteSend();
  Poll();
  EXPECT_THAT(Outstanding(false), ElementsAre("1", "2"));
}

// It has used up the notification that was asked for before a sleep.
TEST_F(RecoveryTest, shouldTellThatItTookACompletionThatIsNobodysNews) {
  RecoverSends(1, 0);
  ASSERT_THAT(Outstanding(false), ElementsAre("marker"));
  EXPECT_EQ(driver->PollCompletions(0), absl::StatusOr<bool>(false));
  CompleteSend();
  const uint64_t news = arena->shard(0).completion_tail;
  EXPECT_EQ(driver->PollCompletions(0), absl::StatusOr<bool>(true));
  EXPECT_EQ(arena->shard(0).completion_tail, news);
}

// ---- Markers of recoveries that were killed.

TEST_F(RecoveryTest, shouldWaitForTheMarkerOfAnEarlierRecovery) {
  RecoverSends(1, 0);
  Recover();
  Recover();
  EXPECT_THAT(Outstanding(false), ElementsAre("marker"));
  ApplySends(1);
  EXPECT_THAT(Outstanding(false), ElementsAre("marker"));
  CompleteSend();
  Poll();
  EXPECT_THAT(Outstanding(false), ElementsAre("0", "1"));
}

TEST_F(RecoveryTest, shouldPostAnotherMarkerWhenTheFirstWasMaybePosted) {
  for (const int posted : {0, 1}) {
    const uint64_t before = device.history().size();
    CommitSends(1);
    DieAfterPosting(0);
    device.die_after_posting = posted;
    DieRecovering();
    Recover();
    EXPECT_THAT(Outstanding(false), SizeIs(static_cast<size_t>(posted) + 1));
    // Only the last one settles.
    for (int i = 0; i < posted; ++i) {
      CompleteSend();
      Poll();
      EXPECT_THAT(Outstanding(false), ElementsAre("marker"));
    }
    CompleteSend();
    Poll();
    EXPECT_THAT(Outstanding(false), SizeIs(1));
    EXPECT_EQ(device.history().size(), before + static_cast<uint64_t>(posted) + 2);
    CompleteSend();
    Poll();
  }
  EXPECT_THAT(ReadAll(), ElementsAre("send 0", "send 1"));
}

TEST_F(RecoveryTest, shouldFailOneConnectionAloneWhoseMarkersAreUsedUp) {
  const uint32_t other = Established();
  CommitSends(1);
  DieAfterPosting(0);
  for (uint32_t i = 0; i < arena::kMarkers; ++i) {
    device.die_after_posting = 1;
    DieRecovering();
  }
  Recover();
  EXPECT_THAT(Outstanding(false), SizeIs(arena::kMarkers));
  EXPECT_TRUE(device.destroyed(queue_pair));
  EXPECT_EQ(state(), ConnectionState::kClosed);
  EXPECT_THAT(ReadAll(), ElementsAre("ended general error"));
  EXPECT_THAT(observer.states.back(), HasSubstr("cannot be established"));
  EXPECT_EQ(driver->recovery().connections_failed, 1u);
  EXPECT_EQ(arena->connection(other).state, static_cast<uint32_t>(ConnectionState::kEstablished));
}

TEST_F(RecoveryTest, shouldFailOneConnectionAloneWhosePeerRefusesTheMarker) {
  RecoverSends(1, 0);
  device.Complete(queue_pair, false, {}, CompletionStatus::kRemoteAccessError);
  Poll();
  EXPECT_EQ(state(), ConnectionState::kClosed);
  EXPECT_THAT(ReadAll(), ElementsAre("ended remote access error"));
  EXPECT_THAT(Words(device.history()), ElementsAre("marker"));
}

// ---- Slots that were being filled.

TEST_F(RecoveryTest, shouldNotBelieveAHalfWrittenSlot) {
  ApplySends(2);
  CompleteSend();
  CompleteSend();
  DiePolling(PollDeath::kHalfWritten);
  Recover();
  EXPECT_THAT(ReadAll(), ElementsAre("send 0", "send 1"));
  EXPECT_EQ(state(), ConnectionState::kEstablished);
}

TEST_F(RecoveryTest, shouldNotCountASlotTwiceThatTheQueueGivesAgain) {
  ApplySends(2);
  CompleteSend();
  CompleteSend();
  DiePolling(PollDeath::kBeforeTaking);
  Recover();
  EXPECT_THAT(ReadAll(), ElementsAre("send 0", "send 1"));
}

TEST_F(RecoveryTest, shouldNotBelieveAHalfWrittenSlotOfAKilledRecoveryEither) {
  ApplySends(3);
  for (int i = 0; i < 3; ++i) CompleteSend();
  DiePolling(PollDeath::kHalfWritten);
  for (const PollDeath death :
       {PollDeath::kHalfWritten, PollDeath::kBeforeTaking, PollDeath::kHalfWritten}) {
    device.die_polling = death;
    DieRecovering();
  }
  Recover();
  EXPECT_THAT(ReadAll(), ElementsAre("send 0", "send 1", "send 2"));
  EXPECT_EQ(state(), ConnectionState::kEstablished);
}

TEST_F(RecoveryTest, shouldDropACompletionThatIsLoggedAlready) {
  ApplySends(1);
  CompleteSend();
  Poll();
  // Simulates a driver that died before it gave the slot up.
  arena->poll_slots(0)[0].wr_id = device.history()[0].wr_id;
  Recover();
  EXPECT_THAT(ReadAll(), ElementsAre("send 0"));
}

// ---- Receives.

TEST_F(RecoveryTest, shouldServeAWindowOfOneReceiveThatWasNeverPosted) {
  RecoverReceives(1, 0);
  EXPECT_THAT(Outstanding(true), ElementsAre("spare"));
  CompleteReceive("hello");
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("receive 0 of 5"));
  EXPECT_EQ(TextAt(BufferOf(0), 5), "hello");
  EXPECT_THAT(Outstanding(true), IsEmpty());
  ApplyReceives(1);
  EXPECT_THAT(Outstanding(true), ElementsAre("1"));
}

TEST_F(RecoveryTest, shouldKeepTheMessageOfASpareForTheNextReceiveWhenAllWerePosted) {
  RecoverReceives(1, 1);
  EXPECT_THAT(Outstanding(true), ElementsAre("0", "spare"));
  CompleteReceive("one");
  CompleteReceive("two");
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("receive 0 of 3"));
  Recover();
  EXPECT_THAT(ReadAll(), IsEmpty());
  CommitReceives(2);
  arena::WorkRequest& request = arena->receive_request(0, 1);
  request.one_line = 1;
  request.only = std::exchange(request.sges[0], {});
  ASSERT_EQ(Apply(), CommitOutcome::kApplied);
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("receive 1 of 3"));
  EXPECT_EQ(TextAt(BufferOf(1), 3), "two");
  EXPECT_THAT(Outstanding(true), ElementsAre("2"));
  EXPECT_THAT(Words(device.history()), ElementsAre("0", "spare", "2"));
}

TEST_F(RecoveryTest, shouldNotUseTheBuffersOfAmbiguousReceivesBeforeTheSpareHasCompleted) {
  RecoverReceives(4, 2);
  ApplyReceives(1);
  EXPECT_THAT(Outstanding(true), ElementsAre("0", "1", "spare"));
  CompleteReceive("a");
  CompleteReceive("bc");
  Poll();
  EXPECT_THAT(Outstanding(true), ElementsAre("spare"));
  CompleteReceive("def");
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("receive 0 of 1", "receive 1 of 2", "receive 2 of 3"));
  EXPECT_EQ(TextAt(BufferOf(2), 3), "def");
  EXPECT_THAT(Outstanding(true), ElementsAre("3", "4"));
}

TEST_F(RecoveryTest, shouldSettleReceivesWithSparesOfKilledRecoveries) {
  CommitReceives(3);
  DieAfterPosting(1);
  device.die_after_posting = 1;
  DieRecovering();  // its spare was posted
  device.die_after_posting = 0;
  DieRecovering();  // and this one's was not
  Recover();
  EXPECT_THAT(Outstanding(true), ElementsAre("0", "spare", "spare"));
  CompleteReceive("1");
  CompleteReceive("22");
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("receive 0 of 1", "receive 1 of 2"));
  EXPECT_THAT(Outstanding(true), ElementsAre("spare"));
  Recover();
  CompleteReceive("333");
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("receive 2 of 3"));
  EXPECT_EQ(TextAt(BufferOf(1), 2), "22");
  EXPECT_EQ(TextAt(BufferOf(2), 3), "333");
  for (uint32_t i = 0; i < arena::kSpares; ++i) EXPECT_EQ(arena->spare(0, i).owner, 0u);
}

// A driver dies while it posts receives that a spare has freed, with the marker that frees sends
// taken from the queue and not logged.
TEST_F(RecoveryTest, shouldPostNoSendBeforeTheReceivesOfItsTransaction) {
  RecoverReceives(1, 0);
  RecoverSends(1, 0);
  EXPECT_THAT(Outstanding(true), ElementsAre("spare"));
  EXPECT_THAT(Outstanding(false), ElementsAre("marker"));
  writer->Receive(connection, BufferOf(1), 64);
  writer->Send(connection, 1024, 8);
  writer->Publish();
  ASSERT_EQ(Apply(), CommitOutcome::kApplied) << error;
  device.Complete(queue_pair, true, "message");
  device.Complete(queue_pair, false);
  device.die_after_posting = 0;
  EXPECT_THROW(driver->PollCompletions(0).status().IgnoreError(), DriverDied);
  const size_t before = device.history().size();
  Recover();
  EXPECT_THAT(
      Words({device.history().begin() + static_cast<ptrdiff_t>(before), device.history().end()}),
      ElementsAre("spare", "0", "1"));
}

TEST_F(RecoveryTest, shouldFailOneConnectionAloneWhoseAmbiguousReceiveIsLargerThanASpare) {
  const uint32_t other = Established();
  CommitReceiveLargerThanASpare();
  DieAfterPosting(1);
  Recover();
  EXPECT_EQ(state(), ConnectionState::kDraining);
  EXPECT_THAT(Outstanding(true), ElementsAre("0", "marker"));
  device.Flush(queue_pair);
  Poll();
  EXPECT_EQ(state(), ConnectionState::kClosed);
  EXPECT_THAT(ReadAll(), ElementsAre("receive 0 of 0 flushed", "ended general error"));
  EXPECT_THAT(observer.states.back(), HasSubstr("larger than a spare"));
  EXPECT_EQ(arena->connection(other).state, static_cast<uint32_t>(ConnectionState::kEstablished));
}

// A transaction has more receives than are posted at a time. Were all of those posted, the spare
// would stand for the next.
TEST_F(RecoveryTest, shouldFailAConnectionWhoseNextReceiveIsLargerThanASpare) {
  constexpr int kPostedAtATime = 64;
  Make(TestShape(1, 4, 128));
  for (int i = 0; i < kPostedAtATime; ++i) writer->Receive(connection, 0, 64);
  CommitReceiveLargerThanASpare();
  DieAfterPosting(kPostedAtATime);
  Recover();
  EXPECT_EQ(state(), ConnectionState::kDraining);
  device.Flush(queue_pair);
  Poll();
  EXPECT_EQ(state(), ConnectionState::kClosed);
  EXPECT_EQ(ReadAll().back(), "ended general error");
  EXPECT_THAT(observer.states.back(), HasSubstr("larger than a spare"));
}

// Its next receive, which has room for the message, was committed when the spare stood there.
TEST_F(RecoveryTest, shouldBlameTheSpareThatWasTooShortForAMessage) {
  RecoverReceives(1, 1);
  CommitReceiveLargerThanASpare();
  ASSERT_EQ(Apply(), CommitOutcome::kApplied) << error;
  CompleteReceive("one");
  device.Complete(queue_pair, true, {}, CompletionStatus::kLocalLengthError);
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("receive 0 of 3", "ended general error"));
  EXPECT_THAT(observer.states.back(), HasSubstr("the spare receive of 65536 bytes"));
}

TEST_F(RecoveryTest, shouldFailAConnectionWhoseReceiveIsTooShortForItsMessage) {
  RecoverReceives(1, 0);
  CompleteReceive(std::string(65, 'x'));
  Poll();
  EXPECT_THAT(ReadAll(),
              ElementsAre("receive 0 of 65 local length error", "ended local length error"));
  EXPECT_EQ(TextAt(BufferOf(1), 1), std::string(1, '\0'));
}

// ---- Ends of connections.

TEST_F(RecoveryTest, shouldNotEndAConnectionBeforeItsAmbiguousRequestsAreFlushed) {
  CommitReceives(1);
  DieAfterPosting(1);
  ReportDisconnected();
  Recover();
  HandleEvent();
  EXPECT_EQ(state(), ConnectionState::kDraining);
  EXPECT_THAT(ReadAll(), IsEmpty());
  device.Flush(queue_pair);
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("receive 0 of 0 flushed", "ended"));
}

// A receive posted since is in its queue, and nobody else would flush it.
TEST_F(RecoveryTest, shouldFlushAConnectionThatAnotherProcessHasPutInError) {
  device.FailElsewhere(queue_pair);
  ApplyReceives(1);
  Handle(connection, verbs::CmEventType::kDisconnected);
  EXPECT_EQ(device.flushes(queue_pair), 1u);
}

TEST_F(RecoveryTest, shouldTakeARefusedPostForUnknown) {
  for (const bool queued : {false, true}) {
    Establish();
    CommitSends(1);
    device.refuse = 1;
    device.queue_refused = queued;
    ASSERT_EQ(Apply(), CommitOutcome::kApplied);
    EXPECT_EQ(state(), ConnectionState::kDraining);
    EXPECT_THAT(Outstanding(false), SizeIs(queued ? 2 : 1));
    device.Flush(queue_pair);
    Poll();
    EXPECT_EQ(state(), ConnectionState::kClosed);
    EXPECT_EQ(Read(), queued ? "send 0 flushed" : "ended general error");
    ReadAll();
  }
}

TEST_F(RecoveryTest, shouldDestroyAQueuePairThatRefusesItsMarkerToo) {
  ApplyReceives(1);
  CommitSends(1);
  device.refuse = 2;
  ASSERT_EQ(Apply(), CommitOutcome::kApplied);
  EXPECT_TRUE(device.destroyed(queue_pair));
  Poll();
  EXPECT_EQ(state(), ConnectionState::kClosed);
  EXPECT_THAT(ReadAll(), ElementsAre("ended general error"));
  const ShardCounters& counters = driver->counters(0);
  EXPECT_EQ(counters.receives_posted, counters.receives_completed);
  EXPECT_EQ(counters.sends_posted, counters.sends_completed);
}

// A queue pair that is not in error may complete nothing, and its connection would never end.
TEST_F(RecoveryTest, shouldDestroyAQueuePairThatCannotBePutInError) {
  ApplyReceives(1);
  ApplySends(2);
  CompleteSend();
  device.refuse_errors = 1;
  Handle(connection, verbs::CmEventType::kDisconnected);
  EXPECT_TRUE(device.destroyed(queue_pair));
  Poll();
  EXPECT_EQ(state(), ConnectionState::kClosed);
  EXPECT_THAT(ReadAll(), ElementsAre("send 0", "ended"));
  EXPECT_THAT(observer.states.back(), HasSubstr("abandoned: the device stops nothing"));
}

TEST_F(RecoveryTest, shouldDestroyAQueuePairThatASuccessorCannotPutInError) {
  ApplyReceives(1);
  Handle(connection, verbs::CmEventType::kDisconnected);
  device.refuse_errors = 1;
  Recover();
  EXPECT_TRUE(device.destroyed(queue_pair));
  EXPECT_THAT(ReadAll(), ElementsAre("ended"));
}

// The driver cannot destroy a queue pair of a pool, and the device still executes what is posted.
TEST_F(RecoveryTest, shouldTryAgainToPutAQueuePairOfAPoolInError) {
  BeNative();
  ApplyReceives(1);
  ApplySends(1);
  harness::StoppedClock clock;
  device.refuse_errors = 2;
  Handle(connection, verbs::CmEventType::kDisconnected);
  const size_t told = observer.states.size();
  EXPECT_THAT(observer.states.back(), HasSubstr("tried again every second: the device stops"));
  CompleteSend();
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("send 0"));
  clock.Pass(999'999'999);
  Poll();
  EXPECT_EQ(device.refuse_errors, 1);
  clock.Pass(1);
  Poll();
  EXPECT_EQ(device.refuse_errors, 0);
  Poll();
  EXPECT_EQ(device.flushes(queue_pair), 0u);
  EXPECT_EQ(state(), ConnectionState::kDraining);
  clock.Pass(1'000'000'000);
  Poll();
  EXPECT_EQ(device.flushes(queue_pair), 1u);
  EXPECT_EQ(observer.states.size(), told);
  device.Flush(queue_pair);
  Poll();
  EXPECT_EQ(state(), ConnectionState::kClosed);
  EXPECT_THAT(ReadAll(), ElementsAre("receive 0 of 0 flushed", "ended"));
}

// The device refuses the marker as well. It may still execute the send, so the end is not logged.
TEST_F(RecoveryTest, shouldNotAbandonAQueuePairOfAPoolThatIsNotInError) {
  BeNative();
  CommitSends(1);
  harness::StoppedClock clock;
  device.refuse = 2;
  device.queue_refused = true;
  device.refuse_errors = 1;
  ASSERT_EQ(Apply(), CommitOutcome::kApplied);
  Poll();
  EXPECT_EQ(arena->connection(connection).abandoned, 0);
  EXPECT_EQ(state(), ConnectionState::kDraining);
  clock.Pass(1'000'000'000);
  Poll();
  EXPECT_EQ(device.flushes(queue_pair), 1u);
  device.Flush(queue_pair);
  Poll();
  EXPECT_EQ(state(), ConnectionState::kClosed);
  EXPECT_THAT(ReadAll(), ElementsAre("send 0 flushed", "ended general error"));
}

// Not every device stops at once: a native service's queue pair is in error until `baton-driver`
// resets it.
// Not every device stops at once: a native service's queue pair is in error until `baton-driver`
// resets it.
TEST_F(RecoveryTest, shouldTellNothingOfAConnectionAfterItsEnd) {
  ApplyReceives(1);
  CommitSends(1);
  device.refuse = 2;
  ASSERT_EQ(Apply(), CommitOutcome::kApplied);
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("ended general error"));
  device.Flush(queue_pair);
  Poll();
  EXPECT_THAT(ReadAll(), IsEmpty());
  EXPECT_EQ(arena->connection(connection).receive.completed, 0u);
}

// ---- Transactions and events.

TEST_F(RecoveryTest, shouldFinishATransactionThatIsHalfApplied) {
  const uint32_t other = Established();
  ApplySends(1);
  CompleteSend();
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("send 0"));
  // The first connection's state is switched and its send posted when the driver dies.
  writer->ConnectionState(connection, "mine", 3);
  writer->Send(connection, 0, 8);
  writer->ConnectionState(other, "other", 3);
  writer->Send(other, 0, 8);
  writer->ShardState("shard", 3);
  writer->Acknowledge(read);
  writer->Publish();
  const uint64_t head = arena->shard(0).commit_head;
  DieAfterPosting(1);
  EXPECT_EQ(arena->shard(0).commit_head, head);
  Recover();
  EXPECT_EQ(arena::CursorIndex(arena->shard(0).commit_head), writer->tail());
  EXPECT_EQ(driver->recovery().transactions_resumed, 1u);
  EXPECT_EQ(arena->connection(connection).state_length, 4u);
  EXPECT_EQ(arena->connection(other).state_length, 5u);
  EXPECT_EQ(arena->shard(0).state_length, 5u);
  EXPECT_EQ(arena->shard(0).acknowledged, read);
  EXPECT_EQ(arena->connection(connection).send.acknowledged, 1u);
  EXPECT_THAT(Outstanding(false), ElementsAre("1", "marker"));
  EXPECT_THAT(Words(device.outstanding(arena->connection(other).qp_number, false)),
              ElementsAre("0"));
  EXPECT_EQ(Apply(), CommitOutcome::kIdle);
}

// An owner that lives would take what it has not loaded yet for nobody's.
TEST_F(RecoveryTest, shouldShowNothingBeforeItHasResumedTheTransaction) {
  const uint32_t other = Established();
  (void)ReadAll();
  writer->Send(connection, 0, 8);
  writer->Send(other, 0, 8);
  writer->Publish();
  DieAfterPosting(1);
  CompleteSend();
  const uint64_t shown = arena->shard(0).completion_tail;
  device.die_after_posting = 0;
  DieRecovering();
  EXPECT_EQ(arena->shard(0).completion_tail, shown);
  Recover();
  EXPECT_THAT(ReadAll(), ElementsAre("send 0"));
}

TEST_F(RecoveryTest, shouldTellAReleaseAgain) {
  writer->Release();
  writer->Publish();
  EXPECT_EQ(Apply(), CommitOutcome::kReleased);
  Recover();
  EXPECT_EQ(Apply(), CommitOutcome::kReleased);
}

TEST_F(RecoveryTest, shouldHandleANoticeThatItsPredecessorHasNotHandled) {
  ReportDisconnected();
  local->TurnManager();
  Recover();
  EXPECT_EQ(HandleNotices(), 1);
  EXPECT_THAT(ReadAll(), ElementsAre("ended"));
}

// The device gives completions and events separately.
TEST_F(RecoveryTest, shouldEndAConnectionThatWasEstablishedWhenItsErrorsArePolledBeforeThat) {
  EndBeforeTheDriverKnows();
  Handle(connection, verbs::CmEventType::kEstablished);
  Handle(connection, verbs::CmEventType::kDisconnected);
  EXPECT_THAT(ReadAll(), ElementsAre("established", "ended flushed"));
}

TEST_F(RecoveryTest, shouldTellWhyAConnectionWasNotEstablishedWhenItsErrorsArePolledBeforeThat) {
  EndBeforeTheDriverKnows();
  Handle(connection, verbs::CmEventType::kUnreachable);
  EXPECT_THAT(ReadAll(), ElementsAre("not established transport retry counter exceeded"));
}

TEST_F(RecoveryTest, shouldEndAConnectionWhoseErrorsADeadDriverPolledBeforeItWasEstablished) {
  EndBeforeTheDriverKnows();
  Recover();
  EXPECT_THAT(ReadAll(), IsEmpty());
  Handle(connection, verbs::CmEventType::kEstablished);
  EXPECT_THAT(ReadAll(), ElementsAre("established", "ended flushed"));
}

// Its predecessor has logged the event, and died before it ended the connection.
TEST_F(RecoveryTest, shouldEndAnEstablishedConnectionWhoseErrorsWerePolledBeforeThat) {
  EndBeforeTheDriverKnows();
  arena::ConnectionRecord& record = arena->connection(connection);
  record.was_established = 1;
  SetState(record, ConnectionState::kEstablished);
  Recover();
  EXPECT_THAT(ReadAll(), ElementsAre("ended flushed"));
}

TEST_F(RecoveryTest, shouldPublishTheEntryThatItsPredecessorAppended) {
  ApplySends(1);
  CompletionLog log(*arena, 0);
  CompletionEntry entry = {};
  entry.wr_id = device.history()[0].wr_id;
  entry.kind = static_cast<uint8_t>(CompletionKind::kSend);
  entry.connection = connection;
  entry.generation = arena->connection(connection).generation;
  ASSERT_TRUE(log.Append(entry));  // and dies before it stores the cursor
  Recover();
  EXPECT_THAT(ReadAll(), ElementsAre("send 0"));
  EXPECT_EQ(arena->connection(connection).send.completed, 1u);
}

TEST_F(RecoveryTest, shouldChangeNothingWhenDoneAgain) { ExpectNoChangeWhenDoneAgain(); }

TEST_F(RecoveryTest, shouldCountWhatIsOutstanding) {
  ApplyReceives(2);
  RecoverSends(3, 2);
  EXPECT_EQ(driver->recovery().sends_ambiguous, 3u);
  EXPECT_EQ(driver->recovery().receives_ambiguous, 0u);
  const ShardCounters& counters = driver->counters(0);
  EXPECT_EQ(counters.receives_posted - counters.receives_completed, 2u);
  EXPECT_EQ(counters.sends_committed - counters.sends_posted, 3u);
  for (int i = 0; i < 3; ++i) CompleteSend();
  Poll();
  EXPECT_EQ(driver->recovery().sends_found_posted, 2u);
  EXPECT_EQ(driver->recovery().sends_never_posted, 1u);
  EXPECT_EQ(counters.sends_committed, counters.sends_posted);
  EXPECT_EQ(counters.sends_posted - counters.sends_completed, 1u);
}

// ---- A device that says what is queued.

class AnsweringRecoveryTest : public RecoveryTest {
 protected:
  AnsweringRecoveryTest() { device.answers = true; }
  void TearDown() override { EXPECT_EQ(device.asked_unrung, 0); }
};

TEST_F(AnsweringRecoveryTest, shouldPostAtOnceWhatWasNeverPosted) {
  for (const int posted : {0, 1, 3, 4}) {
    CommitSends(4);
    const size_t before = device.history().size();
    DieAfterPosting(posted);
    Recover();
    EXPECT_THAT(Outstanding(false), SizeIs(4));
    EXPECT_EQ(device.history().size(), before + 4);
    EXPECT_FALSE(device.is_unrung);
    EXPECT_EQ(driver->recovery().sends_ambiguous, 4u);
    EXPECT_EQ(driver->recovery().sends_found_posted, static_cast<uint64_t>(posted));
    EXPECT_EQ(driver->recovery().sends_never_posted, static_cast<uint64_t>(4 - posted));
    EXPECT_EQ(driver->recovery().answers, 1u);
    EXPECT_EQ(driver->recovery().markers, 0u);
    for (int i = 0; i < 4; ++i) CompleteSend();
    Poll();
    EXPECT_THAT(ReadAll(), SizeIs(4));
    writer->Acknowledge(read);
    writer->Publish();
    ASSERT_EQ(Apply(), CommitOutcome::kApplied) << error;
  }
}

TEST_F(AnsweringRecoveryTest, shouldHoldNoSends) {
  RecoverSends(1, 1);
  ApplySends(2);
  EXPECT_THAT(Outstanding(false), ElementsAre("0", "1", "2"));
}

TEST_F(AnsweringRecoveryTest, shouldNeedNoSpareForReceives) {
  RecoverReceives(3, 1);
  ApplyReceives(1);
  EXPECT_THAT(Outstanding(true), ElementsAre("0", "1", "2", "3"));
  EXPECT_EQ(driver->recovery().receives_never_posted, 2u);
  EXPECT_EQ(driver->recovery().spares, 0u);
}

// A spare has no room for it. The receive itself does.
TEST_F(AnsweringRecoveryTest, shouldGoOnWithAnAmbiguousReceiveThatIsLargerThanASpare) {
  CommitReceiveLargerThanASpare();
  DieAfterPosting(0);
  Recover();
  EXPECT_EQ(state(), ConnectionState::kEstablished);
  EXPECT_THAT(Outstanding(true), ElementsAre("0"));
}

// What has completed is queued no more, wherever its completion is.
TEST_F(AnsweringRecoveryTest, shouldCountWhatHasCompletedAsPosted) {
  for (const bool polled : {false, true}) {
    CommitSends(3);
    DieAfterPosting(2);
    CompleteSend();
    CompleteSend();
    if (polled) DiePolling(PollDeath::kAfterTaking);
    Recover();
    EXPECT_THAT(Outstanding(false), SizeIs(1));
    EXPECT_EQ(driver->recovery().sends_found_posted, 2u);
    EXPECT_EQ(driver->recovery().sends_never_posted, 1u);
    CompleteSend();
    Poll();
    EXPECT_THAT(ReadAll(), SizeIs(3));
    writer->Acknowledge(read);
    writer->Publish();
    ASSERT_EQ(Apply(), CommitOutcome::kApplied) << error;
  }
}

TEST_F(AnsweringRecoveryTest, shouldFollowRecoveriesThatWereKilledAsTheyPosted) {
  CommitReceives(4);
  DieAfterPosting(1);
  for (int i = 0; i < 3; ++i) {
    device.die_after_posting = i % 2;  // of one that is posted again
    DieRecovering();
  }
  Recover();
  EXPECT_THAT(Outstanding(true), ElementsAre("0", "1", "2", "3"));
  EXPECT_EQ(device.history().size(), 4u);
}

TEST_F(AnsweringRecoveryTest, shouldChangeNothingWhenDoneAgain) { ExpectNoChangeWhenDoneAgain(); }

// The one before was of a release that does not ask.
TEST_F(AnsweringRecoveryTest, shouldWaitForTheMarkerOfADriverThatDidNotAsk) {
  device.answers = false;
  RecoverSends(2, 1);
  device.answers = true;
  Recover();
  EXPECT_THAT(Outstanding(false), ElementsAre("0", "marker"));
  CompleteSend();
  CompleteSend();
  Poll();
  EXPECT_THAT(Outstanding(false), ElementsAre("1"));
  EXPECT_THAT(ReadAll(), ElementsAre("send 0"));
  RecoverSends(1, 1);
  EXPECT_THAT(Outstanding(false), ElementsAre("1", "2"));
}

TEST_F(AnsweringRecoveryTest, shouldPostAnotherMarkerWhereOneIsMaybePosted) {
  for (const int posted : {0, 1}) {
    device.answers = false;
    CommitSends(1);
    DieAfterPosting(0);
    device.die_after_posting = posted;
    DieRecovering();
    device.answers = true;
    Recover();
    EXPECT_THAT(Outstanding(false), SizeIs(static_cast<size_t>(posted) + 1));
    for (int i = 0; i <= posted; ++i) CompleteSend();
    Poll();
    EXPECT_THAT(Outstanding(false), SizeIs(1));
    CompleteSend();
    Poll();
  }
  EXPECT_THAT(ReadAll(), ElementsAre("send 0", "send 1"));
}

TEST_F(AnsweringRecoveryTest, shouldWaitForTheSpareOfADriverThatDidNotAsk) {
  device.answers = false;
  RecoverReceives(2, 1);
  device.answers = true;
  Recover();
  EXPECT_THAT(Outstanding(true), ElementsAre("0", "spare"));
  CompleteReceive("a");
  CompleteReceive("bc");
  Poll();
  EXPECT_THAT(ReadAll(), ElementsAre("receive 0 of 1", "receive 1 of 2"));
  EXPECT_EQ(TextAt(BufferOf(1), 2), "bc");
}

// Other processes of a native service can write where a device keeps it.
TEST_F(AnsweringRecoveryTest, shouldFailOneConnectionAloneWhoseQueueMakesNoSense) {
  const uint64_t generation = arena->connection(connection).generation;
  const auto send = [&](uint64_t sequence, uint32_t of, uint64_t of_generation) {
    return arena::PackWrId(of, static_cast<uint32_t>(of_generation), arena::Direction::kSend,
                           sequence);
  };
  const std::vector<std::optional<uint64_t>> lies = {
      send(0, connection, generation),               // has completed
      send(4, connection, generation),               // was never tried
      send(2, connection + 1, generation),           // of another connection
      send(2, connection, generation + 1),           // of a former one
      send(2, connection, generation) | 1ull << 47,  // a receive
      ~uint64_t{0},
      std::nullopt,  // that it makes no sense
  };
  for (const std::optional<uint64_t>& lie : lies) {
    Make(TestShape());
    const uint32_t other = Established();
    ApplySends(1);
    CompleteSend();
    Poll();
    ASSERT_THAT(ReadAll(), ElementsAre("send 0"));
    CommitSends(3);
    DieAfterPosting(2);
    device.lie = lie;
    device.is_confused = !lie.has_value();
    Recover();
    ASSERT_EQ(driver->recovery().connections_failed, 1u);
    EXPECT_EQ(ReadAll().back(), "ended general error");
    EXPECT_THAT(observer.states.back(), HasSubstr("cannot be established"));
    EXPECT_TRUE(device.destroyed(queue_pair));
    EXPECT_EQ(arena->connection(other).state, static_cast<uint32_t>(ConnectionState::kEstablished));
    device.lie.reset();
    device.is_confused = false;
  }
}

TEST_F(AnsweringRecoveryTest, shouldBelieveNoQueueThatHasLostWhatWasPosted) {
  ApplySends(1);
  CommitSends(1);
  DieAfterPosting(0);
  device.Lose(queue_pair, false);
  Recover();
  EXPECT_EQ(driver->recovery().connections_failed, 1u);
  EXPECT_THAT(observer.states.back(), HasSubstr("says that it is empty"));
}

TEST_F(AnsweringRecoveryTest, shouldNeedNoMarkerToEndAConnection) {
  CommitReceives(3);
  DieAfterPosting(2);
  ReportDisconnected();
  Recover();
  HandleEvent();
  EXPECT_EQ(state(), ConnectionState::kDraining);
  EXPECT_THAT(ReadAll(), IsEmpty());
  device.Flush(queue_pair);
  Poll();
  EXPECT_EQ(ReadAll().back(), "ended");
  EXPECT_EQ(driver->recovery().markers, 0u);
}

// A connection that begins to end before all completions are logged: the first of them says so.
TEST_F(AnsweringRecoveryTest, shouldNotEndAConnectionBeforeWhatWasTakenIsLogged) {
  CommitSends(3);
  DieAfterPosting(2);
  device.Complete(queue_pair, false, {}, CompletionStatus::kRetryExceeded);
  device.Complete(queue_pair, false, {}, CompletionStatus::kFlushError);
  DiePolling(PollDeath::kAfterTaking);
  Recover();
  EXPECT_THAT(ReadAll(), ElementsAre("send 0 transport retry counter exceeded", "send 1 flushed",
                                     "ended transport retry counter exceeded"));
  EXPECT_EQ(driver->recovery().sends_never_posted, 1u);
  EXPECT_EQ(driver->recovery().markers, 0u);
}

TEST_F(AnsweringRecoveryTest, shouldKnowWhatOfARefusedPostIsQueued) {
  for (const bool queued : {false, true}) {
    Establish();
    CommitSends(1);
    device.refuse = 1;
    device.queue_refused = queued;
    ASSERT_EQ(Apply(), CommitOutcome::kApplied);
    EXPECT_THAT(Outstanding(false), SizeIs(queued ? 1 : 0));
    EXPECT_EQ(state(), queued ? ConnectionState::kDraining : ConnectionState::kClosed);
    device.Flush(queue_pair);
    Poll();
    EXPECT_EQ(state(), ConnectionState::kClosed);
    EXPECT_EQ(Read(), queued ? "send 0 flushed" : "ended general error");
    ReadAll();
  }
}

TEST_F(AnsweringRecoveryTest, shouldCountWhatIsOutstanding) {
  ApplyReceives(2);
  RecoverSends(3, 2);
  const ShardCounters& counters = driver->counters(0);
  EXPECT_EQ(counters.receives_posted - counters.receives_completed, 2u);
  EXPECT_EQ(counters.sends_committed, counters.sends_posted);
  EXPECT_EQ(counters.sends_posted - counters.sends_completed, 3u);
}

// ---- Inline sends.

TEST_F(RecoveryTest, shouldPostShortSendsInlineAndInlineAgainWhatWasNeverPosted) {
  arena::Shape shape = TestShape();
  shape.max_inline_bytes = 16;
  Make(shape);
  const auto inline_of = [&] {
    std::vector<bool> all;
    for (const PostedRequest& one : device.outstanding(queue_pair, false)) {
      all.push_back(one.inline_data);
    }
    return all;
  };
  writer->Send(connection, 1024, 16);
  writer->Send(connection, 1024, 17);
  writer->Send(connection, 1024, 8).opcode = static_cast<uint8_t>(verbs::Opcode::kRead);
  writer->Send(connection, 1024, 8).opcode = static_cast<uint8_t>(verbs::Opcode::kFetchAndAdd);
  writer->Send(connection, 1024, 8).opcode = static_cast<uint8_t>(verbs::Opcode::kWrite);
  writer->Send(connection, 1024, 0);
  writer->Publish();
  // Long, READ, atomic: not inline.
  DieAfterPosting(4);
  EXPECT_THAT(inline_of(), ElementsAre(true, false, false, false));
  Recover();
  for (int i = 0; i < 5; ++i) device.Complete(queue_pair, false);  // and the marker
  Poll();
  EXPECT_THAT(Outstanding(false), ElementsAre("4", "5"));
  EXPECT_THAT(inline_of(), ElementsAre(true, true));
}

TEST_F(RecoveryTest, shouldPostNothingInlineWhereTheServiceAsksForNone) {
  ApplySends(2);
  for (const PostedRequest& one : device.history()) EXPECT_FALSE(one.inline_data);
  EXPECT_THAT(device.history(), SizeIs(2));
}

}  // namespace
}  // namespace baton::driver
