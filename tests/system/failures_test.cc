// Failures of peers, of requests and of limits at a whole Baton: each ends in a state that an
// operator can read, and a connection beside it goes on with nothing lost. On the device under
// test.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/socket_address.h"
#include "tests/harness/baton_command.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/driver/raw_peer.h"

namespace baton {
namespace {

using driver::testing::RawPeer;
using harness::ChildOptions;
using harness::ChildProcess;
using harness::Cluster;
using harness::ClusterOptions;
using harness::kTimeout;
using harness::PeerOptions;
using harness::PeerProcess;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kFewConnections = 4;

// A program that is none of RDMA, at the address of the device.
class TcpListener {
 public:
  explicit TcpListener(uint16_t port = 0) {
    const auto at = verbs::ToSocketAddress({verbs::testing::FabricUnderTest().host, port}).value();
    fd_.Reset(socket(at.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd_.get(), at.get(), at.size) != 0 || listen(fd_.get(), 8) != 0) error_ = errno;
  }
  uint16_t port() const { return verbs::BoundAddressOf(fd_.get()).port; }
  int error() const { return error_; }

 private:
  FileDescriptor fd_;
  int error_ = 0;
};

class Failures : public ::testing::Test {
 protected:
  // A ledger with one owner, and a peer that is served all the time.
  void SetUp() override {
    ClusterOptions options;
    options.shards = 1;
    options.max_connections = kFewConnections;
    ASSERT_OK_AND_ASSIGN(cluster, Cluster::Start(options));
    ASSERT_OK_AND_ASSIGN(worker, cluster->StartLedger(1));
    PeerOptions peer;
    peer.rate = 200;
    ASSERT_OK_AND_ASSIGN(bystander, cluster->StartPeer(peer));
    ASSERT_OK(bystander->Settle());
  }
  void TearDown() override {
    if (bystander) {
      EXPECT_OK(bystander->Settle());
      harness::ExpectNothingLost(*bystander);
      bystander.reset();
    }
    if (HasFailure() && cluster) cluster->DumpLogs();
  }

  // A second worker, which asks for a listener at `port`.
  ChildOptions SecondAt(uint16_t port) const {
    ChildOptions child;
    child.program = harness::Binaries().Find("ledger-v1").value();
    child.log_path = cluster->directory() + "/second.log";
    child.arguments = cluster->LedgerArguments("second");
    *(std::find(child.arguments.begin(), child.arguments.end(), "--listen") + 1) =
        absl::StrCat(verbs::testing::FabricUnderTest().host, ":", port);
    return child;
  }
  // It ends, and has logged that.
  void ExpectRefusal(uint16_t port, const ::testing::Matcher<std::string>& why) const {
    const auto second = ChildProcess::Start(SecondAt(port));
    ASSERT_OK(second);
    const auto end = (*second)->WaitEnd(kTimeout);
    ASSERT_OK(end);
    EXPECT_TRUE(WIFEXITED(*end) && WEXITSTATUS(*end) == 1);
    EXPECT_THAT((*second)->LogTail(), why);
  }
  static ::testing::Matcher<std::string> OwnerIsThisTest() {
    return HasSubstr(absl::StrCat("failures_test (pid ", getpid(), ")"));
  }

  // What an operator types.
  std::string Baton(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--timeout", absl::StrCat(10 * harness::Slowness())});
    const harness::CommandResult result = harness::RunBaton(*cluster, arguments);
    EXPECT_EQ(result.err, "");
    return result.out;
  }
  void AwaitConnections(uint32_t count) {
    EXPECT_OK(harness::WaitUntil(absl::StrCat(count, " connections"), [&] {
      const auto service = cluster->GetService();
      return service.ok() && service->service().connection_count() == count;
    }));
  }

