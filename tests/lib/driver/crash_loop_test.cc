// Something kills each driver that is at it (layout.md, "Crash loops"): three die, and the fourth
// fails that alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "lib/arena/atomic_access.h"
#include "lib/base/crash_point.h"
#include "lib/driver/connection_state.h"
#include "lib/driver/queue_driver.h"
#include "tests/lib/driver/scripted_driver_fixture.h"

namespace baton::driver {
namespace {

using arena::ConnectionState;
using testing::DriverDied;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Each driver dies that passes the point while it is at this.
std::string g_deadly;
uint32_t g_at;
arena::Arena* g_arena;

void PassPoint(const char* name) {
  if (g_deadly != name) return;
  for (uint32_t shard = 0; shard < g_arena->shape().shards; ++shard) {
    if ((arena::LoadRelaxed(g_arena->shard(shard).at) & ~arena::kAtRecovery) == g_at) {
      throw DriverDied();
    }
  }
}

class CrashLoopTest : public testing::ScriptedDriverTest {
 protected:
  void SetUp() override { Make(testing::TestShape()); }
  void TearDown() override { SetCrashPointHandler(nullptr); }

  void Make(const arena::Shape& shape) {
    Start(shape);
    deadly = Established();
    other = Established();
    g_arena = &*arena;
    g_deadly = "";
    SetCrashPointHandler(PassPoint);
  }

  void DieAt(const char* point, uint32_t at) {
    g_deadly = point;
    g_at = at;
  }
  void DieAt(const char* point) { DieAt(point, arena::AtConnection(deadly)); }

  void CommitSend(uint32_t connection) {
    writer->Send(connection, 1024, 8);
    writer->Publish();
  }
  // Two entries, so that the transaction is read as a whole.
  void CommitSends() {
    writer->Send(deadly, 1024, 8);
    writer->Send(other, 1024, 8);
    writer->Publish();
  }
  void CompleteSend(uint32_t connection) {
    device.Complete(arena->connection(connection).qp_number, false);
  }

  // The driver dies in `work`, and so do two that follow it: when they take over, or right after.
  template <typename Work>
  void DieThreeTimes(Work work) {
    int deaths = 0;
    for (bool follows = false; deaths < 3; follows = true) {
      try {
        if (follows) Recover();
        work();
        FAIL() << "nobody died after " << deaths << " deaths";
      } catch (const DriverDied&) {
        ++deaths;
      }
    }
  }
  void ExpectOtherServes() {
    CommitSend(other);
    ASSERT_EQ(Apply(), CommitOutcome::kApplied) << error;
    CompleteSend(other);
    Poll();
    EXPECT_THAT(Read(), HasSubstr("send"));
    EXPECT_EQ(state(other), ConnectionState::kEstablished);
  }
  void ExpectOtherServesAfterTheEnd() {
    EXPECT_THAT(ReadAll(), ElementsAre("ended general error"));
    ExpectOtherServes();
  }
  // The fourth driver has failed the deadly connection, and goes on.
  void ExpectFailed() {
    EXPECT_EQ(driver->recovery().connections_failed, 1u);
    Poll();
    EXPECT_EQ(state(deadly), ConnectionState::kClosed);
    EXPECT_THAT(observer.states.back(), HasSubstr("drivers died at it"));
    ExpectOtherServesAfterTheEnd();
  }
  ConnectionState state(uint32_t connection) { return StateOf(arena->connection(connection)); }

