// A worker that an operator asks to end does so, and its connections notice nothing.
#include <sys/wait.h>

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/harness/binaries.h"
#include "tests/harness/cluster.h"
#include "tests/harness/wait_until.h"

namespace baton {
namespace {

using harness::ChildOptions;
using harness::ChildProcess;
using harness::Cluster;
using harness::ClusterOptions;
using harness::PeerOptions;
using testing::HasSubstr;

constexpr std::chrono::seconds kTimeout{20};

class StopTest : public testing::Test {
 protected:
  void SetUp() override {
    auto cluster = Cluster::Start(ClusterOptions());
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }
  void TearDown() override {
    if (HasFailure() && cluster_) cluster_->DumpLogs();
  }

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

  std::unique_ptr<Cluster> cluster_;
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
