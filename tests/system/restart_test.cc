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
#include "tests/harness/binaries.h"
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
using harness::PeerOptions;

TEST(Restart, shouldKeepTrafficAndStateWhenControlIsKilled) {
  auto cluster = Cluster::Start(ClusterOptions());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  auto worker = (*cluster)->StartLedger(1);
  ASSERT_TRUE(worker.ok()) << worker.status();
  PeerOptions options = harness::SteadyLoad();
  auto peer = (*cluster)->StartPeer(options);
  ASSERT_TRUE(peer.ok()) << peer.status();
  for (int i = 0; i < 3; ++i) {
    const auto before = (*cluster)->operators().GetStatus();
    ASSERT_TRUE(before.ok()) << before.status();
    ASSERT_EQ(kill(before->control_pid(), SIGKILL), 0);
    ASSERT_TRUE(harness::WaitUntil("another control to answer", [&] {
                  const auto now = (*cluster)->operators().GetStatus();
                  return now.ok() && now->control_pid() != before->control_pid() &&
                         now->services_size() == 1 && now->services(0).reachable();
                }).ok());
    EXPECT_TRUE((*cluster)->OwnsAllShards((*worker)->id));
    ASSERT_TRUE((*peer)->Settle().ok());
  }
  // The worker's stream to control comes back by itself.
  EXPECT_TRUE(harness::WaitUntil("the worker's stream", [&] {
                const auto service = (*cluster)->GetService();
                return service.ok() && service->workers_size() == 1 &&
                       service->workers(0).control_stream();
              }).ok());
  const auto result = (*peer)->Stop();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->Flag("ok")) << result->text();
}

TEST(Restart, shouldFailOverWhileControlIsDead) {
  auto cluster = Cluster::Start(ClusterOptions());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  auto owner = (*cluster)->StartLedger(1);
  ASSERT_TRUE(owner.ok()) << owner.status();
  auto standby = (*cluster)->StartLedger(2);
  ASSERT_TRUE(standby.ok()) << standby.status();
  PeerOptions options = harness::SteadyLoad();
  auto peer = (*cluster)->StartPeer(options);
  ASSERT_TRUE(peer.ok()) << peer.status();
  const auto status = (*cluster)->operators().GetStatus();
  ASSERT_TRUE(status.ok()) << status.status();
  ASSERT_EQ(kill(status->control_pid(), SIGSTOP), 0);
  ASSERT_TRUE((*owner)->process->Signal(SIGKILL).ok());
  ASSERT_TRUE((*peer)->Settle().ok());
  ASSERT_EQ(kill(status->control_pid(), SIGKILL), 0);
  EXPECT_TRUE((*cluster)->WaitUntilOwner((*standby)->id).ok());
  const auto result = (*peer)->Stop();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->Flag("ok")) << result->text();
}

TEST(Restart, shouldShowEachSuccession) {
  ClusterOptions options;
  options.batond_arguments = {"--hang-timeout", "2"};
  auto cluster = Cluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const auto shows = [&](const std::string& event) {
    return harness::WaitUntil(event, [&] {
      const harness::CommandResult events = harness::RunBaton(**cluster, {"events"});
      return events.out.find(event) != std::string::npos;
    });
  };
  const pid_t control = (*cluster)->batond().FindChild("baton-control");
  const pid_t driver = (*cluster)->batond().FindChild("baton-driver");
  ASSERT_TRUE(control > 0 && driver > 0);
  ASSERT_EQ(kill(control, SIGSTOP), 0);
  EXPECT_TRUE(shows("control_hangs").ok());
  EXPECT_TRUE(shows("control_followed").ok());
  ASSERT_EQ(kill(driver, SIGKILL), 0);
  EXPECT_TRUE(shows("driver_followed").ok());
  ASSERT_TRUE((*cluster)->KillBatond().ok());
  ASSERT_TRUE((*cluster)->StartBatondAgain().ok());
  EXPECT_TRUE(shows("batond_followed").ok());
}

// Also a handoff, a crash and connections that are made while no batond runs.
TEST(Restart, shouldKeepTrafficWhenBatondIsKilled) {
  auto cluster = Cluster::Start(ClusterOptions());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  std::vector<std::unique_ptr<harness::LedgerWorker>> workers;
  const auto start = [&] {
    auto worker = (*cluster)->StartLedger(2);
    ASSERT_TRUE(worker.ok()) << worker.status();
    workers.push_back(*std::move(worker));
  };
  start();
  start();
  PeerOptions options = harness::SteadyLoad();
  auto peer = (*cluster)->StartPeer(options);
  ASSERT_TRUE(peer.ok()) << peer.status();
  const auto before = (*cluster)->operators().GetStatus();
  ASSERT_TRUE(before.ok()) << before.status();
  const int keeper = before->services(0).keeper_pid();
  const size_t descriptors = harness::DescriptorsOf(keeper);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE((*cluster)->KillBatond().ok());
    ASSERT_TRUE(workers[0]->process->Kill().ok());
    workers.erase(workers.begin());
    const auto meanwhile = (*cluster)->operators().GetStatus();
    ASSERT_TRUE(meanwhile.ok()) << meanwhile.status();
    EXPECT_EQ(meanwhile->control_pid(), before->control_pid());
    auto newcomer = (*cluster)->StartPeer(PeerOptions());
    ASSERT_TRUE(newcomer.ok()) << newcomer.status();
    const auto came = (*newcomer)->Stop();
    ASSERT_TRUE(came.ok() && came->Flag("ok"));
    ASSERT_TRUE((*peer)->Settle().ok());
    ASSERT_TRUE((*cluster)->StartBatondAgain().ok());
    const auto now = (*cluster)->operators().GetStatus();
    ASSERT_TRUE(now.ok()) << now.status();
    EXPECT_EQ(now->services(0).keeper_pid(), keeper);
    EXPECT_EQ(now->control_pid(), before->control_pid());
    start();
    ASSERT_TRUE((*cluster)->Handoff(workers.back()->id).ok());
    std::swap(workers.front(), workers.back());  // the owner is the next to be killed
    ASSERT_TRUE((*peer)->Settle().ok());
  }
  EXPECT_TRUE(harness::WaitUntil("as many descriptors as before",
                                 [&] { return harness::DescriptorsOf(keeper) <= descriptors; })
                  .ok())
      << harness::DescriptorsOf(keeper) << " instead of " << descriptors;
  const auto result = (*peer)->Stop();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->Flag("ok")) << result->text();
  EXPECT_TRUE((*cluster)->Stop().ok());
  EXPECT_TRUE(
      harness::WaitUntil("the end of the keeper", [&] { return harness::IsGone(keeper); }).ok());
}

