// pingd on Baton, on the soft device: many clients, upgrades and kills, and clients that are wrong.
#include <sys/wait.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/worker/examples/pingd/pingd_fixture.h"

namespace baton::pingd {
namespace {

TEST_F(PingdTest, shouldServeConnectionsOneAfterAnotherInAllSizes) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(1, 2));
  std::unique_ptr<PingdWorker> worker;
  ASSERT_NO_FATAL_FAILURE(StartPingd({}, &worker));
  // rping's smallest and largest among them.
  for (const uint32_t bytes : {28u, 64u, 1000u, 4096u, 65535u, 28u, 64u, 1000u, 65536u}) {
    const auto client = PingClient::Connect(port_, bytes);
    ASSERT_OK(client);
    for (int i = 0; i < 4; ++i) ASSERT_OK((*client)->Ping());
    ASSERT_OK((*client)->Disconnect());
  }
  ExpectNoConnections();
}

TEST_F(PingdTest, shouldLoseAndRepeatNoStepOverUpgradesAndKills) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::unique_ptr<PingdWorker> worker;
  ASSERT_NO_FATAL_FAILURE(StartPingd({}, &worker));
  ASSERT_NO_FATAL_FAILURE(StartLoads(8, 1000));
  for (const char* program : {"pingd-v2", "pingd-v1", "pingd-v2"}) {
    harness::UpgradeOptions options;
    options.program = program;
    options.plan.set_watch_window_ms(50);
    const auto upgrade = cluster_->StartUpgrade(options);
    ASSERT_OK(upgrade);
    const auto ended = cluster_->WaitUntilUpgradeEnds(upgrade->id());
    ASSERT_OK(ended);
    ASSERT_EQ(ended->phase(), v1::UPGRADE_PHASE_COMPLETED) << ended->ShortDebugString();
    ASSERT_NO_FATAL_FAILURE(ExpectPings());
  }
  for (int i = 0; i < 6; ++i) {
    PingdOptions options;
    options.version = 1 + i % 2;
    // Where the data lies must not depend on it.
    options.arguments = {"--max-size", absl::StrCat(1000 + 100 * i)};
    std::unique_ptr<PingdWorker> next;
    ASSERT_NO_FATAL_FAILURE(StartPingd(options, &next));
    if (i == 0) {
      // The owner is the upgrade's process, and no child of ours.
      ASSERT_OK(cluster_->Handoff(next->id));
    } else {
      ASSERT_OK(worker->process->Kill());
    }
    worker = std::move(next);
    ASSERT_NO_FATAL_FAILURE(ExpectPings());
  }
  ExpectNothingLost();
  ExpectNoConnections();
}

TEST_F(PingdTest, shouldTellWhichBinaryMadeAStep) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::unique_ptr<PingdWorker> first, second;
  ASSERT_NO_FATAL_FAILURE(StartPingd({}, &first));
  const auto client = PingClient::Connect(port_, 100);
  ASSERT_OK(client);
  ASSERT_OK((*client)->Ping());
  EXPECT_EQ((*client)->version(), 1u);
  PingdOptions options;
  options.version = 2;
  ASSERT_NO_FATAL_FAILURE(StartPingd(options, &second));
  ASSERT_OK(cluster_->Handoff(second->id));
  ASSERT_OK((*client)->Ping());
  EXPECT_EQ((*client)->version(), 2u);
}

TEST_F(PingdTest, shouldEndTheConnectionOfAWrongClientAndNoOther) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::unique_ptr<PingdWorker> worker;
  PingdOptions options;
  options.arguments = {"--max-size", "1000"};
  ASSERT_NO_FATAL_FAILURE(StartPingd(options, &worker));
  ASSERT_NO_FATAL_FAILURE(StartLoads(2, 1000));
  // What is wrong with the source, what with the sink, and what pingd says of it.
  struct Case {
    Advertisement source, sink;
    const char* reason;
  };
  const uint32_t kRight = 100;
  for (const Case& wrong :
       std::vector<Case>{{{0, 0, 1001}, {}, "a source of 1001 bytes: 1 to 1000 are served"},
                         {{0, 0, 0}, {}, "a source of 0 bytes"},
                         {{0, 1, kRight}, {}, "failed: remote access error"},
                         {{0, 0, kRight}, {0, 0, 99}, "a sink of 99 bytes for 100 of data"},
                         {{0, 0, kRight}, {0, 1, kRight}, "failed: remote access error"}}) {
    SCOPED_TRACE(wrong.reason);
    const auto client = ClientConnection::Connect(port_, kRight);
    ASSERT_OK(client);
    std::memset((*client)->source(), 'a', kRight);
    // Sizes as they are; keys are added to the right ones.
    Advertisement source = (*client)->SourceAddress(), sink = (*client)->SinkAddress();
    source.size = wrong.source.size;
    source.rkey += wrong.source.rkey;
    ASSERT_OK((*client)->Send(source));
    if (wrong.sink.size != 0) {
      ASSERT_OK((*client)->Receive());
      sink.size = wrong.sink.size;
      sink.rkey += wrong.sink.rkey;
      ASSERT_OK((*client)->Send(sink));
    }
    ASSERT_OK((*client)->WaitUntilDisconnected());
    EXPECT_OK(harness::WaitUntil("the reason in the log", [&] {
      return worker->process->LogTail().find(wrong.reason) != std::string::npos;
    }));
  }
  ASSERT_NO_FATAL_FAILURE(ExpectPings());
  ExpectNothingLost();
}

