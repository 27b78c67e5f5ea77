// Upgrades and kills filed, at named points and at random, while clients fetch its tree: every tree
// is byte-identical, and each client has one connection all the time.
// BATON_KILLS: how many owners are killed at random moments (6), and half as many upgrades;
// BATON_SEED: of these (printed).
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/worker/examples/filed/filed_fixture.h"

namespace baton::filed {
namespace {

using examples::ExampleWorker;

// Points that every owner passes while trees are fetched.
const char* const kServingPoints[] = {
    "filed-request-taken",    "filed-transfer-begun",  "filed-advanced",
    "filed-answered",         "filed-event-end",       "file-piece-read",
    "file-piece-staged",      "file-reads-submitted",  "stream-placed",
    "worker-heap-allocated",  "worker-heap-freed",     "worker-state-staged",
    "deliver-before-handler", "deliver-after-handler", "commit-before-publish",
    "commit-published",
};

uint64_t Setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// The moment of a kill, not a wait for something: any duration is right.
void PassTime(uint64_t microseconds) {
  const timespec duration = {static_cast<time_t>(microseconds / 1'000'000),
                             static_cast<long>(microseconds % 1'000'000) * 1000};
  nanosleep(&duration, nullptr);
}

class FiledCrashTest : public FiledTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(FiledTest::SetUp());
    MakeTree();
    ASSERT_NO_FATAL_FAILURE(StartCluster());
  }
};

TEST_F(FiledCrashTest, shouldGoOnAtTheRightByteWhereverItsOwnerDies) {
  ASSERT_NO_FATAL_FAILURE(StartSafe());
  ASSERT_NO_FATAL_FAILURE(StartLoads(2));
  for (const char* point : kServingPoints) {
    for (const int passing : {1, 5}) {
      ASSERT_NO_FATAL_FAILURE(ExpectProgressOverDeathAt(point, passing));
    }
  }
  ExpectNothingLost();
  ExpectNoConnections();
}

TEST_F(FiledCrashTest, shouldGoOnWhenAnOwnerDiesWhileItTakesOver) {
  ASSERT_NO_FATAL_FAILURE(StartSafe());
  ASSERT_NO_FATAL_FAILURE(StartLoads(2));
  for (const char* point : {"adopt-begin", "adopt-before-commit", "adopt-committed"}) {
    ASSERT_NO_FATAL_FAILURE(ExpectProgressOverDeathAt(point, 1));
  }
  for (const char* point : {"release-begin", "release-published"}) {
    SCOPED_TRACE(point);
    ASSERT_NO_FATAL_FAILURE(MakeDoomedOwner(point, 1));
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
    (void)cluster_->Handoff(safe_->id);
    ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ExpectNothingLost();
}

TEST_F(FiledCrashTest, shouldServeAConnectionWhoseAcceptDied) {
  ASSERT_NO_FATAL_FAILURE(StartSafe());
  for (const char* point : {"filed-accept-begin", "stream-ring-granted", "filed-accept-end"}) {
    SCOPED_TRACE(point);
    ASSERT_NO_FATAL_FAILURE(MakeDoomedOwner(point, 1));
    loads_.push_back(std::make_unique<FetchLoad>(port_, Served(), Fetched()));
    ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
    ExpectNothingLost();
  }
  ExpectNoConnections();
}

TEST_F(FiledCrashTest, shouldGoOnAtTheRightByteOverRandomKillsAndUpgrades) {
  const uint64_t kills = Setting("BATON_KILLS", 6);
  const uint64_t seed = Setting("BATON_SEED", std::random_device()());
  std::printf("BATON_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  constexpr uint64_t kLatestUs = 300'000;
  ASSERT_NO_FATAL_FAILURE(StartWorker({}, &worker_));
  ASSERT_NO_FATAL_FAILURE(StartLoads(3));
  for (uint64_t i = 0; i < kills; ++i) {
    SCOPED_TRACE(absl::StrCat("kill ", i));
    std::unique_ptr<ExampleWorker> next;
    ASSERT_NO_FATAL_FAILURE(StartWorker({.version = static_cast<int>(1 + i % 2)}, &next));
    PassTime(random() % kLatestUs);
    ASSERT_OK(worker_->process->Kill());
    worker_ = std::move(next);
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  for (uint64_t i = 0; i < kills / 2; ++i) {
    SCOPED_TRACE(absl::StrCat("upgrade ", i));
    PassTime(random() % kLatestUs);
    ASSERT_NO_FATAL_FAILURE(UpgradeTo(absl::StrCat("filed-v", 1 + i % 2)));
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ExpectNothingLost();
  ExpectNoConnections();
}

}  // namespace
}  // namespace baton::filed
