// Policies and configurations that change under load: what is refused and by which name, what a
// change does at once and what it leaves alone.
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
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
#include "worker/worker.h"

namespace baton {
namespace {

using harness::Cluster;
using harness::ClusterOptions;
using harness::PeerOptions;
using ::testing::HasSubstr;

struct Output {
  int status = -1;
  std::string text;  // of both of its streams
};

// Takes every shard that it is given, and minds nothing.
class Idle : public Service {
 public:
  absl::Status OnAdopt(Shard& adopted) override {
    shard = &adopted;
    return absl::OkStatus();
  }
  void OnCompletion(Shard&, const Completion&) override {}
  Shard* shard = nullptr;
};

class PolicyTest : public harness::ClusterFixture {
 protected:
  void SetUp() override {
    ClusterOptions options;
    options.shards = 1;
    ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start(options));
  }

  static Output OutputOf(const harness::CommandResult& result) {
    return {result.status, result.out + result.err};
  }
  Output Baton(const std::vector<std::string>& arguments) {
    return OutputOf(harness::RunBaton(*cluster_, arguments));
  }
  Output SetPolicy(const std::string& policy, const std::vector<std::string>& more = {}) {
    return OutputOf(harness::SetPolicy(*cluster_, policy, more));
  }
  void Set(const std::string& policy) {
    const Output output = SetPolicy(policy);
    ASSERT_EQ(output.status, 0) << output.text;
  }
  std::unique_ptr<Worker> Attach(Idle* idle) {
    WorkerOptions options;
    options.socket = cluster_->SocketPath();
    options.service = "ledger";
    auto worker = Worker::Attach(options, idle);
    EXPECT_TRUE(worker.ok()) << worker.status();
    return worker.ok() ? *std::move(worker) : nullptr;
  }
  // With the one shard.
  void Own(Worker& worker, Idle& idle) {
    ASSERT_TRUE(worker.Ready().ok());
    while (idle.shard == nullptr) {
      ASSERT_TRUE(worker.Wait(1000).ok());
      ASSERT_TRUE(worker.Poll().ok());
    }
  }
  absl::StatusOr<std::unique_ptr<harness::PeerProcess>> StartPeer(uint32_t connections) {
    PeerOptions options;
    options.connections = connections;
    options.rate = 1000;
    return cluster_->StartPeer(options);
  }
  static void ExpectRefused(const absl::Status& status, const std::string& field) {
    EXPECT_FALSE(status.ok()) << field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(field + ":"));
  }
};

TEST_F(PolicyTest, shouldRefuseWorkersByTheQuotasNameAndGrantOnceItIsRaised) {
  Idle idle;
  const auto worker = Attach(&idle);
  ASSERT_NE(worker, nullptr);
  Set("service { listeners: 2 } worker { listeners: 1 grants: 1 granted_bytes: 4096 }");
  ASSERT_TRUE(worker->Listen("127.0.0.1", 0).ok());
  ExpectRefused(worker->Listen("127.0.0.2", 0).status(), "policy.worker.listeners");
  ExpectRefused(worker->GrantRemoteAccess(0, 4097, verbs::kRemoteRead).status(),
                "policy.worker.granted_bytes");
  ASSERT_TRUE(worker->GrantRemoteAccess(0, 4096, verbs::kRemoteRead).ok());
  ExpectRefused(worker->GrantRemoteAccess(0, 1, verbs::kRemoteRead).status(),
                "policy.worker.grants");
  const Output warned = Baton({"service", "describe", "ledger"});
  EXPECT_THAT(warned.text, HasSubstr("policy.worker.grants: 1 of 1 in use by worker 1"));
  EXPECT_OK(harness::WaitForEvent(*cluster_, {"limit_near"}));

  Set("service { listeners: 2 granted_bytes: 8192 grants: 2 }");
  EXPECT_TRUE(worker->Listen("127.0.0.2", 0).ok());
  ExpectRefused(worker->Listen("127.0.0.3", 0).status(), "policy.service.listeners");
  EXPECT_TRUE(worker->GrantRemoteAccess(0, 4096, verbs::kRemoteRead).ok());
  ExpectRefused(worker->GrantRemoteAccess(0, 1, verbs::kRemoteRead).status(),
                "policy.service.grants");
  Set("service { granted_bytes: 8192 }");
  ExpectRefused(worker->GrantRemoteAccess(0, 1, verbs::kRemoteRead).status(),
                "policy.service.granted_bytes");
  Set("");
  EXPECT_TRUE(worker->GrantRemoteAccess(0, 1, verbs::kRemoteRead).ok());
}

