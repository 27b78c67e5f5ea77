// Kills nvmed before, within and after each step of a command: each is answered once, its effect is
// there once, and the counters of the health log are exact, as hosts see that check all of it
// (host_queue.h, block_load.h).
// BATON_KILLS: how many owners are killed at random moments (10); BATON_SEED: of these (printed).
#include <time.h>

#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/harness/setting.h"
#include "tests/harness/wait_until.h"
#include "tests/worker/examples/nvmed/nvme_host.h"
#include "tests/worker/examples/nvmed/nvmed_fixture.h"

namespace baton::nvmed {
namespace {

// Points that a worker passes while it serves commands.
const char* const kServingPoints[] = {
    "nvmed-command-begin",   "nvmed-command-end",   "nvmed-fetched-begin",
    "nvmed-fetched-end",     "nvmed-executed",      "nvmed-data-staged",
    "nvmed-response-staged", "nvmed-commit",        "worker-send-staged",
    "worker-receive-staged", "worker-state-staged", "deliver-before-handler",
    "deliver-after-handler", "commit-begin",        "commit-entry-written",
    "commit-before-publish", "commit-published",    "commit-driver-woken",
};

// The moment of a kill, not a wait for something: any duration is right.
void PassTime(uint64_t microseconds) {
  const timespec duration = {static_cast<time_t>(microseconds / 1'000'000),
                             static_cast<long>(microseconds % 1'000'000) * 1000};
  nanosleep(&duration, nullptr);
}

class NvmedCrashTest : public NvmedTest {
 protected:
  // On memory and file; with so many outstanding that chunks run out; and one with few.
  void StartLoads() {
    StartLoad(kMemoryNamespace, 2, 6);
    StartLoad(kFileNamespace, 2, 12);
    StartLoad(kFileNamespace, 1, 1);
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  // Starts hosts that rest. Owners die at named points, which a few commands reach.
  void StartSlowLoads() {
    ASSERT_NO_FATAL_FAILURE(StartLoads());
    for (const auto& load : loads_) load->SlowDown();
  }
};

TEST_F(NvmedCrashTest, shouldAnswerEachCommandOnceWhereverItsOwnerDies) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(StartSafe());
  ASSERT_NO_FATAL_FAILURE(StartSlowLoads());
  for (const char* point : kServingPoints) {
    for (const int passing : {1, 2, 41}) {
      ASSERT_NO_FATAL_FAILURE(ExpectProgressOverDeathAt(point, passing));
    }
  }
  ExpectNothingLost();
  ExpectNoConnections();
}

TEST_F(NvmedCrashTest, shouldAnswerEachCommandOnceWhenTheShardIsOnItsWay) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(StartSafe());
  ASSERT_NO_FATAL_FAILURE(StartSlowLoads());
  for (const char* point :
       {"adopt-begin", "load-connection", "adopt-before-commit", "adopt-committed"}) {
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

TEST_F(NvmedCrashTest, shouldServeAQueueWhoseAcceptDied) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(StartSafe());
  for (const char* point : {"nvmed-accept-begin", "nvmed-accept-end"}) {
    for (const int passing : {1, 2}) {  // the admin queue, an I/O queue
      SCOPED_TRACE(absl::StrCat(point, ":", passing));
      ASSERT_NO_FATAL_FAILURE(MakeDoomedOwner(point, passing));
      StartLoad(kMemoryNamespace);
      ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
      ASSERT_NO_FATAL_FAILURE(ExpectProgress());
    }
  }
  ExpectNothingLost();
}

// The commands of a connect, one after the other: each of them is the one whose owner dies.
TEST_F(NvmedCrashTest, shouldConnectAHostWhoseEachCommandKillsAnOwner) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(StartSafe());
  for (const char* point : {"nvmed-response-staged", "nvmed-commit"}) {
    for (int passing = 1; passing <= 8; ++passing) {
      SCOPED_TRACE(absl::StrCat(point, ":", passing));
      ASSERT_NO_FATAL_FAILURE(MakeDoomedOwner(point, passing));
      const auto host = NvmeHost::Connect(HostOptions(2));
      ASSERT_OK(host);
      for (int i = 0; i < 8; ++i) ASSERT_OK((*host)->KeepAlive());
      ASSERT_OK((*host)->Disconnect());
      ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
      ExpectNoConnections();
    }
  }
}

// The hosts are checkers: they have to find each of these.
TEST_F(NvmedCrashTest, shouldBeCaughtLosingOrRepeatingAnAnswer) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::vector<std::unique_ptr<ExampleWorker>> workers;  // the first ones stand by
  for (const auto& [fault, finding] :
       {std::pair("lose-response", "answers were lost or repeated"),
        std::pair("repeat-response", "a second answer to command")}) {
    SCOPED_TRACE(fault);
    ExampleOptions options;
    options.test_hooks = true;
    options.arguments = {"--fault", fault, "--fault-at", "40"};
    ASSERT_NO_FATAL_FAILURE(StartWorker(options, &workers.emplace_back()));
    ASSERT_OK(cluster_->Handoff(workers.back()->id));
    BlockLoadOptions load = LoadOptions(kFileNamespace);
    load.invalidate_keys = false;  // a key that is invalidated twice ends the connection
    StartLoad(load);
    EXPECT_OK(harness::WaitUntil(
        "the host to find it", [&] { return loads_.back()->failed(); }, kTimeout));
    EXPECT_THAT(std::string(loads_.back()->Stop().message()), testing::HasSubstr(finding));
  }
}

