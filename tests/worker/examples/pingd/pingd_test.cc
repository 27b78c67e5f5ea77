// These tests run pingd on Baton, on the soft device: many clients, upgrades and kills, and clients
// that are wrong.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/harness/cluster.h"
#include "tests/harness/expectations.h"
#include "tests/worker/examples/example_fixture.h"
#include "tests/worker/examples/pingd/ping_client.h"

namespace baton::pingd {
namespace {

using examples::ExampleOptions;
using examples::ExampleWorker;

// One client in a thread of its own, from its beginning to Stop.
class PingLoad {
 public:
  PingLoad(uint16_t port, uint32_t data_bytes)
      : thread_([this, port, data_bytes] { Run(port, data_bytes); }) {}
  ~PingLoad() { Join(); }
  PingLoad(const PingLoad&) = delete;
  PingLoad& operator=(const PingLoad&) = delete;

  // Rests between two pings from now on, which leaves the processors to workers that start.
  void SlowDown() { rests_ = true; }
  uint64_t answers() const { return pings_; }
  bool failed() const { return ended_ && !stop_; }
  // What it has found; of a whole connection.
  absl::Status Stop() {
    Join();
    return status_;
  }

 private:
  void Join() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  void Run(uint16_t port, uint32_t data_bytes) {
    auto client = PingClient::Connect(port, data_bytes);
    status_ = client.status();
    while (status_.ok() && !stop_) {
      status_ = (*client)->Ping();
      if (status_.ok()) ++pings_;
      if (rests_) std::this_thread::sleep_for(kRest);
    }
    if (status_.ok()) status_ = (*client)->Disconnect();
    ended_ = true;
  }

  static constexpr std::chrono::milliseconds kRest{2};

  absl::Status status_;  // of the thread, until it was joined
  std::atomic<uint64_t> pings_{0};
  std::atomic<bool> stop_{false}, ended_{false}, rests_{false};
  std::thread thread_;
};

// A Baton with pingd workers, and clients that ping it all the time.
class PingdTest : public examples::ExampleTest<PingLoad> {
 protected:
  PingdTest() : ExampleTest("pingd") {}

  void StartCluster(uint32_t shards = 2, uint32_t max_connections = 16,
                    std::vector<std::string> batond_arguments = {}) {
    harness::ClusterOptions options;
    options.shards = shards;
    options.max_connections = max_connections;
    options.batond_arguments = std::move(batond_arguments);
    ASSERT_NO_FATAL_FAILURE(Start(std::move(options)));
  }
  // A cluster with a worker.
  void StartService(const ExampleOptions& options = {}) {
    ASSERT_NO_FATAL_FAILURE(StartCluster());
    ASSERT_NO_FATAL_FAILURE(StartWorker(options, &worker_));
  }

  void StartLoads(int count, uint32_t data_bytes) {
    for (int i = 0; i < count; ++i) {
      loads_.push_back(std::make_unique<PingLoad>(port_, data_bytes));
    }
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }

  // Starts clients that rest between two pings. Owners die at named points, which a few pings
  // reach, or the clients are so many that some ping is mostly under way.
  void StartSlowLoads(int count) {
    ASSERT_NO_FATAL_FAILURE(StartLoads(count, 1000));
    for (const auto& load : loads_) load->SlowDown();
  }

