// The real control under the real batond, as a user of its own; keepers are fake.
#include <pwd.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/channel/message_channel.h"
#include "supervisor/cli/client.h"
#include "supervisor/config/audit_chain.h"
#include "supervisor/config/state_files.h"
#include "tests/supervisor/batond/batond_process.h"
#include "tests/supervisor/control/test_certificates.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr char kUser[] = "nobody";

std::string Runfile(const std::string& path) {
  return std::string(std::getenv("TEST_SRCDIR")) + "/baton/" + path;
}

// Returns the value of `field` in /proc/PID/status, its words separated by single spaces.
std::string StatusOf(pid_t pid, const std::string& field) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(field + ":")) continue;
    std::istringstream words(line.substr(field.size() + 1));
    std::string result;
    for (std::string word; words >> word;) result += (result.empty() ? "" : " ") + word;
    return result;
  }
  return "no " + field;
}

class ControlUserTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    user_ = *getpwnam(kUser);
    ASSERT_EQ(chmod(stage_.path().c_str(), 0755), 0);
    // Bazel's own directories are closed to other users.
    std::filesystem::remove(stage_.libexec() + "/baton-control");
    std::filesystem::copy_file(Runfile("supervisor/control/baton-control"),
                               stage_.libexec() + "/baton-control");
  }

  void WriteConfig(const std::string& more) {
    std::ofstream(stage_.path() + "/conf")
        << "state_dir: \"" << stage_.state_dir()
        << "\" services { name: \"kv\" device { soft {} } } " << more;
    ASSERT_EQ(chmod((stage_.path() + "/conf").c_str(), 0600), 0);
  }

  BatondProcess::Options Options(const std::string& user = kUser) {
    return WithArguments({"--config", stage_.path() + "/conf", "--libexec", stage_.libexec(),
                          "--control-user", user});
  }

  std::unique_ptr<OperatorClient> Connect() {
    auto client = OperatorClient::Connect(OperatorSocketPath(stage_.state_dir()), 20);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }

  // Kills a batond that serves. `control`: the pid of its control.
  void KillABatond(pid_t* control) {
    BatondProcess batond(stage_, Options());
    ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
    *control = Control();
    ASSERT_GT(*control, 0);
    batond.Signal(SIGKILL);
    EXPECT_EQ(batond.Wait(), 128 + SIGKILL);
  }

  pid_t Control() {
    const auto client = Connect();
    if (!client) return 0;
    const auto status = client->Ask(&Operator::GetStatus, {});
    EXPECT_TRUE(status.ok()) << status.status();
    return status.ok() ? status->control_pid() : 0;
  }

  const Stage stage_;
  passwd user_ = {};
};

TEST_F(ControlUserTest, shouldHaveNoRightsButItsUsers) {
  ASSERT_NO_FATAL_FAILURE(WriteConfig(""));
  BatondProcess batond(stage_, Options());
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  const pid_t control = Control();
  ASSERT_GT(control, 0) << batond.standard_error();
  const std::string uid = std::to_string(user_.pw_uid), gid = std::to_string(user_.pw_gid);
  EXPECT_EQ(StatusOf(control, "Uid"), uid + " " + uid + " " + uid + " " + uid);
  EXPECT_EQ(StatusOf(control, "Gid"), gid + " " + gid + " " + gid + " " + gid);
  EXPECT_EQ(StatusOf(control, "Groups"), "");
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapAmb"}) {
    EXPECT_EQ(StatusOf(control, set), "0000000000000000") << set;
  }
  EXPECT_EQ(StatusOf(control, "NoNewPrivs"), "1");
#ifndef BATON_SANITIZED
  EXPECT_EQ(StatusOf(control, "Seccomp"), "2");
#endif
}

TEST_F(ControlUserTest, shouldBeTheFirstThatTheKernelKillsForWantOfMemory) {
  ASSERT_NO_FATAL_FAILURE(WriteConfig(""));
  BatondProcess batond(stage_, Options());
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  const auto score_of = [](pid_t pid) {
    int score = -1;
    std::ifstream("/proc/" + std::to_string(pid) + "/oom_score_adj") >> score;
    return score;
  };
  const pid_t control = Control();
  ASSERT_GT(control, 0) << batond.standard_error();
  EXPECT_EQ(score_of(control), 500);
  EXPECT_EQ(score_of(batond.pid()), score_of(getpid()));
  EXPECT_LT(score_of(stage_.lives("keeper")[0].pid), 500);
}

