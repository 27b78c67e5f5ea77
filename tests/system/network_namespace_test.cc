// Two services of one Baton, each in a network namespace of its own, that listen on the same
// address and port.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/network_namespace.h"
#include "tests/harness/operator_client.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/temp_directory.h"
#include "tests/harness/wait_until.h"

namespace baton {
namespace {

using harness::ChildOptions;
using harness::ChildProcess;
using harness::kTimeout;
using harness::NetworkNamespace;
using harness::PeerOptions;
using harness::PeerProcess;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kConnectionsInNamespaces = 8;
constexpr char kHost[] = "127.0.0.1";

std::string Program(const char* name) { return harness::Binaries().Find(name).value(); }

// A ledger and its peer, in a namespace.
struct Side {
  std::string service;
  std::unique_ptr<NetworkNamespace> network;
  std::unique_ptr<ChildProcess> worker;
  std::unique_ptr<PeerProcess> peer;
};

class NetworkNamespaces : public ::testing::Test {
 protected:
  void SetUp() override {
    for (Side* side : {&blue_, &red_}) {
      auto network = NetworkNamespace::Create();
      if (absl::IsPermissionDenied(network.status())) {
        GTEST_SKIP() << "network namespaces cannot be made: " << network.status();
      }
      ASSERT_OK(network);
      side->network = std::make_unique<NetworkNamespace>(*std::move(network));
    }
    blue_.service = "blue";
    red_.service = "red";
    ASSERT_NO_FATAL_FAILURE(StartBatond());
    // The port that the first is given is free in the second's namespace.
    ASSERT_NO_FATAL_FAILURE(StartWorker(&blue_));
    ASSERT_NO_FATAL_FAILURE(StartWorker(&red_));
    ASSERT_NO_FATAL_FAILURE(StartPeer(&blue_));
    ASSERT_NO_FATAL_FAILURE(StartPeer(&red_));
  }
  void TearDown() override {
    if (!HasFailure() || !batond_) return;
    for (const char* log : {"batond", "blue", "red", "blue-peer", "red-peer"}) {
      std::ifstream file(Log(log));
      std::cerr << "---- " << log << "\n" << file.rdbuf();
      std::cerr.clear();
    }
  }

  std::string State() const { return directory_.File("state"); }
  std::string Log(const std::string& name) const { return directory_.File(name + ".log"); }

  void StartBatond() {
    const std::string libexec = directory_.File("libexec");
    std::error_code error;
    std::filesystem::create_directory(libexec, error);
    for (const char* name : {"baton-driver", "baton-keeper", "baton-control", "baton-launch"}) {
      std::filesystem::create_symlink(Program(name), libexec + "/" + name, error);
    }
    std::ofstream config(directory_.File("config"));
    config << "state_dir: \"" << State() << "\"\n";
    for (const Side* side : {&blue_, &red_}) {
      config << "services { name: \"" << side->service << "\" device { soft {} } shards: 2 "
             << "watch_window_ms: 200 network_namespace: \"" << side->network->path() << "\" }\n";
    }
    config.close();
    ChildOptions child;
    child.program = Program("batond");
    child.arguments = {"--config", directory_.File("config"), "--libexec", libexec};
    child.log_path = Log("batond");
    ASSERT_OK_AND_ASSIGN(batond_, ChildProcess::Start(child));
    ASSERT_OK(batond_->ReadLineWith("batond ready", kTimeout));
    operators_.emplace(State() + "/operator.sock");
  }

  // In our own namespace: a worker needs to be in no other.
  void StartWorker(Side* side) {
    ChildOptions child;
    child.program = Program("ledger-v1");
    child.log_path = Log(side->service);
    child.arguments = {"--socket",  State() + "/" + side->service + ".sock",
                       "--service", side->service,
                       "--listen",  absl::StrCat(kHost, ":", port_)};
    ASSERT_OK_AND_ASSIGN(side->worker, ChildProcess::Start(child));
    const auto line = side->worker->ReadLineWith("ledger ready", kTimeout);
    ASSERT_OK(line);
    unsigned port = 0;
    ASSERT_EQ(std::sscanf(line->c_str(), "ledger ready version=%*d worker=%*u port=%u", &port), 1);
    if (port_ != 0) {
      ASSERT_EQ(port, port_);
    }
    port_ = static_cast<uint16_t>(port);
  }

  void StartPeer(Side* side) {
    const NetworkNamespace::Stay stay(*side->network);
    PeerOptions options;
    options.program = Program("baton-peer");
    options.log_path = Log(side->service + "-peer");
    options.fabric.device = "soft";
    options.fabric.host = kHost;
    options.port = port_;
    options.connections = kConnectionsInNamespaces;
    options.rate = 500;
    ASSERT_OK_AND_ASSIGN(side->peer, PeerProcess::Start(options));
    ASSERT_OK(side->peer->Settle());
  }

  v1::GetServiceResponse Get(const Side& side) {
    const auto service = operators_->GetService(side.service);
    EXPECT_OK(service);
    return service.ok() ? *service : v1::GetServiceResponse();
  }

  // Returns when its workers have been replaced, or the upgrade has gone back.
  void UpgradeBlue() {
    v1::UpgradePlan plan;
    plan.set_exec(Program("ledger-v2"));
    ASSERT_OK(operators_->Upgrade("blue", plan));
    const auto has_ended = [&] {
      const auto list = operators_->ListUpgrades("blue");
      return list.ok() && list->upgrades(0).ended_unix_micros() != 0;
    };
    ASSERT_OK(harness::WaitUntil("the upgrade to end", has_ended, kTimeout));
  }

