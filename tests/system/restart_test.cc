// Whatever was killed or asked to end, the next start works, and nobody sees what need not be seen.
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/harness/baton_command.h"
#include "tests/harness/child_process.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/wait_until.h"

namespace baton {
namespace {

using harness::Cluster;
using harness::ClusterOptions;
using harness::kTimeout;
using harness::PeerOptions;
using testing::HasSubstr;

class Restart : public harness::ClusterFixture {
 protected:
  void Start(const ClusterOptions& options = ClusterOptions()) {
    ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start(options));
  }
  std::unique_ptr<harness::LedgerWorker> StartLedger(int version) {
    auto worker = cluster_->StartLedger(version);
    EXPECT_OK(worker);
    return worker.ok() ? *std::move(worker) : nullptr;
  }
  void StartPeer() { ASSERT_OK_AND_ASSIGN(peer_, cluster_->StartPeer(harness::SteadyLoad())); }

  std::unique_ptr<harness::PeerProcess> peer_;
};

TEST_F(Restart, shouldKeepTrafficAndStateWhenControlIsKilled) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto worker = StartLedger(1);
  ASSERT_TRUE(worker);
  ASSERT_NO_FATAL_FAILURE(StartPeer());
  for (int i = 0; i < 3; ++i) {
    const auto before = cluster_->operators().GetStatus();
    ASSERT_OK(before);
    ASSERT_EQ(kill(before->control_pid(), SIGKILL), 0);
    ASSERT_TRUE(harness::WaitUntil("another control to answer", [&] {
                  const auto now = cluster_->operators().GetStatus();
                  return now.ok() && now->control_pid() != before->control_pid() &&
                         now->services_size() == 1 && now->services(0).reachable();
                }).ok());
    EXPECT_TRUE(cluster_->OwnsAllShards(worker->id));
    ASSERT_OK(peer_->Settle());
  }
  // The worker's stream to control comes back by itself.
  EXPECT_TRUE(harness::WaitUntil("the worker's stream", [&] {
                const auto service = cluster_->GetService();
                return service.ok() && service->workers_size() == 1 &&
                       service->workers(0).control_stream();
              }).ok());
  harness::ExpectNothingLost(*peer_);
}

TEST_F(Restart, shouldFailOverWhileControlIsDead) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto owner = StartLedger(1);
  ASSERT_TRUE(owner);
  const auto standby = StartLedger(2);
  ASSERT_TRUE(standby);
  ASSERT_NO_FATAL_FAILURE(StartPeer());
  const auto status = cluster_->operators().GetStatus();
  ASSERT_OK(status);
  ASSERT_EQ(kill(status->control_pid(), SIGSTOP), 0);
  ASSERT_OK(owner->process->Signal(SIGKILL));
  ASSERT_OK(peer_->Settle());
  ASSERT_EQ(kill(status->control_pid(), SIGKILL), 0);
  EXPECT_TRUE(cluster_->WaitUntilOwner(standby->id).ok());
  harness::ExpectNothingLost(*peer_);
}

TEST_F(Restart, shouldShowEachSuccession) {
  ClusterOptions options;
  options.batond_arguments = {"--hang-timeout", "2"};
  ASSERT_NO_FATAL_FAILURE(Start(options));
  const auto shows = [&](const std::string& event) {
    return harness::WaitUntil(event, [&] {
      const harness::CommandResult events = harness::RunBaton(*cluster_, {"events"});
      return events.out.find(event) != std::string::npos;
    });
  };
  const pid_t control = cluster_->batond().FindChild("baton-control");
  const pid_t driver = cluster_->batond().FindChild("baton-driver");
  ASSERT_TRUE(control > 0 && driver > 0);
  ASSERT_EQ(kill(control, SIGSTOP), 0);
  EXPECT_TRUE(shows("control_hangs").ok());
  EXPECT_TRUE(shows("control_followed").ok());
  ASSERT_EQ(kill(driver, SIGKILL), 0);
  EXPECT_TRUE(shows("driver_followed").ok());
  ASSERT_OK(cluster_->KillBatond());
  ASSERT_OK(cluster_->StartBatondAgain());
  EXPECT_TRUE(shows("batond_followed").ok());
}

