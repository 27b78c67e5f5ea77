// `baton-driver` may die at any time: its twin goes on in its place. No connection ends, nothing is
// lost or happens twice, and peers connect again soon.
//
// BATON_DRIVER_DEATHS: how many die at random moments (20); BATON_SEED: of these moments.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/check.h"
#include "tests/harness/child_process.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/setting.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/verbs/fabric.h"
#include "tests/system/death_fixture.h"

namespace baton {
namespace {

using harness::ClusterOptions;
using harness::LedgerWorker;
using harness::PeerOptions;
using harness::PeerProcess;
using harness::TwinOf;

class DriverDeath : public death::DeathTest {
 protected:
  void Start(const ClusterOptions& options = ClusterOptions()) {
    ASSERT_NO_FATAL_FAILURE(DeathTest::Start(options));
    ASSERT_NO_FATAL_FAILURE(AwaitAnother(0));
  }
  // Waits until a driver that is not `dead` is known, and has a twin that is not.
  void AwaitAnother(pid_t dead, pid_t dead_too = 0) {
    ASSERT_OK(harness::WaitUntil("a driver and its twin", [&] {
      const auto status = cluster_->operators().GetStatus();
      if (!status.ok() || status->services_size() != 1) return false;
      driver_ = status->services(0).driver_pid();
      twin_ = TwinOf(driver_);
      return driver_ != 0 && driver_ != dead && twin_ != 0 && twin_ != dead_too;
    }));
  }
  // Stops the driver, so that its twin, which this returns, stays the same.
  pid_t StopDriver() {
    EXPECT_EQ(kill(driver_, SIGSTOP), 0);
    EXPECT_OK(harness::WaitUntil("the twin", [&] { return TwinOf(driver_) != 0; }));
    return TwinOf(driver_);
  }

  // Nobody follows the last of 20 drivers in a row that die within 0.1 s of the death before. So
  // some live for longer, however fast the machine is.
  void KillDriver() {
    if (++killed_ % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(150));
    Kill(driver_);
  }

  pid_t driver_ = 0, twin_ = 0;
  uint64_t killed_ = 0;
};

TEST_F(DriverDeath, shouldBeFollowedByItsTwin) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const pid_t heir = StopDriver();
  ASSERT_NO_FATAL_FAILURE(Kill(driver_));
  ASSERT_NO_FATAL_FAILURE(AwaitAnother(driver_));
  EXPECT_EQ(driver_, heir);
  EXPECT_OK(
      harness::WaitUntil("the event", [&] { return HasEvent("driver_followed").value_or(false); }));
  ExpectServed();
  harness::ExpectNothingLost(*peer_);
}

TEST_F(DriverDeath, shouldReplaceATwin) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const pid_t driver = driver_, twin = StopDriver();
  ASSERT_NO_FATAL_FAILURE(Kill(twin));
  ASSERT_EQ(kill(driver, SIGCONT), 0);
  ASSERT_NO_FATAL_FAILURE(AwaitAnother(0, twin));
  EXPECT_EQ(driver_, driver);
  ASSERT_NO_FATAL_FAILURE(Kill(driver));
  ASSERT_NO_FATAL_FAILURE(AwaitAnother(driver));
  ExpectServed();
  harness::ExpectNothingLost(*peer_);
}

// Workers come and go, and shards move, after a death as before.
TEST_F(DriverDeath, shouldGoOnWithItsWorkers) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Kill(driver_));
  ASSERT_NO_FATAL_FAILURE(AwaitAnother(driver_));
  std::unique_ptr<LedgerWorker> second;
  ASSERT_OK_AND_ASSIGN(second, cluster_->StartLedger(2));
  ASSERT_OK(cluster_->Handoff(second->id));
  ASSERT_OK(owner_->process->Signal(SIGKILL));
  ASSERT_NO_FATAL_FAILURE(Kill(driver_));
  ASSERT_NO_FATAL_FAILURE(AwaitAnother(driver_));
  ASSERT_OK_AND_ASSIGN(owner_, cluster_->StartLedger(1));
  ASSERT_OK(cluster_->WaitUntilReady(owner_->id));
  ASSERT_OK(second->process->Signal(SIGKILL));
  ASSERT_OK(cluster_->WaitUntilOwner(owner_->id));
  ExpectServed();
  harness::ExpectNothingLost(*peer_);
}