  // A client of the protocol rdma_client has one answer.
  static void ExpectOneAnswer(ClientConnection& client) {
    ASSERT_OK(client.Send({}));
    const auto reply = client.Receive();
    ASSERT_OK(reply);
    EXPECT_EQ(reply->number, 1u);
    ASSERT_OK(client.WaitUntilDisconnected());  // and no second answer before
  }
};

TEST_F(PingdTest, shouldServeConnectionsOneAfterAnotherInAllSizes) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(1, 2));
  ASSERT_NO_FATAL_FAILURE(StartWorker({}, &worker_));
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
  ASSERT_NO_FATAL_FAILURE(StartService());
  ASSERT_NO_FATAL_FAILURE(StartSlowLoads(8));
  for (const char* program : {"pingd-v2", "pingd-v1", "pingd-v2"}) {
    ASSERT_NO_FATAL_FAILURE(UpgradeTo(program));
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  for (int i = 0; i < 6; ++i) {
    ExampleOptions options;
    options.version = 1 + i % 2;
    // Where the data lies must not depend on it.
    options.arguments = {"--max-size", absl::StrCat(1000 + 100 * i)};
    std::unique_ptr<ExampleWorker> next;
    ASSERT_NO_FATAL_FAILURE(StartWorker(options, &next));
    if (i == 0) {
      // The owner is the upgrade's process, and no child of ours.
      ASSERT_OK(cluster_->Handoff(next->id));
    } else {
      ASSERT_OK(worker_->process->Kill());
    }
    worker_ = std::move(next);
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ExpectNothingLost();
  ExpectNoConnections();
}

TEST_F(PingdTest, shouldLoseAndRepeatNoStepWhereConnectionsShareReceives) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(2, 16, {"--shared-receive-queue-depth", "8"}));
  ASSERT_NO_FATAL_FAILURE(StartWorker({}, &worker_));
  ASSERT_NO_FATAL_FAILURE(StartSlowLoads(8));
  const auto client = ClientConnection::Connect(port_, 60'000);
  ASSERT_OK(client);
  // It takes receives that others need, and they are posted again.
  for (int i = 0; i < 3; ++i) ASSERT_OK((*client)->Send((*client)->SourceAddress()));
  ASSERT_OK((*client)->WaitUntilDisconnected());
  for (int i = 0; i < 3; ++i) {
    std::unique_ptr<ExampleWorker> next;
    ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2 - i % 2}, &next));
    ASSERT_OK(worker_->process->Kill());
    worker_ = std::move(next);
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ExpectNothingLost();
  ExpectNoConnections();
}

TEST_F(PingdTest, shouldTellWhichBinaryMadeAStep) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  const auto client = PingClient::Connect(port_, 100);
  ASSERT_OK(client);
  ASSERT_OK((*client)->Ping());
  EXPECT_EQ((*client)->version(), 1u);
  std::unique_ptr<ExampleWorker> second;
  ASSERT_NO_FATAL_FAILURE(StartWorker({.version = 2}, &second));
  ASSERT_OK(cluster_->Handoff(second->id));
  ASSERT_OK((*client)->Ping());
  EXPECT_EQ((*client)->version(), 2u);
}

TEST_F(PingdTest, shouldEndTheConnectionOfAWrongClientAndNoOther) {
  ASSERT_NO_FATAL_FAILURE(StartService({.arguments = {"--max-size", "1000"}}));
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
    ExpectInLog(*worker_, wrong.reason);
  }
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  ExpectNothingLost();
}

TEST_F(PingdTest, shouldEndTheConnectionOfAClientThatSpeaksOutOfTurn) {
  ASSERT_NO_FATAL_FAILURE(StartService());
  ASSERT_NO_FATAL_FAILURE(StartLoads(1, 1000));
  const auto client = ClientConnection::Connect(port_, 60'000);
  ASSERT_OK(client);
  // All are on the way before the READ for the first can be answered.
  for (int i = 0; i < 3; ++i) ASSERT_OK((*client)->Send((*client)->SourceAddress()));
  ASSERT_OK((*client)->WaitUntilDisconnected());
  ExpectInLog(*worker_, "a message came while");
  ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  ExpectNothingLost();
}

TEST_F(PingdTest, shouldAnswerRdmaClientAndDisconnect) {
  ASSERT_NO_FATAL_FAILURE(StartService({.arguments = {"--protocol", "rdma_client"}}));
  std::unique_ptr<ExampleWorker> second;
  for (int i = 0; i < 3; ++i) {
    const auto client = ClientConnection::Connect(port_, 1);
    ASSERT_OK(client);
    // Another owner, accepting the other protocol: this connection keeps its own.
    if (i == 2) {
      ASSERT_NO_FATAL_FAILURE(StartWorker({}, &second));
      ASSERT_OK(worker_->process->Kill());
    }
    ASSERT_NO_FATAL_FAILURE(ExpectOneAnswer(**client));
  }
  ExpectNoConnections();
}

// The client is a checker: it has to find each of these.
TEST_F(PingdTest, shouldBeCaughtLosingOrRepeatingAStep) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::unique_ptr<ExampleWorker> owner;
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
    ExampleOptions options;
    options.test_hooks = true;
    // A ping has two messages; the READ is for the first and the WRITE for the second.
    const int at = std::string(fault).find("read") != std::string::npos ? 5 : 6;
    options.arguments = {"--fault", fault, "--fault-at", absl::StrCat(at)};
    std::unique_ptr<ExampleWorker> faulty;
    ASSERT_NO_FATAL_FAILURE(StartWorker(options, &faulty));
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
  ASSERT_NO_FATAL_FAILURE(ExpectRefused({}, "raise buffer_bytes to 1114112"));
}