  std::unique_ptr<Cluster> cluster;
  std::unique_ptr<harness::LedgerWorker> worker;
  std::unique_ptr<PeerProcess> bystander;
};

TEST_F(Failures, shouldEndTheConnectionsOfAPeerThatIsKilledWithWorkOutstandingBothWays) {
  PeerOptions options;
  options.connections = 2;
  options.window = 32;  // as fast as it can
  auto victim = cluster->StartPeer(options);
  ASSERT_OK(victim);
  ASSERT_OK((*victim)->Settle());
  ASSERT_OK((*victim)->process().Kill());
  AwaitConnections(1);
  for (const int connection : {1, 2}) {
    EXPECT_OK(harness::WaitForEvent(
        *cluster, {absl::StrCat("connection ", connection, " with "), " ended: "}));
    EXPECT_THAT(
        Baton({"events", "ledger"}),
        ::testing::ContainsRegex(absl::StrCat("connection ", connection, " with [^ ]* ended: ")));
  }
  EXPECT_THAT(worker->process->LogTail(),
              ::testing::ContainsRegex("connection 1 of [^ ]* ended: "));
  // There is room again.
  auto next = cluster->StartPeer(options);
  ASSERT_OK(next);
  EXPECT_OK((*next)->Settle());
  harness::ExpectNothingLost(**next);
}

TEST_F(Failures, shouldEndOnlyTheConnectionThatWritesWhereItMayNot) {
  RawPeer peer;
  peer.Connect(cluster->port());
  ASSERT_TRUE(driver::testing::Pump([&] { peer.Turn(); }, [&] { return peer.established; }));
  verbs::SendRequest write;
  write.opcode = verbs::Opcode::kWrite;
  write.remote_address = 4096;
  write.rkey = 0x77;
  peer.Post(write, 64);
  ASSERT_TRUE(driver::testing::Pump([&] { peer.Turn(); }, [&] { return !peer.sent.empty(); }));
  EXPECT_EQ(peer.sent[0].status, verbs::CompletionStatus::kRemoteAccessError);
  AwaitConnections(1);
  // The peer may be faster than the word that it is connected.
  EXPECT_THAT(Baton({"events", "ledger"}),
              ::testing::ContainsRegex("connection 1 with [^ ]* (ended|not established): "));
}

TEST_F(Failures, shouldRefuseConnectionsBeyondTheServicesAndTellBothSides) {
  PeerOptions options;
  options.connections = kFewConnections - 1;
  options.rate = 200;
  auto last = cluster->StartPeer(options);
  ASSERT_OK(last);
  options.connections = 1;
  const auto one_more = cluster->StartPeer(options);
  EXPECT_THAT(harness::ToText(one_more), HasSubstr("reject"));
  EXPECT_OK(harness::WaitForEvent(
      *cluster, {"connection_refused",
                 absl::StrCat("all ", kFewConnections,
                              " connections of the service are in use: raise max_connections")}));
  AwaitConnections(kFewConnections);
  EXPECT_OK((*last)->Settle());
  harness::ExpectNothingLost(**last);
}

TEST_F(Failures, shouldTellAWorkerThatItsPortIsTaken) {
  RawPeer holder;
  const uint16_t taken = holder.Listen();
  ExpectRefusal(taken, AllOf(HasSubstr(absl::StrCat(":", taken, " is taken")), OwnerIsThisTest()));
  // A worker that asks for the owner's port is not refused, because it can succeed the owner.
  const auto heir = cluster->StartLedger(2);
  ASSERT_OK(heir);
  EXPECT_OK(cluster->Handoff((*heir)->id));
  EXPECT_OK(cluster->WaitUntilOwner((*heir)->id));
  EXPECT_OK(bystander->Settle());
}

TEST_F(Failures, shouldTellAWorkerWhoseTcpListenerHasItsPort) {
  auto in_the_way = std::make_unique<TcpListener>();
  const uint16_t port = in_the_way->port();
  ExpectRefusal(port, AllOf(HasSubstr(absl::StrCat(":", port, " is taken")), OwnerIsThisTest(),
                            HasSubstr("listens there with TCP")));
  EXPECT_OK(bystander->Settle());
  in_the_way.reset();
  const auto second = ChildProcess::Start(SecondAt(port));
  ASSERT_OK(second);
  EXPECT_OK((*second)->ReadLineWith("ledger ready", kTimeout));
  EXPECT_EQ(TcpListener(port).error(), EADDRINUSE);
}

}  // namespace
}  // namespace baton