// Also a handoff, a crash and connections that are made while no batond runs.
TEST_F(Restart, shouldKeepTrafficWhenBatondIsKilled) {
  ASSERT_NO_FATAL_FAILURE(Start());
  std::vector<std::unique_ptr<harness::LedgerWorker>> workers;
  const auto start = [&] {
    workers.push_back(StartLedger(2));
    ASSERT_TRUE(workers.back());
  };
  start();
  start();
  ASSERT_NO_FATAL_FAILURE(StartPeer());
  const auto before = cluster_->operators().GetStatus();
  ASSERT_OK(before);
  const int keeper = before->services(0).keeper_pid();
  const size_t descriptors = harness::DescriptorsOf(keeper);
  for (int i = 0; i < 5; ++i) {
    ASSERT_OK(cluster_->KillBatond());
    ASSERT_OK(workers[0]->process->Kill());
    workers.erase(workers.begin());
    const auto meanwhile = cluster_->operators().GetStatus();
    ASSERT_OK(meanwhile);
    EXPECT_EQ(meanwhile->control_pid(), before->control_pid());
    auto newcomer = cluster_->StartPeer(PeerOptions());
    ASSERT_OK(newcomer);
    ASSERT_NO_FATAL_FAILURE(harness::ExpectNothingLost(**newcomer));
    ASSERT_OK(peer_->Settle());
    ASSERT_OK(cluster_->StartBatondAgain());
    const auto now = cluster_->operators().GetStatus();
    ASSERT_OK(now);
    EXPECT_EQ(now->services(0).keeper_pid(), keeper);
    EXPECT_EQ(now->control_pid(), before->control_pid());
    start();
    ASSERT_TRUE(cluster_->Handoff(workers.back()->id).ok());
    std::swap(workers.front(), workers.back());  // the owner is the next to be killed
    ASSERT_OK(peer_->Settle());
  }
  EXPECT_TRUE(harness::WaitUntil("as many descriptors as before",
                                 [&] { return harness::DescriptorsOf(keeper) <= descriptors; })
                  .ok())
      << harness::DescriptorsOf(keeper) << " instead of " << descriptors;
  harness::ExpectNothingLost(*peer_);
  EXPECT_TRUE(cluster_->Stop().ok());
  EXPECT_TRUE(
      harness::WaitUntil("the end of the keeper", [&] { return harness::IsGone(keeper); }).ok());
}

TEST_F(Restart, shouldServeAgainAfterTheDriverIsKilled) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto worker = StartLedger(1);
  ASSERT_TRUE(worker);
  // Its connections end with the driver, and are in nobody's way at the port.
  ASSERT_OK_AND_ASSIGN(peer_, cluster_->StartPeer(PeerOptions()));
  const uint16_t port = cluster_->port();
  const auto before = cluster_->operators().GetStatus();
  ASSERT_OK(before);
  const int driver = before->services(0).driver_pid();
  harness::KillUnfollowed(driver);
  // A worker of the dead driver says so and ends; it does not serve what is not there.
  ASSERT_TRUE(worker->process->WaitEnd(std::chrono::seconds(20)).ok());
  ASSERT_TRUE(harness::WaitUntil("another driver", [&] {
                const auto now = cluster_->operators().GetStatus();
                return now.ok() && now->services(0).reachable() &&
                       now->services(0).driver_pid() != driver;
              }).ok());
  const auto next = StartLedger(2);
  ASSERT_TRUE(next);
  EXPECT_OK(cluster_->WaitUntilOwner(next->id));  // once a broker is ready
  EXPECT_EQ(cluster_->port(), port);
}

class StopTest : public Restart {
 protected:
  void SetUp() override { Start(); }

  bool WaitForStream(uint64_t worker) {
    return harness::WaitUntil("the worker's stream",
                              [&] {
                                const auto service = cluster_->GetService();
                                if (!service.ok()) return false;
                                for (const v1::Worker& one : service->workers()) {
                                  if (one.id() == worker) return one.control_stream();
                                }
                                return false;
                              })
        .ok();
  }
};

TEST_F(StopTest, shouldLoseNothingWhenTheOwnerIsStopped) {
  const auto owner = StartLedger(1);
  ASSERT_TRUE(owner);
  const auto other = StartLedger(2);
  ASSERT_TRUE(other);
  ASSERT_TRUE(cluster_->OwnsAllShards(owner->id));
  PeerOptions options;
  options.connections = 16;
  options.rate = 4000;
  ASSERT_OK_AND_ASSIGN(peer_, cluster_->StartPeer(options));
  ASSERT_OK(peer_->Settle());
  ASSERT_TRUE(WaitForStream(owner->id));
  const auto stopped = cluster_->operators().StopWorker("ledger", owner->id);
  ASSERT_OK(stopped);
  // The answer comes when the keeper has let it go, and so does its process.
  EXPECT_TRUE(cluster_->OwnsAllShards(other->id));
  const auto end = owner->process->WaitEnd(kTimeout);
  ASSERT_OK(end);
  EXPECT_TRUE(WIFEXITED(*end) && WEXITSTATUS(*end) == 0) << *end;
  EXPECT_THAT(owner->process->LogTail(), HasSubstr("asked to end: an operator asked for it"));
  ASSERT_OK(peer_->Settle());
  harness::ExpectNothingLost(*peer_);
}

TEST_F(StopTest, shouldStopTheOnlyWorkerAndKeepItsConnectionsForTheNext) {
  const auto only = StartLedger(1);
  ASSERT_TRUE(only);
  PeerOptions options;
  options.connections = 8;
  options.rate = 1000;
  ASSERT_OK_AND_ASSIGN(peer_, cluster_->StartPeer(options));
  ASSERT_TRUE(WaitForStream(only->id));
  const harness::CommandResult said =
      harness::RunBaton(*cluster_, {"worker", "stop", "ledger", absl::StrCat(only->id), "--yes"});
  EXPECT_EQ(said.status, 0) << said.err;
  EXPECT_THAT(said.err, HasSubstr("of service ledger has ended"));
  const auto end = only->process->WaitEnd(kTimeout);
  ASSERT_OK(end);
  EXPECT_TRUE(WIFEXITED(*end) && WEXITSTATUS(*end) == 0) << *end;
  const auto next = StartLedger(2);
  ASSERT_TRUE(next);
  ASSERT_OK(cluster_->WaitUntilOwner(next->id));
  ASSERT_OK(peer_->Settle());
  harness::ExpectNothingLost(*peer_);
}

}  // namespace
}  // namespace baton
