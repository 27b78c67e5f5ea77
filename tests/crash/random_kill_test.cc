// Kills the owner at random moments under load, with and without a standby. BATON_KILLS: how often
// (60); BATON_SEED: of the moments (printed).
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "tests/crash/crash_fixture.h"

namespace baton::crash {
namespace {

uint64_t Setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

// The moment of a kill, not a wait for something: any duration is right.
void PassTime(uint64_t microseconds) {
  const timespec duration = {static_cast<time_t>(microseconds / 1'000'000),
                             static_cast<long>(microseconds % 1'000'000) * 1000};
  nanosleep(&duration, nullptr);
}

class RandomKillTest : public CrashTest {
 protected:
  // Kills the owner `kills` times; every tenth time nobody stands by.
  void KillOwners(uint64_t kills, uint64_t seed) {
    std::printf("%llu kills, BATON_SEED=%llu\n", static_cast<unsigned long long>(kills),
                static_cast<unsigned long long>(seed));
    std::mt19937_64 random(seed);
    std::unique_ptr<harness::LedgerWorker> owner, standby;
    ASSERT_NO_FATAL_FAILURE(StartWorker(1, &owner));
    ASSERT_NO_FATAL_FAILURE(StartPeer(Setting("BATON_RATE", 6000)));
    for (uint64_t i = 0; i < kills; ++i) {
      SCOPED_TRACE(i);
      const bool cold = i % 10 == 9;
      const int version = i % 2 == 0 ? 2 : 1;
      if (!cold) {
        ASSERT_NO_FATAL_FAILURE(StartWorker(version, &standby));
      }
      PassTime(random() % 8000);
      ASSERT_OK(owner->process->Signal(SIGKILL));
      if (cold) {
        ASSERT_NO_FATAL_FAILURE(StartWorker(version, &standby));
      }
      ASSERT_OK(cluster_->WaitUntilOwner(standby->id));
      owner = std::move(standby);
      if (i % 100 == 99) std::printf("%llu kills\n", static_cast<unsigned long long>(i + 1));
    }
    owner_ = std::move(owner);
  }

  std::unique_ptr<harness::LedgerWorker> owner_;
};

TEST_F(RandomKillTest, shouldLoseAndRepeatNothing) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(
      KillOwners(Setting("BATON_KILLS", 60), Setting("BATON_SEED", std::random_device()())));
  ASSERT_OK(peer_->Settle());
  ExpectNothingLost();
}

// Completions come late and out of step with commits: other windows are hit.
TEST_F(RandomKillTest, shouldLoseAndRepeatNothingOverALinkThatDelaysAndRefuses) {
  const uint64_t seed = Setting("BATON_SEED", std::random_device()());
  harness::ClusterOptions options;
  options.batond_arguments = {"--faults",
                              "seed=" + std::to_string(seed) +
                                  ";delay:p=0.02,us=300;stall:p=0.002,us=2000;rnr:p=0.01,us=500"};
  ASSERT_NO_FATAL_FAILURE(StartCluster(options));
  ASSERT_NO_FATAL_FAILURE(KillOwners(Setting("BATON_KILLS", 60) / 4, seed));
  ASSERT_OK(peer_->Settle());
  ExpectNothingLost();
}

// The checker is worth something: with a recovery that forgets what was not acknowledged it fails.
TEST_F(RandomKillTest, shouldBeCaughtByTheCheckerWhenRecoveryIsBroken) {
  ASSERT_EQ(setenv("BATON_BREAK_RECOVERY", "1", 1), 0);
  harness::ClusterOptions options;
  options.keeper = "baton-keeper-test-hooks";
  ASSERT_NO_FATAL_FAILURE(StartCluster(options));
  unsetenv("BATON_BREAK_RECOVERY");
  ASSERT_NO_FATAL_FAILURE(KillOwners(20, 1));
  const auto result = peer_->Stop();
  ASSERT_OK(result);
  EXPECT_FALSE(result->Flag("ok")) << result->text();
  EXPECT_GT(result->Count("lost") + result->Count("wrong_total") + result->Count("disconnects"), 0u)
      << result->text();
}

}  // namespace
}  // namespace baton::crash