TEST_F(PolicyTest, shouldListenAndConnectOnlyWhereItSays) {
  auto other = Cluster::Start(ClusterOptions());
  ASSERT_TRUE(other.ok()) << other.status();
  auto served = (*other)->StartLedger(1);
  ASSERT_TRUE(served.ok()) << served.status();
  const uint16_t port = (*other)->port();
  Idle idle;
  const auto worker = Attach(&idle);
  ASSERT_NE(worker, nullptr);
  Own(*worker, idle);
  const auto connect = [&] {
    return worker->Connect(*idle.shard, "127.0.0.1", port, "", 0).status();
  };
  Set("listen_ports { first: 1 last: 1023 } connect_ports { first: 1 last: 1023 }");
  ExpectRefused(worker->Listen("127.0.0.1", 0).status(), "policy.listen_ports");
  ExpectRefused(worker->Listen("127.0.0.1", 1024).status(), "policy.listen_ports");
  ExpectRefused(connect(), "policy.connect_ports");
  Set("gids: \"127.0.0.9\"");
  ExpectRefused(worker->Listen("127.0.0.1", 0).status(), "policy.gids");
  EXPECT_TRUE(worker->Listen("127.0.0.9", 0).ok());
  Set(absl::StrCat("worker { connections: 1 } connect_ports { first: ", port, " }"));
  EXPECT_TRUE(connect().ok());
  ExpectRefused(connect(), "policy.worker.connections");
  Set("service { connections: 1 }");
  ExpectRefused(connect(), "policy.service.connections");
  Set("service { connections: 2 }");
  EXPECT_TRUE(connect().ok());
}

// Peers keep the connections that are there already, and get no new ones.
TEST_F(PolicyTest, shouldLoseNothingAndAddNothingWhenItIsLoweredBelowWhatIsThere) {
  auto worker = cluster_->StartLedger(1);
  ASSERT_TRUE(worker.ok()) << worker.status();
  Set("service { connections: 4 }");
  auto four = StartPeer(4);
  ASSERT_TRUE(four.ok()) << four.status();
  EXPECT_FALSE(StartPeer(1).ok());
  EXPECT_OK(harness::WaitForEvent(
      *cluster_,
      {"connection_refused", "policy.service.connections: the service has 4 of at most 4"}));
  Set("service { connections: 5 }");
  auto fifth = StartPeer(1);
  ASSERT_TRUE(fifth.ok()) << fifth.status();
  Set("service { connections: 2 }");
  EXPECT_FALSE(StartPeer(1).ok());
  ASSERT_TRUE((*four)->Settle().ok());
  harness::ExpectNothingLost(**four);
  harness::ExpectNothingLost(**fifth);
}

// A slow service is slow, and nothing else: each message is answered in its time.
TEST_F(PolicyTest, shouldHaveWaitWhatIsPostedTooFastAndLoseNothing) {
  auto worker = cluster_->StartLedger(1);
  ASSERT_TRUE(worker.ok()) << worker.status();
  auto peer = StartPeer(2);
  ASSERT_TRUE(peer.ok()) << peer.status();
  Set("service { posts_per_second: 200 }");
  ASSERT_TRUE((*peer)->Settle().ok());
  Set("");
  ASSERT_TRUE((*peer)->Settle().ok());
  harness::ExpectNothingLost(**peer);
}

TEST_F(PolicyTest, shouldNameWhatIsWrongAndChangeNothing) {
  Set("service { connections: 4 }");
  const Output wrong = SetPolicy("service { connections: 65 listeners: 9 }");
  EXPECT_NE(wrong.status, 0);
  EXPECT_THAT(wrong.text, HasSubstr("policy.service.connections: 65 is more than max_connections"));
  EXPECT_THAT(wrong.text, HasSubstr("policy.service.listeners: 9 is more than max_listeners"));
  const Output dry = SetPolicy("service { connections: 65 }", {"--dry-run"});
  EXPECT_NE(dry.status, 0);
  EXPECT_EQ(SetPolicy("service { connections: 5 }", {"--dry-run"}).status, 0);
  EXPECT_THAT(Baton({"service", "policy", "ledger"}).text, HasSubstr("connections: 4"));
}