TEST(Restart, shouldServeAgainAfterTheDriverIsKilled) {
  auto cluster = Cluster::Start(ClusterOptions());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  auto worker = (*cluster)->StartLedger(1);
  ASSERT_TRUE(worker.ok()) << worker.status();
  // Its connections end with the driver, and are in nobody's way at the port.
  auto peer = (*cluster)->StartPeer(PeerOptions());
  ASSERT_TRUE(peer.ok()) << peer.status();
  const uint16_t port = (*cluster)->port();
  const auto before = (*cluster)->operators().GetStatus();
  ASSERT_TRUE(before.ok()) << before.status();
  const int driver = before->services(0).driver_pid();
  ASSERT_EQ(kill(driver, SIGKILL), 0);
  // A worker of the dead driver says so and ends; it does not serve what is not there.
  ASSERT_TRUE((*worker)->process->WaitEnd(std::chrono::seconds(20)).ok());
  ASSERT_TRUE(harness::WaitUntil("another driver", [&] {
                const auto now = (*cluster)->operators().GetStatus();
                return now.ok() && now->services(0).reachable() &&
                       now->services(0).driver_pid() != driver;
              }).ok());
  auto next = (*cluster)->StartLedger(2);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE((*cluster)->OwnsAllShards((*next)->id));
  EXPECT_EQ((*cluster)->port(), port);
}

using harness::ChildOptions;
using harness::ChildProcess;
using harness::Cluster;
using harness::ClusterOptions;
using harness::PeerOptions;
using testing::HasSubstr;

constexpr std::chrono::seconds kTimeout{20};

class StopTest : public harness::ClusterFixture {
 protected:
  void SetUp() override { ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start(ClusterOptions())); }

  std::unique_ptr<harness::LedgerWorker> StartLedger(int version) {
    auto worker = cluster_->StartLedger(version);
    EXPECT_TRUE(worker.ok()) << worker.status();
    return worker.ok() ? *std::move(worker) : nullptr;
  }

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
  auto peer = cluster_->StartPeer(options);
  ASSERT_TRUE(peer.ok()) << peer.status();
  ASSERT_TRUE((*peer)->Settle().ok());
  ASSERT_TRUE(WaitForStream(owner->id));
  const auto stopped = cluster_->operators().StopWorker("ledger", owner->id);
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  // The answer comes when the keeper has let it go, and so does its process.
  EXPECT_TRUE(cluster_->OwnsAllShards(other->id));
  const auto end = owner->process->WaitEnd(kTimeout);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_TRUE(WIFEXITED(*end) && WEXITSTATUS(*end) == 0) << *end;
  EXPECT_THAT(owner->process->LogTail(), HasSubstr("asked to end: an operator asked for it"));
  ASSERT_TRUE((*peer)->Settle().ok());
  const auto result = (*peer)->Stop();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->Flag("ok")) << result->text();
}

TEST_F(StopTest, shouldStopTheOnlyWorkerAndKeepItsConnectionsForTheNext) {
  const auto only = StartLedger(1);
  ASSERT_TRUE(only);
  PeerOptions options;
  options.connections = 8;
  options.rate = 1000;
  auto peer = cluster_->StartPeer(options);
  ASSERT_TRUE(peer.ok()) << peer.status();
  ASSERT_TRUE(WaitForStream(only->id));
  ChildOptions baton;
  const auto program = harness::Binaries().Find("baton");
  ASSERT_TRUE(program.ok()) << program.status();
  baton.program = *program;
  baton.log_path = cluster_->directory() + "/baton.log";
  baton.arguments = {"--socket", cluster_->OperatorSocketPath(), "worker", "stop",
                     "ledger",   absl::StrCat(only->id),         "--yes"};
  auto cli = ChildProcess::Start(baton);
  ASSERT_TRUE(cli.ok()) << cli.status();
  const auto said = (*cli)->WaitEnd(kTimeout);
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_TRUE(WIFEXITED(*said) && WEXITSTATUS(*said) == 0) << (*cli)->LogTail();
  EXPECT_THAT((*cli)->LogTail(), HasSubstr("of service ledger has ended"));
  const auto end = only->process->WaitEnd(kTimeout);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_TRUE(WIFEXITED(*end) && WEXITSTATUS(*end) == 0) << *end;
  const auto next = StartLedger(2);
  ASSERT_TRUE(next);
  ASSERT_TRUE(cluster_->WaitUntilOwner(next->id).ok());
  ASSERT_TRUE((*peer)->Settle().ok());
  const auto result = (*peer)->Stop();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->Flag("ok")) << result->text();
}

}  // namespace
}  // namespace baton