TEST_F(NvmedCrashTest, shouldBeCaughtLosingAWrite) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ExampleOptions options;
  options.test_hooks = true;
  options.arguments = {"--fault", "lose-write", "--fault-at", "2"};
  std::unique_ptr<ExampleWorker> worker;
  ASSERT_NO_FATAL_FAILURE(StartWorker(options, &worker));
  const auto host = NvmeHost::Connect(HostOptions());
  ASSERT_OK(host);
  BlockModel model(0, 24, kBlockBytes);
  for (uint32_t write = 1; write <= 3; ++write) {
    const BlockRange range{8 * (write - 1), 8};
    ASSERT_OK(ExpectSuccess(
        (*host)->io().Execute(BlocksOf(IoOpcode::kWrite, kFileNamespace, range.first, 8),
                              InCapsule(model.Data(range, write))),
        "Write"));
    model.Write(range, write);
  }
  const auto read =
      (*host)->io().Execute(BlocksOf(IoOpcode::kRead, kFileNamespace, 0, 24), ToHost(24 * 512));
  ASSERT_OK(ExpectSuccess(read, "Read"));
  EXPECT_EQ(model.Compare({0, 24}, read->data),
            "block 8 does not hold what write 2 has left there");
}

TEST_F(NvmedCrashTest, shouldLoseNothingWhenOwnersAreKilledAtRandom) {
  const uint64_t kills = harness::Setting("BATON_KILLS", harness::Slowness() > 1 ? 2 : 10);
  const uint64_t seed = harness::Setting("BATON_SEED", std::random_device()());
  std::printf("%llu kills, BATON_SEED=%llu\n", static_cast<unsigned long long>(kills),
              static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::unique_ptr<ExampleWorker> owner;
  ASSERT_NO_FATAL_FAILURE(StartWorker({}, &owner));
  ASSERT_NO_FATAL_FAILURE(StartLoads());
  for (uint64_t i = 0; i < kills; ++i) {
    SCOPED_TRACE(absl::StrCat("kill ", i));
    ExampleOptions options;
    options.version = 1 + static_cast<int>(random() % 2);
    std::unique_ptr<ExampleWorker> heir;
    ASSERT_NO_FATAL_FAILURE(StartWorker(options, &heir));
    PassTime(random() % 20'000);
    ASSERT_OK(owner->process->Kill());
    ASSERT_OK(cluster_->WaitUntilOwner(heir->id));
    // Now and then the next one has nothing done yet.
    const uint64_t commands = random() % 4 == 0 ? 0 : 1 + random() % 50;
    ASSERT_NO_FATAL_FAILURE(ExpectProgress(commands));
    owner = std::move(heir);
  }
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  ExpectNothingLost();
  ExpectNoConnections();
}

}  // namespace
}  // namespace baton::nvmed