class ReloadTest : public harness::ClusterFixture {
 protected:
  void SetUp() override {
    ClusterOptions options;
    options.by_file = true;
    ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start(options));
    ASSERT_OK_AND_ASSIGN(worker_, cluster_->StartLedger(1));
  }

  // Has batond take the configuration with these fields of the service.
  void Reload(const std::string& service) {
    ASSERT_TRUE(cluster_->WriteConfig(service).ok());
    ASSERT_TRUE(cluster_->batond().Signal(SIGHUP).ok());
  }
  std::string Baton(const std::vector<std::string>& arguments) {
    const harness::CommandResult result = harness::RunBaton(*cluster_, arguments);
    EXPECT_EQ(result.status, 0) << result.out << result.err;
    return result.out + result.err;
  }
  // Puts another service beside the first into the configuration, with so many shards.
  void WriteOther(int shards) {
    ASSERT_OK(cluster_->WriteConfig(
        "", absl::StrCat("services { name: \"other\" device { soft {} } shards: ", shards, " }")));
  }
  // The other service has another driver than `former`, and serves. Starts a worker, and returns
  // the port where it listens.
  void ServeOther(int former, std::unique_ptr<harness::ChildProcess>* worker, uint16_t* port) {
    ASSERT_OK(harness::WaitUntil("the other service", [&] {
      const auto other = cluster_->operators().GetService("other");
      return other.ok() && other->service().reachable() && other->service().driver_pid() != former;
    }));
    harness::ChildOptions ledger;
    ASSERT_OK_AND_ASSIGN(ledger.program, harness::Binaries().Find("ledger-v1"));
    ledger.arguments = {"--socket",  cluster_->directory() + "/state/other.sock",
                        "--service", "other",
                        "--listen",  ClusterOptions().fabric.host + ":0"};
    ledger.log_path = cluster_->directory() + "/other-ledger.log";
    ASSERT_OK_AND_ASSIGN(*worker, harness::ChildProcess::Start(ledger));
    const auto line = (*worker)->ReadLineWith("ledger ready", std::chrono::seconds(20));
    ASSERT_OK(line);
    const size_t said = line->find(" port=");
    ASSERT_NE(said, std::string::npos) << *line;
    *port = static_cast<uint16_t>(std::atoi(line->c_str() + said + 6));
  }
  int DriverOf(const std::string& service) {
    const auto found = cluster_->operators().GetService(service);
    return found.ok() ? found->service().driver_pid() : 0;
  }
  // Waits until the service has `count` listeners. Returns the port of one that no worker asked
  // for; 0: in vain, or there is none.
  uint16_t AwaitListeners(int count) {
    uint16_t port = 0;
    const absl::Status came = harness::WaitUntil("listeners", [&] {
      const auto service = cluster_->GetService();
      if (!service.ok() || service->service().listeners_size() != count) return false;
      for (const v1::Listener& listener : service->service().listeners()) {
        if (listener.port() != cluster_->port()) port = static_cast<uint16_t>(listener.port());
      }
      return true;
    });
    EXPECT_TRUE(came.ok()) << came;
    return port;
  }

  std::unique_ptr<harness::LedgerWorker> worker_;
};

TEST_F(ReloadTest, shouldChangeListenersWhileOldAndNewPeersAreServed) {
  PeerOptions options = harness::SteadyLoad();
  auto peer = cluster_->StartPeer(options);
  ASSERT_TRUE(peer.ok()) << peer.status();
  const auto before = cluster_->operators().GetStatus();
  ASSERT_TRUE(before.ok()) << before.status();

  Reload("listeners { host: \"0.0.0.0\" }");
  options.port = AwaitListeners(2);
  ASSERT_NE(options.port, 0);
  auto newcomer = cluster_->StartPeer(options);
  ASSERT_TRUE(newcomer.ok()) << newcomer.status();
  ASSERT_TRUE((*newcomer)->Settle().ok());

  Reload("");
  AwaitListeners(1);
  ASSERT_TRUE((*newcomer)->Settle().ok());
  ASSERT_TRUE((*peer)->Settle().ok());
  const auto after = cluster_->operators().GetStatus();
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->services(0).keeper_pid(), before->services(0).keeper_pid());
  harness::ExpectNothingLost(**peer);
  harness::ExpectNothingLost(**newcomer);
}

