// A broker may die or hang at any time: its twin goes on with the queues. No connection ends, and
// nothing is lost or happens twice.
//
// BATON_BROKER_DEATHS: how many brokers die at random moments (20); BATON_SEED: of these moments.
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
#include "tests/system/death_fixture.h"

namespace baton {
namespace {

using harness::ClusterOptions;
using harness::LedgerWorker;
using harness::PeerOptions;

class BrokerDeath : public death::DeathTest {
 protected:
  void Start(const ClusterOptions& options = ClusterOptions()) {
    ASSERT_NO_FATAL_FAILURE(DeathTest::Start(options));
    ASSERT_NO_FATAL_FAILURE(AwaitBoth());
    driver_ = Service().driver_pid();
  }

  // Waits until a broker drives, and another one waits.
  void AwaitBoth() {
    const auto status = cluster_->AwaitBrokers();
    ASSERT_OK(status);
    broker_ = status->services(0).broker_pid();
    twin_ = status->services(0).twin_pid();
  }
  // Waits until others than the dead drive and wait.
  void AwaitAnother(pid_t dead, pid_t dead_too = 0) {
    const auto lives = [&](pid_t broker) {
      return broker != 0 && broker != dead && broker != dead_too;
    };
    ASSERT_OK(harness::WaitUntil("another broker", [&] {
      const v1::Service service = Service();
      broker_ = service.broker_pid();
      twin_ = service.twin_pid();
      return lives(broker_) && lives(twin_);
    }));
  }
  void ExpectServed() {
    DeathTest::ExpectServed();
    EXPECT_EQ(Service().driver_pid(), driver_);
  }

  pid_t driver_ = 0, broker_ = 0, twin_ = 0;
};

TEST_F(BrokerDeath, shouldBeFollowedByItsTwin) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const pid_t former = broker_, heir = twin_;
  ASSERT_NO_FATAL_FAILURE(Kill(former));
  ASSERT_NO_FATAL_FAILURE(AwaitAnother(former));
  EXPECT_EQ(broker_, heir);
  EXPECT_OK(harness::WaitUntil("the event", [&] { return HasEvent("broker_followed").value(); }));
  ExpectServed();
  harness::ExpectNothingLost(*peer_);
}

TEST_F(BrokerDeath, shouldReplaceATwin) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const pid_t driver = broker_, former = twin_;
  ASSERT_NO_FATAL_FAILURE(Kill(former));
  ASSERT_OK(harness::WaitUntil("another twin", [&] {
    twin_ = Service().twin_pid();
    return twin_ != 0 && twin_ != former;
  }));
  EXPECT_EQ(Service().broker_pid(), driver);
  ExpectServed();
  harness::ExpectNothingLost(*peer_);
}

TEST_F(BrokerDeath, shouldBeFollowedByANewOneWhereBothHaveDied) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const pid_t former = broker_, twin = twin_;
  ASSERT_NO_FATAL_FAILURE(Kill(twin));
  ASSERT_NO_FATAL_FAILURE(Kill(former));
  ASSERT_NO_FATAL_FAILURE(AwaitAnother(former, twin));
  ExpectServed();
  harness::ExpectNothingLost(*peer_);
}

TEST_F(BrokerDeath, shouldBeFollowedWhereItIsStopped) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const pid_t former = broker_;
  ASSERT_EQ(kill(former, SIGSTOP), 0);
  ASSERT_NO_FATAL_FAILURE(AwaitAnother(former));
  EXPECT_OK(harness::WaitUntil("the event", [&] { return HasEvent("broker_killed").value(); }));
  ExpectServed();
  harness::ExpectNothingLost(*peer_);
}

TEST_F(BrokerDeath, shouldHaveNoRightsButThoseOfItsUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to run programs as another user";
  ClusterOptions options;
  options.batond_arguments = {"--broker-user", "nobody"};
  ASSERT_NO_FATAL_FAILURE(Start(options));
  for (const pid_t broker : {broker_, twin_}) {
    EXPECT_EQ(harness::StatusOf(broker, "Uid"), "65534\t65534\t65534\t65534");
    EXPECT_EQ(harness::StatusOf(broker, "Gid"), "65534\t65534\t65534\t65534");
    EXPECT_EQ(harness::StatusOf(broker, "Groups"), "");
    for (const char* set : {"CapEff", "CapPrm", "CapInh", "CapAmb"}) {
      EXPECT_EQ(harness::StatusOf(broker, set), "0000000000000000") << set;
    }
    EXPECT_EQ(harness::StatusOf(broker, "NoNewPrivs"), "1");
  }
  const pid_t former = broker_;
  ASSERT_NO_FATAL_FAILURE(Kill(former));
  ASSERT_NO_FATAL_FAILURE(AwaitAnother(former));
  ExpectServed();
  harness::ExpectNothingLost(*peer_);
}

