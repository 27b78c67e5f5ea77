// Kills the owner at every named crash point of the worker library and of the ledger, at several
// passings of each, under checked traffic: no effect is lost and none happens twice (P1, P2).
// BATON_RATE: of the peer, in messages per second (4000).
#include <sys/wait.h>

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/crash/crash_fixture.h"
#include "tests/harness/wait_until.h"

namespace baton::crash {
namespace {

constexpr std::chrono::seconds kDeathTimeout{20};

// Returns which passings of a crash point a test tries, in this order. An emulated machine has the
// time for the first one only.
std::vector<int> Passings(std::vector<int> passings) {
  if (harness::Slowness() > 1) passings.resize(1);
  return passings;
}

// Points that a worker passes while it serves.
const char* const kServingPoints[] = {
    "deliver-before-handler", "ledger-before-apply",   "ledger-after-apply",
    "ledger-before-state",    "worker-state-staged",   "ledger-after-state",
    "worker-send-staged",     "worker-receive-staged", "ledger-after-stage",
    "deliver-after-handler",  "commit-begin",          "commit-entry-written",
    "commit-before-publish",  "commit-published",      "commit-driver-woken",
};

class CrashPointTest : public CrashTest {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(Begin(harness::ClusterOptions())); }

  void Begin(const harness::ClusterOptions& options) {
    ASSERT_NO_FATAL_FAILURE(StartCluster(options));
    ASSERT_NO_FATAL_FAILURE(StartWorker(2, &safe_));
    ASSERT_NO_FATAL_FAILURE(StartPeer(harness::Setting("BATON_RATE", 4000)));
  }

  // A worker that dies at the given passing of `point`; ready, and not yet an owner.
  void StartDoomed(const std::string& point, int passing) {
    ASSERT_NO_FATAL_FAILURE(StartWorker(1, &doomed_, absl::StrCat(point, ":", passing)));
  }

  // It dies by its own SIGKILL, the safe worker goes on, and every connection is answered.
  void ExpectDeathAndRecovery() {
    const auto ended = doomed_->process->WaitEnd(kDeathTimeout);
    ASSERT_OK(ended);
    ASSERT_TRUE(WIFSIGNALED(*ended) && WTERMSIG(*ended) == SIGKILL) << *ended;
    ASSERT_OK(cluster_->WaitUntilOwner(safe_->id));
    ASSERT_OK(peer_->Settle());
  }

  std::unique_ptr<harness::LedgerWorker> safe_, doomed_;
};

TEST_F(CrashPointTest, shouldLoseNothingWhenAnOwnerDiesAtAnyPointOfItsLoop) {
  for (const char* point : kServingPoints) {
    for (const int passing : Passings({57, 1, 2})) {
      SCOPED_TRACE(absl::StrCat(point, ":", passing));
      ASSERT_NO_FATAL_FAILURE(StartDoomed(point, passing));
      // It may die before the handoff is answered: that is the point.
      (void)cluster_->Handoff(doomed_->id);
      ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
    }
  }
  ExpectNothingLost();
}

TEST_F(CrashPointTest, shouldLoseNothingWhenASuccessorDiesWhileItAdopts) {
  for (const char* point : {"adopt-begin", "adopt-before-commit", "adopt-committed"}) {
    for (const int passing : Passings({2, 1, 4})) {  // one for each shard
      SCOPED_TRACE(absl::StrCat(point, ":", passing));
      ASSERT_NO_FATAL_FAILURE(StartDoomed(point, passing));
      (void)cluster_->Handoff(doomed_->id);
      ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
    }
  }
  ExpectNothingLost();
}

TEST_F(CrashPointTest, shouldLoseNothingWhenAnOwnerDiesWhileItReleases) {
  for (const char* point : {"release-begin", "release-published"}) {
    for (const int passing : Passings({2, 1, 4})) {
      SCOPED_TRACE(absl::StrCat(point, ":", passing));
      ASSERT_NO_FATAL_FAILURE(StartDoomed(point, passing));
      ASSERT_OK(cluster_->Handoff(doomed_->id));
      (void)cluster_->Handoff(safe_->id);
      ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
    }
  }
  ExpectNothingLost();
}

TEST_F(CrashPointTest, shouldServeAConnectionWhoseAcceptDied) {
  ASSERT_NO_FATAL_FAILURE(StartDoomed("ledger-after-accept", 1));
  ASSERT_OK(cluster_->Handoff(doomed_->id));
  harness::PeerOptions options;
  options.connections = kExtraConnections;
  options.window = 4;
  options.rate = 1000;
  const auto late = cluster_->StartPeer(options);
  ASSERT_OK(late);
  ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
  ASSERT_OK((*late)->Settle());
  harness::ExpectNothingLost(**late);
  ExpectNothingLost();
}

class SharedCrashPointTest : public CrashPointTest {
 protected:
  void SetUp() override {
    harness::ClusterOptions options;
    options.batond_arguments = {"--shared-receive-queue-depth", "32"};
    ASSERT_NO_FATAL_FAILURE(Begin(options));
  }
};

TEST_F(SharedCrashPointTest, shouldLoseNothingWhereReceivesAreShared) {
  for (const char* point : {"deliver-before-handler", "worker-shared-receive-staged",
                            "ledger-after-state", "commit-entry-written", "commit-before-publish",
                            "commit-published", "adopt-begin", "adopt-before-commit"}) {
    for (const int passing : Passings({2, 1, 4})) {
      SCOPED_TRACE(absl::StrCat(point, ":", passing));
      ASSERT_NO_FATAL_FAILURE(StartDoomed(point, passing));
      (void)cluster_->Handoff(doomed_->id);
      ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
    }
  }
  ExpectNothingLost();
}

}  // namespace
}  // namespace baton::crash