TEST_F(ReloadTest, shouldDisconnectTheServiceThatNeedsAnotherDriverAlone) {
  auto peer = cluster_->StartPeer(harness::SteadyLoad());
  ASSERT_OK(peer);
  const int driver = DriverOf("ledger");
  ASSERT_NE(driver, 0);
  ASSERT_NO_FATAL_FAILURE(WriteOther(1));
  EXPECT_THAT(Baton({"reload"}), HasSubstr("services[other]"));
  std::unique_ptr<harness::ChildProcess> worker;
  PeerOptions options;
  ASSERT_NO_FATAL_FAILURE(ServeOther(0, &worker, &options.port));
  auto doomed = cluster_->StartPeer(options);
  ASSERT_OK(doomed);
  const int doomed_driver = DriverOf("other");

  // It is listed, and nothing ends.
  ASSERT_NO_FATAL_FAILURE(WriteOther(2));
  const std::string listed = Baton({"reload"});
  EXPECT_THAT(listed, HasSubstr("services[other].shards"));
  EXPECT_THAT(listed, HasSubstr("`baton reload --disconnect` takes that, too"));
  ASSERT_OK((*doomed)->Settle());
  EXPECT_EQ(DriverOf("other"), doomed_driver);

  EXPECT_THAT(Baton({"reload", "--disconnect"}), HasSubstr("Ends connections of"));
  std::unique_ptr<harness::ChildProcess> next_worker;
  ASSERT_NO_FATAL_FAILURE(ServeOther(doomed_driver, &next_worker, &options.port));
  (void)(*doomed)->Settle();
  const auto ended = (*doomed)->Stop();
  ASSERT_OK(ended);
  EXPECT_GT(ended->Count("disconnects"), 0u) << ended->text();
  auto newcomer = cluster_->StartPeer(options);
  ASSERT_OK(newcomer);
  ASSERT_OK((*newcomer)->Settle());
  harness::ExpectNothingLost(**newcomer);
  const auto other = cluster_->operators().GetService("other");
  ASSERT_OK(other);
  EXPECT_EQ(other->shards_size(), 2);

  ASSERT_OK((*peer)->Settle());
  EXPECT_EQ(DriverOf("ledger"), driver);
  harness::ExpectNothingLost(**peer);
}

TEST_F(ReloadTest, shouldChangeLimitsWhilePeersAreServed) {
  auto peer = cluster_->StartPeer(harness::SteadyLoad());
  ASSERT_OK(peer);
  const auto reload = [this](uint32_t connections) {
    ASSERT_OK(cluster_->WriteConfig(
        absl::StrCat("policy { service { connections: ", connections, " } }")));
    EXPECT_THAT(Baton({"reload"}), HasSubstr("services[ledger].policy"));
  };
  const uint32_t there = harness::SteadyLoad().connections;
  ASSERT_NO_FATAL_FAILURE(reload(there));
  EXPECT_FALSE(cluster_->StartPeer(PeerOptions()).ok());
  EXPECT_OK(harness::WaitForEvent(
      *cluster_, {"connection_refused", absl::StrCat("policy.service.connections: the service has ",
                                                     there, " of at most ", there)}));
  ASSERT_NO_FATAL_FAILURE(reload(there + 1));
  auto newcomer = cluster_->StartPeer(PeerOptions());
  ASSERT_OK(newcomer);
  ASSERT_OK((*newcomer)->Settle());
  // Those that are more than a lower limit stay.
  ASSERT_NO_FATAL_FAILURE(reload(1));
  ASSERT_OK((*newcomer)->Settle());
  ASSERT_OK((*peer)->Settle());
  harness::ExpectNothingLost(**newcomer);
  harness::ExpectNothingLost(**peer);
}

// batond is killed before it has read the configuration again.
TEST_F(ReloadTest, shouldBeDoneByTheNextBatondToo) {
  auto peer = cluster_->StartPeer(PeerOptions());
  ASSERT_TRUE(peer.ok()) << peer.status();
  ASSERT_TRUE(cluster_->KillBatond().ok());
  ASSERT_TRUE(cluster_->WriteConfig("listeners { host: \"0.0.0.0\" }").ok());
  ASSERT_TRUE(cluster_->StartBatondAgain().ok());
  EXPECT_NE(AwaitListeners(2), 0);
  ASSERT_TRUE((*peer)->Settle().ok());
  // A keeper that is started has what the running one took.
  Reload("");
  AwaitListeners(1);
  harness::ExpectNothingLost(**peer);
}

}  // namespace
}  // namespace baton