TEST_F(ControlUserTest, shouldOutliveBatondAndServeUnderTheNext) {
  ASSERT_NO_FATAL_FAILURE(WriteConfig(""));
  pid_t control = 0;
  ASSERT_NO_FATAL_FAILURE(KillABatond(&control));
  EXPECT_EQ(Control(), control);  // operators do not wait for a batond
  ASSERT_NO_FATAL_FAILURE(WriteConfig("viewer_uids: 7"));
  BatondProcess batond(stage_, Options());
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_EQ(Control(), control);
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  EXPECT_TRUE(Eventually([&] {
    const auto status = client->Ask(&Operator::GetStatus, {});
    return status.ok() && status->batonds_followed() == 1;
  }));
  ASSERT_NO_FATAL_FAILURE(WriteConfig("viewer_uids: 8"));
  const auto reload = client->Ask(&Operator::Reload, {});
  ASSERT_TRUE(reload.ok()) << reload.status();
  EXPECT_THAT(reload->taken(), testing::ElementsAre("viewer_uids"));
  kill(control, SIGKILL);
  EXPECT_NE(Control(), control);
  batond.Signal(SIGTERM);
  EXPECT_EQ(batond.Wait(), 0);
}

// The next batond wants another. The audit trail changes its owner between the two.
TEST_F(ControlUserTest, shouldEndWhenTheNextBatondWantsAnotherUser) {
  ASSERT_NO_FATAL_FAILURE(WriteConfig(""));
  pid_t control = 0;
  ASSERT_NO_FATAL_FAILURE(KillABatond(&control));
  BatondProcess::Options options = Options();
  options.arguments.resize(options.arguments.size() - 2);
  BatondProcess batond(stage_, std::move(options));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_TRUE(IsDead(control));
  EXPECT_EQ(StatusOf(Control(), "Uid"), "0 0 0 0");
  EXPECT_THAT(batond.standard_error(), HasSubstr("is control of another user"));
}

TEST_F(ControlUserTest, shouldReachKeepersAndComeBackWithThem) {
  ASSERT_NO_FATAL_FAILURE(WriteConfig(""));
  BatondProcess batond(stage_, Options());
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  const auto connections = [&] {
    const std::string log = batond.standard_error();
    size_t count = 0;
    for (size_t at = 0; (at = log.find("connected to its keeper", at)) != std::string::npos; ++at) {
      ++count;
    }
    return count;
  };
  EXPECT_TRUE(Eventually([&] { return connections() == 1; })) << batond.standard_error();
  kill(stage_.lives("keeper").front().pid, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return connections() >= 2; })) << batond.standard_error();
  const pid_t control = Control();
  ASSERT_GT(control, 0);
  kill(control, SIGKILL);
  const pid_t next = Control();
  EXPECT_GT(next, 0);
  EXPECT_NE(next, control);
}

// Users' programs judge whom they talk to by that.
TEST_F(ControlUserTest, shouldBeBatondToWhomConnects) {
  ASSERT_NO_FATAL_FAILURE(WriteConfig(""));
  BatondProcess batond(stage_, Options());
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  for (const std::string& path :
       {OperatorSocketPath(stage_.state_dir()), ControlSocketPath(stage_.state_dir())}) {
    const auto socket = ConnectUnix(path);
    ASSERT_TRUE(socket.ok()) << socket.status();
    const auto peer = GetPeerCredentials(socket->get());
    ASSERT_TRUE(peer.ok()) << peer.status();
    EXPECT_EQ(peer->uid, 0u) << path;
  }
}

// Control runs as batond's user, then as one of its own, and then as batond's again.
TEST_F(ControlUserTest, shouldGoOnWithTheRecordOfWhatOperatorsDid) {
  ASSERT_NO_FATAL_FAILURE(WriteConfig(""));
  const std::string logs = stage_.path() + "/logs";
  ASSERT_EQ(mkdir(logs.c_str(), 0711), 0);
  for (const std::string& directory : {stage_.state_dir(), logs}) {
    std::vector<uint64_t> expected;
    for (const bool own_user : {false, true, true, false}) {
      BatondProcess::Options options = Options();
      if (!own_user) options.arguments.resize(options.arguments.size() - 2);
      if (directory == logs) options.environment["LOGS_DIRECTORY"] = logs;
      BatondProcess batond(stage_, std::move(options));
      ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
      const auto client = Connect();
      ASSERT_NE(client, nullptr);
      EXPECT_TRUE(client->Ask(&Operator::Reload, {}).ok());
      expected.insert(expected.end(), 2, expected.size() / 2 + 1);
      std::vector<uint64_t> numbers;
      v1::WatchEventsRequest changes;
      changes.set_changes(true);
      EXPECT_TRUE(client
                      ->WatchEvents(changes,
                                    [&](const v1::Event& event) {
                                      numbers.push_back(event.change().number());
                                    })
                      .ok());
      EXPECT_EQ(numbers, expected) << batond.standard_error();
      const std::string file = directory + (own_user ? "/control/audit.log" : "/audit.log");
      struct stat status = {};
      ASSERT_EQ(lstat(file.c_str(), &status), 0) << batond.standard_error();
      EXPECT_EQ(status.st_uid, own_user ? user_.pw_uid : 0u);
      EXPECT_EQ(status.st_mode & 0777, 0600u);
      const auto report =
          VerifyAuditFiles(std::filesystem::canonical(AuditTrailPath(stage_.state_dir())), "");
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->records, expected.size());
      batond.Signal(SIGTERM);
      EXPECT_EQ(batond.Wait(), 0);
    }
  }
}