// Kills pingd before, within and after each step of its protocols: no step is lost, and none is
// made twice, as clients see that check each (ping_client.h).
class PingdCrashTest : public PingdTest {
 protected:
  void StartSafeWith(const std::string& protocol) {
    arguments_ = {"--protocol", protocol};
    ASSERT_NO_FATAL_FAILURE(StartCluster());
    ASSERT_NO_FATAL_FAILURE(StartSafe());
  }
};

TEST_F(PingdCrashTest, shouldLoseAndRepeatNoStepOfRping) {
  ASSERT_NO_FATAL_FAILURE(StartSafeWith("rping"));
  ASSERT_NO_FATAL_FAILURE(StartSlowLoads(2));
  for (const char* step : {"source", "read", "sink", "written", "sent"}) {
    for (const char* moment : {"begin", "staged", "end"}) {
      for (const int passing : {1, 2, 7}) {
        ASSERT_NO_FATAL_FAILURE(
            ExpectProgressOverDeathAt(absl::StrCat("pingd-", step, "-", moment), passing));
      }
    }
  }
  ExpectNothingLost();
}

// The six completions of a ping, one after the other: each of them is the one that is committed.
TEST_F(PingdCrashTest, shouldLoseAndRepeatNoStepOnEitherSideOfTheCommit) {
  ASSERT_NO_FATAL_FAILURE(StartSafeWith("rping"));
  ASSERT_NO_FATAL_FAILURE(StartSlowLoads(1));
  for (const char* point : {"commit-before-publish", "commit-published"}) {
    // The first commits are those of the adoption.
    for (int passing = 3; passing < 3 + 6; ++passing) {
      ASSERT_NO_FATAL_FAILURE(ExpectProgressOverDeathAt(point, passing));
    }
  }
  ExpectNothingLost();
}

TEST_F(PingdCrashTest, shouldServeAConnectionWhoseAcceptDied) {
  ASSERT_NO_FATAL_FAILURE(StartSafeWith("rping"));
  for (const char* point : {"pingd-accept-begin", "pingd-accept-end"}) {
    SCOPED_TRACE(point);
    ASSERT_NO_FATAL_FAILURE(MakeDoomedOwner(point, 1));
    ASSERT_NO_FATAL_FAILURE(StartLoads(1, 1000));
    ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
    ASSERT_NO_FATAL_FAILURE(ExpectProgress());
  }
  ExpectNothingLost();
}

TEST_F(PingdCrashTest, shouldAnswerRdmaClientOnce) {
  ASSERT_NO_FATAL_FAILURE(StartSafeWith("rdma_client"));
  for (const char* step : {"message", "sent"}) {
    for (const char* moment : {"begin", "staged", "end"}) {
      SCOPED_TRACE(absl::StrCat(step, " ", moment));
      ASSERT_NO_FATAL_FAILURE(MakeDoomedOwner(absl::StrCat("pingd-", step, "-", moment), 1));
      const auto client = ClientConnection::Connect(port_, 1);
      ASSERT_OK(client);
      ASSERT_NO_FATAL_FAILURE(ExpectOneAnswer(**client));
      ASSERT_NO_FATAL_FAILURE(ExpectDeathAndRecovery());
    }
  }
  ExpectNoConnections();
}

}  // namespace
}  // namespace baton::pingd