TEST_F(PingdTest, shouldEndTheConnectionOfAClientThatSpeaksOutOfTurn) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::unique_ptr<PingdWorker> worker;
  ASSERT_NO_FATAL_FAILURE(StartPingd({}, &worker));
  ASSERT_NO_FATAL_FAILURE(StartLoads(1, 1000));
  const auto client = ClientConnection::Connect(port_, 60'000);
  ASSERT_OK(client);
  // All are on the way before the READ for the first can be answered.
  for (int i = 0; i < 3; ++i) ASSERT_OK((*client)->Send((*client)->SourceAddress()));
  ASSERT_OK((*client)->WaitUntilDisconnected());
  EXPECT_OK(harness::WaitUntil("the reason in the log", [&] {
    return worker->process->LogTail().find("a message came while") != std::string::npos;
  }));
  ASSERT_NO_FATAL_FAILURE(ExpectPings());
  ExpectNothingLost();
}

TEST_F(PingdTest, shouldAnswerRdmaClientAndDisconnect) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::unique_ptr<PingdWorker> first, second;
  PingdOptions options;
  options.arguments = {"--protocol", "rdma_client"};
  ASSERT_NO_FATAL_FAILURE(StartPingd(options, &first));
  for (int i = 0; i < 3; ++i) {
    const auto client = ClientConnection::Connect(port_, 1);
    ASSERT_OK(client);
    // Another owner, accepting the other protocol: this connection keeps its own.
    if (i == 2) {
      ASSERT_NO_FATAL_FAILURE(StartPingd({}, &second));
      ASSERT_OK(first->process->Kill());
    }
    ASSERT_OK((*client)->Send({}));
    const auto reply = (*client)->Receive();
    ASSERT_OK(reply);
    EXPECT_EQ(reply->number, 1u);
    ASSERT_OK((*client)->WaitUntilDisconnected());
  }
  ExpectNoConnections();
}

// The client is a checker: it has to find each of these.
TEST_F(PingdTest, shouldBeCaughtLosingOrRepeatingAStep) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::unique_ptr<PingdWorker> owner;
  const std::pair<const char*, const char*> faults[] = {
      {"lose-read", "the data of ping 2 came back changed"},
      {"lose-write", "the data of ping 2 came back changed"},
      {"repeat-message", "message "},
      // pingd itself ends a connection on which something completes that it has not asked for.
      {"repeat-read", "instead of"},
      {"repeat-write", "instead of"},
  };
  for (const auto& [fault, finding] : faults) {
    SCOPED_TRACE(fault);
    PingdOptions options;
    options.test_hooks = true;
    // A ping has two messages; the READ is for the first and the WRITE for the second.
    const int at = std::string(fault).find("read") != std::string::npos ? 5 : 6;
    options.arguments = {"--fault", fault, "--fault-at", absl::StrCat(at)};
    std::unique_ptr<PingdWorker> faulty;
    ASSERT_NO_FATAL_FAILURE(StartPingd(options, &faulty));
    ASSERT_OK(cluster_->Handoff(faulty->id));
    const auto client = PingClient::Connect(port_, 100);
    ASSERT_OK(client);
    absl::Status status;
    for (int i = 0; i < 5 && status.ok(); ++i) status = (*client)->Ping();
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(finding));
    owner = std::move(faulty);
  }
}

TEST_F(PingdTest, shouldRefuseAServiceWithTooFewBuffersAndSayWhatWouldDo) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(1, 16, {"--buffer-bytes", "1048576"}));
  std::unique_ptr<harness::ChildProcess> refused;
  ASSERT_NO_FATAL_FAILURE(Spawn({}, &refused));
  const auto end = refused->WaitEnd(kTimeout);
  ASSERT_OK(end);
  EXPECT_TRUE(WIFEXITED(*end) && WEXITSTATUS(*end) == 1) << *end;
  EXPECT_THAT(refused->LogTail(), testing::HasSubstr("raise buffer_bytes to 1114112"));
}

}  // namespace
}  // namespace baton::pingd