// The files of one authority, with a key for root alone.
void MakeEndpointFiles(const TestCertificates& certificates, const std::string& ca) {
  certificates.MakeAuthority(ca);
  certificates.Make(ca, ca + "-server", "baton", "DNS:baton.example");
  certificates.Make(ca, ca + "-carol", "carol");
  ASSERT_EQ(chmod(certificates.Key(ca + "-server").c_str(), 0600), 0);
}

// The endpoint in the configuration.
std::string EndpointWith(const TestCertificates& certificates, const std::string& ca) {
  return "operator_endpoint { address: \"127.0.0.1:0\" certificate_file: \"" +
         certificates.Certificate(ca + "-server") + "\" key_file: \"" +
         certificates.Key(ca + "-server") + "\" client_ca_file: \"" + certificates.Certificate(ca) +
         "\" viewers: \"carol\" }";
}

// Also others, which a reload names.
TEST_F(ControlUserTest, shouldBeHandedTheFilesOfTheOperatorEndpoint) {
  const TestCertificates certificates;
  for (const char* ca : {"ca", "other-ca"}) {
    ASSERT_NO_FATAL_FAILURE(MakeEndpointFiles(certificates, ca));
  }
  ASSERT_NO_FATAL_FAILURE(WriteConfig(EndpointWith(certificates, "ca")));
  BatondProcess batond(stage_, Options());
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  const std::string beginning = "operators over TLS are served at port ";
  size_t said = std::string::npos;
  ASSERT_TRUE(Eventually([&] {
    said = batond.standard_error().find(beginning);
    return said != std::string::npos;
  })) << batond.standard_error();
  const int port = std::atoi(batond.standard_error().c_str() + said + beginning.size());
  // Looks as carol, with a certificate of `ca`, which the server has to have, too.
  const auto look = [&](const std::string& ca) {
    const TlsTarget target = {"127.0.0.1:" + std::to_string(port), certificates.Certificate(ca),
                              certificates.Certificate(ca + "-carol"),
                              certificates.Key(ca + "-carol"), "baton.example"};
    const auto client = OperatorClient::Connect("", 20, target);
    return client.ok() && (*client)->Ask(&Operator::GetStatus, {}).ok();
  };
  EXPECT_TRUE(look("ca")) << batond.standard_error();
  EXPECT_FALSE(look("other-ca"));

  ASSERT_NO_FATAL_FAILURE(WriteConfig(EndpointWith(certificates, "other-ca")));
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  const auto reloaded = client->Ask(&Operator::Reload, {});
  ASSERT_TRUE(reloaded.ok()) << reloaded.status();
  EXPECT_EQ(reloaded->not_taken_size(), 0) << reloaded->ShortDebugString();
  EXPECT_TRUE(Eventually([&] { return look("other-ca"); })) << batond.standard_error();
  EXPECT_FALSE(look("ca"));
}

TEST_F(ControlUserTest, shouldBeAUserThatThereIs) {
  ASSERT_NO_FATAL_FAILURE(WriteConfig(""));
  BatondProcess batond(stage_, Options("nobody-of-that-name"));
  EXPECT_FALSE(batond.WaitUntilReady());
  EXPECT_EQ(batond.Wait(), 2);
  EXPECT_THAT(batond.standard_error(),
              HasSubstr("--control-user nobody-of-that-name: there is no such user"));
}

TEST_F(ControlUserTest, shouldRefuseAUserOfOthersThatThereIsNot) {
  ASSERT_NO_FATAL_FAILURE(WriteConfig(""));
  for (const char* option : {"--nic-user", "--broker-user"}) {
    BatondProcess::Options options = Options();
    options.arguments.insert(options.arguments.end(), {option, "nobody-of-that-name"});
    BatondProcess batond(stage_, std::move(options));
    EXPECT_EQ(batond.Wait(), 2);
    EXPECT_THAT(batond.standard_error(),
                HasSubstr(absl::StrCat(option, " nobody-of-that-name: there is no such user")));
  }
}

}  // namespace
}  // namespace baton