// The owner sleeps, and so does the broker. The next one has the socket that wakes the worker.
TEST_F(BrokerDeath, shouldWakeWorkersThatAttachedAfterTheTwinWasForked) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_OK(peer_->StopChecked());
  std::unique_ptr<LedgerWorker> second;
  ASSERT_OK_AND_ASSIGN(second, cluster_->StartLedger(2));
  ASSERT_OK(cluster_->Handoff(second->id));
  ASSERT_OK_AND_ASSIGN(peer_, cluster_->StartPeer(PeerOptions()));
  ASSERT_OK(peer_->Settle());
  const pid_t former = broker_;
  ASSERT_NO_FATAL_FAILURE(Kill(former));
  ASSERT_NO_FATAL_FAILURE(AwaitAnother(former));
  ExpectServed();
  harness::ExpectNothingLost(*peer_);
}

TEST_F(BrokerDeath, shouldMoveTheShardsOfAWorkerThatDiesWithIt) {
  ASSERT_NO_FATAL_FAILURE(Start());
  std::unique_ptr<LedgerWorker> heir;
  ASSERT_OK_AND_ASSIGN(heir, cluster_->StartLedger(2));
  const pid_t former = broker_;
  ASSERT_OK(owner_->process->Signal(SIGKILL));
  ASSERT_NO_FATAL_FAILURE(Kill(former));
  ASSERT_NO_FATAL_FAILURE(AwaitAnother(former));
  ASSERT_OK(cluster_->WaitUntilOwner(heir->id));
  ExpectServed();
  harness::ExpectNothingLost(*peer_);
}

TEST_F(BrokerDeath, shouldNotGrowWithDeaths) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ExpectNoGrowth(
      harness::Setting("BATON_BROKER_DEATHS", 20),
      [&] {
        const pid_t former = broker_;
        ASSERT_NO_FATAL_FAILURE(Kill(former));
        ASSERT_NO_FATAL_FAILURE(AwaitAnother(former));
      },
      [&] {
        const v1::Service service = Service();
        return std::vector<pid_t>{service.driver_pid(), service.broker_pid(),
                                  cluster_->batond().pid()};
      });
}

// Kills at random moments, of brokers, twins and owners. Peers come meanwhile, and go.
TEST_F(BrokerDeath, shouldLoseNothingAtRandomMoments) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const uint64_t deaths = harness::Setting("BATON_BROKER_DEATHS", 20);
  const uint64_t seed = harness::Setting("BATON_SEED", std::random_device()());
  std::printf("%llu deaths, BATON_SEED=%llu\n", static_cast<unsigned long long>(deaths),
              static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  int version = 1;
  for (uint64_t i = 0; i < deaths; ++i) {
    SCOPED_TRACE(absl::StrCat("death ", i));
    const pid_t former = broker_, twin = twin_;
    const uint64_t what = random() % 10;
    if (what < 3) {
      version = 3 - version;
      std::unique_ptr<LedgerWorker> heir;
      ASSERT_OK_AND_ASSIGN(heir, cluster_->StartLedger(version));
      ASSERT_OK(cluster_->WaitUntilReady(heir->id));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      ASSERT_OK(owner_->process->Signal(SIGKILL));
      owner_ = std::move(heir);
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
    ASSERT_NO_FATAL_FAILURE(Kill(former));
    const bool both = random() % 4 == 0;
    if (both) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
      ASSERT_NO_FATAL_FAILURE(Kill(twin));
    }
    if (i % 4 == 1) {
      const auto newcomer = cluster_->StartPeer(PeerOptions());
      ASSERT_OK(newcomer);
      harness::ExpectNothingLost(**newcomer);
    }
    ASSERT_NO_FATAL_FAILURE(AwaitAnother(former, both ? twin : 0));
    ASSERT_OK(peer_->Settle());
  }
  ExpectServed();
  harness::ExpectNothingLost(*peer_);
}

}  // namespace
}  // namespace baton