  void ExpectNothingLost() {
    for (Side* side : {&blue_, &red_}) {
      EXPECT_OK(side->peer->Settle());
      harness::ExpectNothingLost(*side->peer);
    }
  }

  const harness::TempDirectory directory_ = harness::TempDirectory::Create().value();
  std::unique_ptr<ChildProcess> batond_;
  std::optional<harness::OperatorClient> operators_;
  Side blue_, red_;
  uint16_t port_ = 0;
};

std::string NetworkOf(int pid) {
  std::error_code error;
  return std::filesystem::read_symlink(absl::StrCat("/proc/", pid, "/ns/net"), error);
}

TEST_F(NetworkNamespaces, shouldServeTheSamePortInEach) {
  for (const Side* side : {&blue_, &red_}) {
    const v1::GetServiceResponse got = Get(*side);
    EXPECT_EQ(got.service().connection_count(), kConnectionsInNamespaces);
    ASSERT_EQ(got.service().listeners_size(), 1);
    EXPECT_EQ(got.service().listeners(0).host(), kHost);
    EXPECT_EQ(got.service().listeners(0).port(), port_);
    EXPECT_EQ(got.service().network_namespace(), side->network->path());
    EXPECT_EQ(NetworkOf(got.service().keeper_pid()), side->network->Identity());
  }
  EXPECT_NE(blue_.network->Identity(), red_.network->Identity());
  ExpectNothingLost();
}

TEST_F(NetworkNamespaces, shouldUpgradeOneWithoutTheOther) {
  ASSERT_NO_FATAL_FAILURE(UpgradeBlue());
  EXPECT_EQ(operators_->ListUpgrades("blue")->upgrades(0).phase(), v1::UPGRADE_PHASE_COMPLETED);
  // The new program is where the old one was.
  const v1::GetServiceResponse blue = Get(blue_);
  ASSERT_EQ(blue.workers_size(), 1);
  EXPECT_EQ(NetworkOf(blue.workers(0).pid()), NetworkOf(batond_->pid()));
  EXPECT_TRUE(operators_->ListUpgrades("red")->upgrades().empty());
  ExpectNothingLost();
}

TEST_F(NetworkNamespaces, shouldUpgradeWithinTheNamespaceWhereTheWorkerIs) {
  {
    const NetworkNamespace::Stay stay(*blue_.network);
    ASSERT_NO_FATAL_FAILURE(StartWorker(&blue_));  // in the place of the one that is elsewhere
  }
  ASSERT_OK(harness::WaitUntil(
      "the worker to own every shard",
      [&] { return Get(blue_).service().shards_owned() == 2 && Get(blue_).workers_size() == 1; },
      kTimeout));
  ASSERT_NO_FATAL_FAILURE(UpgradeBlue());
  const v1::GetServiceResponse blue = Get(blue_);
  ASSERT_EQ(blue.workers_size(), 1);
  EXPECT_EQ(blue.workers(0).version(), "v2");
  EXPECT_EQ(NetworkOf(blue.workers(0).pid()), blue_.network->Identity());
}

TEST_F(NetworkNamespaces, shouldKillOneWithoutTheOther) {
  const int driver = Get(red_).service().driver_pid();
  harness::KillUnfollowed(driver);
  // The next driver is in the namespace again, and gets the port at once.
  red_.worker.reset();
  ASSERT_OK(harness::WaitUntil(
      "another driver",
      [&] {
        const auto red = operators_->GetService("red");
        return red.ok() && red->service().reachable() && red->service().driver_pid() != driver;
      },
      kTimeout));
  ASSERT_NO_FATAL_FAILURE(StartWorker(&red_));
  EXPECT_EQ(NetworkOf(Get(red_).service().keeper_pid()), red_.network->Identity());
  EXPECT_EQ(NetworkOf(Get(red_).service().driver_pid()), red_.network->Identity());
  ASSERT_NO_FATAL_FAILURE(StartPeer(&red_));
  EXPECT_OK(blue_.peer->Settle());
  for (Side* side : {&blue_, &red_}) harness::ExpectNothingLost(*side->peer);
}

// A TCP program, or another service, has the port in one namespace: the other one does not care.
TEST_F(NetworkNamespaces, shouldNameWhoHasThePortInTheNamespace) {
  ChildOptions child;
  child.program = Program("ledger-v1");
  child.log_path = directory_.File("refused.log");
  // All addresses: another listener of the service, which the first one keeps out.
  child.arguments = {"--socket", State() + "/blue.sock",         "--service", "blue",
                     "--listen", absl::StrCat("0.0.0.0:", port_)};
  const auto refused = ChildProcess::Start(child);
  ASSERT_OK(refused);
  ASSERT_OK((*refused)->WaitEnd(kTimeout));
  EXPECT_THAT(
      (*refused)->LogTail(),
      AllOf(HasSubstr(absl::StrCat("0.0.0.0:", port_, " is taken")),
            HasSubstr(absl::StrCat("baton-nic (pid ",
                                   harness::NicOf(Get(blue_).service().driver_pid()), ")"))));
}

}  // namespace
}  // namespace baton
