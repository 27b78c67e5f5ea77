// Kills pingd before, within and after each step of its protocols: no step is lost, and none is
// made twice, as clients see that check each (ping_client.h).
#include <sys/wait.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/worker/examples/pingd/pingd_fixture.h"

namespace baton::pingd {
namespace {

class PingdCrashTest : public PingdTest {
 protected:
  // A worker that is safe owns everything; one that will die at `point` is ready.
  void StartSafe(const std::string& protocol) {
    protocol_ = protocol;
    ASSERT_NO_FATAL_FAILURE(StartCluster());
    PingdOptions options;
    options.version = 2;
    options.arguments = {"--protocol", protocol_};
    ASSERT_NO_FATAL_FAILURE(StartPingd(options, &safe_));
    ASSERT_OK(cluster_->WaitUntilOwner(safe_->id));
  }

  // Returns when a worker that dies at that passing of `point` has been given the shards.
  void MakeDoomedOwner(const std::string& point, int passing) {
    PingdOptions options;
    options.test_hooks = true;
    options.crash_at = absl::StrCat(point, ":", passing);
    options.arguments = {"--protocol", protocol_};
    ASSERT_NO_FATAL_FAILURE(StartPingd(options, &doomed_));
    // It may die before the handoff is answered: that is the point.
    (void)cluster_->Handoff(doomed_->id);
  }

  void ExpectDeathAndRecovery() {
    const auto ended = doomed_->process->WaitEnd(kTimeout);
    ASSERT_OK(ended);
    ASSERT_TRUE(WIFSIGNALED(*ended) && WTERMSIG(*ended) == SIGKILL) << *ended;
    ASSERT_OK(cluster_->WaitUntilOwner(safe_->id));
  }

  std::string protocol_;
  std::unique_ptr<PingdWorker> safe_, doomed_;
};

TEST_F(PingdCrashTest, shouldLoseAndRepeatNoStepOfRping) {
  ASSERT_NO_FATAL_FAILURE(StartSafe("rping"));
  ASSERT_NO_FATAL_FAILURE(StartLoads(2, 1000));
  for (const char* step : {"source", "read", "sink", "written", "sent"}) {
    for (const char* moment : {"begin", "staged", "end"}) {
      for (const int passing : {1, 2, 7}) {
        SCOPED_TRACE(absl::StrCat(step, " ", moment, " ", passing));
        ASSERT_NO_FATAL_FAILURE(
            MakeDoomedOwner(absl::StrCat("pingd-", step, "-", moment), passing));
        ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
        ASSERT_NO_FATAL_FAILURE(ExpectPings());
      }
    }
  }
  ExpectNothingLost();
}

// The six completions of a ping, one after the other: each of them is the one that is committed.
TEST_F(PingdCrashTest, shouldLoseAndRepeatNoStepOnEitherSideOfTheCommit) {
  ASSERT_NO_FATAL_FAILURE(StartSafe("rping"));
  ASSERT_NO_FATAL_FAILURE(StartLoads(1, 1000));
  for (const char* point : {"commit-before-publish", "commit-published"}) {
    // The first commits are those of the adoption.
    for (int passing = 3; passing < 3 + 6; ++passing) {
      SCOPED_TRACE(absl::StrCat(point, ":", passing));
      ASSERT_NO_FATAL_FAILURE(MakeDoomedOwner(point, passing));
      ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
      ASSERT_NO_FATAL_FAILURE(ExpectPings());
    }
  }
  ExpectNothingLost();
}

TEST_F(PingdCrashTest, shouldServeAConnectionWhoseAcceptDied) {
  ASSERT_NO_FATAL_FAILURE(StartSafe("rping"));
  for (const char* point : {"pingd-accept-begin", "pingd-accept-end"}) {
    SCOPED_TRACE(point);
    ASSERT_NO_FATAL_FAILURE(MakeDoomedOwner(point, 1));
    ASSERT_NO_FATAL_FAILURE(StartLoads(1, 1000));
    ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
    ASSERT_NO_FATAL_FAILURE(ExpectPings());
  }
  ExpectNothingLost();
}

TEST_F(PingdCrashTest, shouldAnswerRdmaClientOnce) {
  ASSERT_NO_FATAL_FAILURE(StartSafe("rdma_client"));
  for (const char* step : {"message", "sent"}) {
    for (const char* moment : {"begin", "staged", "end"}) {
      SCOPED_TRACE(absl::StrCat(step, " ", moment));
      ASSERT_NO_FATAL_FAILURE(MakeDoomedOwner(absl::StrCat("pingd-", step, "-", moment), 1));
      const auto client = ClientConnection::Connect(port_, 1);
      ASSERT_OK(client);
      ASSERT_OK((*client)->Send({}));
      const auto reply = (*client)->Receive();
      ASSERT_OK(reply);
      EXPECT_EQ(reply->number, 1u);
      EXPECT_OK((*client)->WaitUntilDisconnected());  // and no second answer before
      ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
    }
  }
  ExpectNoConnections();
}

}  // namespace
}  // namespace baton::pingd