TEST_F(DriverDeath, shouldEndInOrderWithoutAFollower) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const pid_t driver = driver_, twin = StopDriver();
  ASSERT_EQ(kill(driver, SIGTERM), 0);
  ASSERT_EQ(kill(driver, SIGCONT), 0);
  ASSERT_OK(
      harness::WaitUntil("both ends", [&] { return kill(driver, 0) != 0 && kill(twin, 0) != 0; }));
}

// The negative control: with nobody left to follow, everything ends, and it is seen.
TEST_F(DriverDeath, shouldEndConnectionsWhereTheTwinDiesWithIt) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const pid_t driver = driver_;
  ASSERT_NO_FATAL_FAILURE(Kill(StopDriver()));  // else it would fork another
  ASSERT_NO_FATAL_FAILURE(Kill(driver));
  ASSERT_NO_FATAL_FAILURE(AwaitAnother(driver));
  const auto result = peer_->Stop();
  ASSERT_OK(result);
  EXPECT_GT(result->Count("disconnects"), 0u);
  EXPECT_EQ(result->Count("duplicated") + result->Count("corrupt"), 0u);
}

// It has one thread, and its own memory is small beside the arena.
TEST_F(DriverDeath, shouldStayWithinItsBudget) {
  constexpr uint64_t kMostKilobytes = 4096;
  ClusterOptions options;
  // 256 queue pairs: an rdma device needs two for each connection.
  options.max_connections = verbs::testing::FabricUnderTest().device == "soft" ? 256 : 128;
  ASSERT_NO_FATAL_FAILURE(Start(options));
  for (const pid_t process : {driver_, TwinOf(driver_)}) {
    EXPECT_EQ(harness::StatusOf(process, "Threads"), "1");
    const death::Possessions own({process});
    EXPECT_GT(own.kilobytes, 0u);
    EXPECT_LE(own.kilobytes, kMostKilobytes);
  }
}

TEST_F(DriverDeath, shouldNotGrowWithDeaths) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ExpectNoGrowth(
      harness::Setting("BATON_DRIVER_DEATHS", 20),
      [&] {
        ASSERT_NO_FATAL_FAILURE(KillDriver());
        ASSERT_NO_FATAL_FAILURE(AwaitAnother(driver_));
      },
      [&] {
        return std::vector<pid_t>{driver_, TwinOf(driver_), Service().broker_pid(),
                                  cluster_->batond().pid(),
                                  cluster_->batond().FindChild("baton-control")};
      });
}

// Kills at random moments, of drivers, twins and owners. Peers come meanwhile, and go.
TEST_F(DriverDeath, shouldLoseNothingAtRandomMoments) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const uint64_t deaths = harness::Setting("BATON_DRIVER_DEATHS", 20);
  const uint64_t seed = harness::Setting("BATON_SEED", std::random_device()());
  std::printf("%llu deaths, BATON_SEED=%llu\n", static_cast<unsigned long long>(deaths),
              static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  int version = 1;
  for (uint64_t i = 0; i < deaths; ++i) {
    SCOPED_TRACE(absl::StrCat("death ", i));
    if (random() % 4 == 0) {
      version = 3 - version;
      std::unique_ptr<LedgerWorker> heir;
      ASSERT_OK_AND_ASSIGN(heir, cluster_->StartLedger(version));
      ASSERT_OK(cluster_->WaitUntilReady(heir->id));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      ASSERT_OK(owner_->process->Signal(SIGKILL));
      owner_ = std::move(heir);
    }
    std::unique_ptr<PeerProcess> newcomer;
    if (i % 3 == 1) {
      auto started = cluster_->StartPeer(PeerOptions());
      ASSERT_OK(started);
      newcomer = *std::move(started);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    ASSERT_NO_FATAL_FAILURE(KillDriver());
    if (newcomer) harness::ExpectNothingLost(*newcomer);
    ASSERT_NO_FATAL_FAILURE(AwaitAnother(driver_));
    ASSERT_OK(peer_->Settle());
  }
  ExpectServed();
  harness::ExpectNothingLost(*peer_);
}

}  // namespace
}  // namespace baton