  uint32_t deadly = 0, other = 0;
};

TEST_F(CrashLoopTest, shouldFailTheConnectionOfARequestAlone) {
  device.answers = true;
  DieAt("driver-before-post");
  CommitSend(deadly);
  DieThreeTimes([this] { Apply(); });
  Recover();
  EXPECT_EQ(Apply(), CommitOutcome::kIdle);
  EXPECT_THAT(device.outstanding(arena->connection(deadly).qp_number, false), IsEmpty());
  ExpectFailed();
}

TEST_F(CrashLoopTest, shouldApplyTheRestOfATransaction) {
  device.answers = true;
  DieAt("driver-before-post");
  CommitSends();
  DieThreeTimes([this] { Apply(); });
  Recover();
  EXPECT_EQ(arena->connection(other).send.posted, 1u);
  CompleteSend(other);
  Poll();
  EXPECT_THAT(ReadAll(), ::testing::UnorderedElementsAre("send 0", "ended general error"));
}

TEST_F(CrashLoopTest, shouldFailTheConnectionOfACompletionAlone) {
  CommitSends();
  ASSERT_EQ(Apply(), CommitOutcome::kApplied);
  CompleteSend(other);
  CompleteSend(deadly);
  DieAt("driver-logs-completion");
  DieThreeTimes([this] { driver->PollCompletions(0).IgnoreError(); });
  Recover();
  EXPECT_EQ(Read(), "send 0");
  ExpectFailed();
}

TEST_F(CrashLoopTest, shouldFailTheConnectionOfANoticeAlone) {
  DieAt("driver-handles-event");
  device.Report(verbs::CmEventType::kDisconnected, device.IdOf(deadly));
  local->TurnManager();
  DieThreeTimes([this] { HandleNotices(); });
  Recover();
  HandleNotices();
  ExpectFailed();
}

TEST_F(CrashLoopTest, shouldFailTheConnectionThatARecoveryDiesOf) {
  CommitSend(deadly);
  device.die_after_posting = 0;
  EXPECT_THROW(Apply(), DriverDied);
  for (int i = 0; i < 2; ++i) {
    device.die_after_posting = 0;  // of its marker
    DieRecovering();
  }
  Recover();
  ExpectFailed();
}

TEST_F(CrashLoopTest, shouldFindATransactionInvalidThatNobodyCanRead) {
  DieAt("driver-reads-transaction", arena::kAtTransaction);
  CommitSends();
  DieThreeTimes([this] { Apply(); });
  Recover();
  EXPECT_EQ(Apply(), CommitOutcome::kInvalid);
  EXPECT_THAT(std::string(error.message()), HasSubstr("each driver"));
  Recover();  // the next one finds it, too
  EXPECT_EQ(Apply(), CommitOutcome::kInvalid);
  EXPECT_EQ(arena->connection(deadly).send.committed, 0u);
}

TEST_F(CrashLoopTest, shouldFailNothingWhereDriversDieAtOneThingAfterAnother) {
  device.answers = true;
  for (int i = 0; i < 10; ++i) {
    DieAt("driver-before-post");
    CommitSend(deadly);
    EXPECT_THROW(Apply(), DriverDied);
    g_deadly = "";
    Recover();
    ASSERT_EQ(driver->recovery().connections_failed, 0u);
    CompleteSend(deadly);
    Poll();
  }
  EXPECT_EQ(state(deadly), ConnectionState::kEstablished);
}

TEST_F(CrashLoopTest, shouldFailNothingWhereDriversDieAtNothing) {
  for (int i = 0; i < 10; ++i) Recover();
  EXPECT_EQ(driver->recovery().connections_failed, 0u);
}

// Recoveries that die at an idle connection, and one that does not, time after time.
TEST_F(CrashLoopTest, shouldForgetRecoveriesThatDiedWhenOneHasNot) {
  for (int i = 0; i < 4; ++i) {
    DieAt("driver-recovers-connection");
    for (int death = 0; death < 2; ++death) DieRecovering();
    g_deadly = "";
    Recover();
    ASSERT_EQ(driver->recovery().connections_failed, 0u);
  }
  EXPECT_EQ(state(deadly), ConnectionState::kEstablished);
}

// Others idle in another shard meanwhile, whose recovery is under way, too.
TEST_F(CrashLoopTest, shouldFailNothingInOtherShards) {
  Make(testing::TestShape(2));
  const auto far = local->manager().Connect(1, {"10.0.0.2", 2}, "", 7);
  ASSERT_TRUE(far.ok());
  HandleNotices();
  Handle(*far, verbs::CmEventType::kEstablished);
  ASSERT_EQ(state(*far), ConnectionState::kEstablished);
  DieAt("driver-recovers-connection", arena::AtConnection(*far));
  for (int death = 0; death < 3; ++death) DieRecovering();
  g_deadly = "";
  Recover();
  EXPECT_EQ(driver->recovery().connections_failed, 1u);
  EXPECT_EQ(state(*far), ConnectionState::kClosed);
  EXPECT_EQ(state(deadly), ConnectionState::kEstablished);
  EXPECT_EQ(state(other), ConnectionState::kEstablished);
}

TEST_F(CrashLoopTest, shouldFailTheConnectionOfARequestWhosePeerGoesOnSending) {
  for (uint64_t i = 0; i < 4; ++i) writer->Receive(deadly, 4096 + i * 64, 64);
  writer->Publish();
  ASSERT_EQ(Apply(), CommitOutcome::kApplied) << error;
  device.answers = true;
  DieAt("driver-before-post");
  CommitSend(deadly);
  const uint32_t queue_pair = arena->connection(deadly).qp_number;
  EXPECT_THROW(Apply(), DriverDied);
  for (int death = 1; death < 3; ++death) {
    device.Complete(queue_pair, true, "more");
    DieRecovering();
  }
  device.Complete(queue_pair, true, "more");
  Recover();
  EXPECT_EQ(driver->recovery().connections_failed, 1u);
  EXPECT_EQ(state(other), ConnectionState::kEstablished);
}

// A driver dies while it condemns the connection.
TEST_F(CrashLoopTest, shouldFailTheConnectionThatADeadDriverBeganToCondemn) {
  device.answers = true;
  DieAt("driver-before-post");
  CommitSend(deadly);
  DieThreeTimes([this] { Apply(); });
  DieAt("driver-condemned", 0);
  DieRecovering();
  g_deadly = "";
  Recover();
  Poll();
  EXPECT_EQ(state(deadly), ConnectionState::kClosed);
  ExpectOtherServesAfterTheEnd();
}

}  // namespace
}  // namespace baton::driver
