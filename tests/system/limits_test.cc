// A whole Baton refuses what is more than the machine's limits allow, and workers and operators of
// another uid whom the configuration does not name. Each refusal names the cause and the cure, and
// harms nothing that was there before.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/channel/message_channel.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/temp_directory.h"

namespace baton {
namespace {

using harness::Binaries;
using harness::ChildOptions;
using harness::ChildProcess;
using harness::Cluster;
using harness::ClusterOptions;
using harness::kTimeout;
using harness::PeerOptions;
using harness::TempDirectory;
using testing::AllOf;
using testing::HasSubstr;

// Runs a program to its end and returns its exit status, with its log in `*log`.
int RunToEnd(const std::string& program, std::vector<std::string> arguments, std::string* log) {
  auto directory = TempDirectory::Create();
  EXPECT_TRUE(directory.ok()) << directory.status();
  ChildOptions options;
  options.program = program;
  options.arguments = std::move(arguments);
  options.log_path = directory->File("log");
  auto child = ChildProcess::Start(options);
  EXPECT_TRUE(child.ok()) << child.status();
  const auto end = (*child)->WaitEnd(kTimeout);
  EXPECT_TRUE(end.ok()) << end.status();
  *log = (*child)->LogTail();
  return end.ok() && WIFEXITED(*end) ? WEXITSTATUS(*end) : -1;
}

std::string Program(const std::string& name) {
  const auto path = Binaries().Find(name);
  EXPECT_TRUE(path.ok()) << path.status();
  return path.ok() ? *path : "";
}

TEST(Limits, shouldRefuseAServiceThatTheMachineHasNoMemoryFor) {
  auto directory = TempDirectory::Create();
  ASSERT_TRUE(directory.ok());
  const std::string config = directory->File("config");
  FILE* file = fopen(config.c_str(), "w");
  ASSERT_NE(file, nullptr);
  fprintf(file,
          "state_dir: \"%s\"\n"
          "services { name: \"big\" device { soft {} } buffer_bytes: 1099511627776 }\n",
          directory->File("state").c_str());
  fclose(file);
  const std::string driver = Program("baton-driver");
  std::string log;
  EXPECT_NE(
      RunToEnd(Program("batond"),
               {"--strict", "--config", config, "--libexec", driver.substr(0, driver.rfind('/'))},
               &log),
      0);
  EXPECT_THAT(log, AllOf(HasSubstr("MiB are available"), HasSubstr("lower buffer_bytes")));
}

TEST(Limits, shouldTellAWorkerThatHasTooFewDescriptors) {
  auto cluster = Cluster::Start(ClusterOptions());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  // Whatever it is that the worker finds no descriptor for, down to what gRPC needs: it tells, and
  // neither the library nor the keeper ends it.
  for (const int limit : {6, 7, 8, 9, 10, 12, 20}) {
    SCOPED_TRACE(limit);
    std::string log;
    EXPECT_EQ(RunToEnd("/bin/sh",
                       {"-c",
                        absl::StrCat("ulimit -n ", limit,
                                     "; exec \"$0\" --socket \"$1\" --service ledger"
                                     " --listen 127.0.0.1:0"),
                        Program("ledger-v1"), (*cluster)->SocketPath()},
                       &log),
              1);
    EXPECT_THAT(log, HasSubstr("RLIMIT_NOFILE"));
  }
  auto worker = (*cluster)->StartLedger(1);
  EXPECT_TRUE(worker.ok()) << worker.status();
}

TEST(Limits, shouldRefuseConnectionsBeyondTheServicesAndServeTheOthers) {
  ClusterOptions options;
  options.max_connections = 8;
  auto cluster = Cluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  auto worker = (*cluster)->StartLedger(1);
  ASSERT_TRUE(worker.ok()) << worker.status();
  PeerOptions eight;
  eight.connections = 8;
  eight.rate = 1000;
  auto peer = (*cluster)->StartPeer(eight);
  ASSERT_TRUE(peer.ok()) << peer.status();
  PeerOptions one_more;
  one_more.rate = 1000;
  EXPECT_FALSE((*cluster)->StartPeer(one_more).ok());
  ASSERT_TRUE((*peer)->Settle().ok());
  harness::ExpectNothingLost(**peer);
}

TEST(Limits, shouldRefuseToStartWhereAnotherBatondListens) {
  auto cluster = Cluster::Start(ClusterOptions());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::string driver = Program("baton-driver");
  std::string log;
  EXPECT_NE(RunToEnd(Program("batond"),
                     {"--dev", "--state-dir", (*cluster)->directory() + "/state", "--libexec",
                      driver.substr(0, driver.rfind('/'))},
                     &log),
            0);
  EXPECT_THAT(log, HasSubstr(absl::StrCat((*cluster)->batond().pid())));
  EXPECT_TRUE((*cluster)->GetService().ok());
}

TEST(Limits, shouldSayThatAPortIsTaken) {
  auto cluster = Cluster::Start(ClusterOptions());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  auto worker = (*cluster)->StartLedger(1);
  ASSERT_TRUE(worker.ok()) << worker.status();
  auto other = Cluster::Start(ClusterOptions());
  ASSERT_TRUE(other.ok()) << other.status();
  std::string log;
  EXPECT_NE(RunToEnd(Program("ledger-v1"),
                     {"--socket", (*other)->SocketPath(), "--service", "ledger", "--listen",
                      absl::StrCat("127.0.0.1:", (*cluster)->port())},
                     &log),
            0);
  EXPECT_THAT(log, AllOf(HasSubstr(absl::StrCat((*cluster)->port())), HasSubstr("is taken")));
}

constexpr int kOtherUid = 65534;

class PermissionsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to run programs as another user";
    auto directory = harness::TempDirectory::Create();
    ASSERT_TRUE(directory.ok()) << directory.status();
    directory_.emplace(*std::move(directory));
    // What the other user runs has to be where that user may go.
    ASSERT_EQ(chmod(directory_->path().c_str(), 0755), 0);
    for (const char* name : {"ledger-v1", "baton"}) {
      const auto path = Binaries().Find(name);
      ASSERT_TRUE(path.ok()) << path.status();
      std::filesystem::copy_file(std::filesystem::canonical(*path), directory_->File(name));
      ASSERT_EQ(chmod(directory_->File(name).c_str(), 0755), 0);
    }
  }

  // `permissions` of the whole configuration and of its service.
  void WriteConfig(const std::string& operators, const std::string& workers) const {
    std::ofstream(directory_->File("config"))
        << "state_dir: \"" << directory_->File("state") << "\"\n"
        << operators << "\nservices { name: \"ledger\" device { soft {} } " << workers << " }\n";
  }
  void StartBatond(const std::string& operators, const std::string& workers) {
    WriteConfig(operators, workers);
    const std::string libexec = directory_->File("libexec");
    std::filesystem::create_directory(libexec);
    for (const char* name : {"baton-driver", "baton-keeper", "baton-control"}) {
      const auto path = Binaries().Find(name);
      ASSERT_TRUE(path.ok()) << path.status();
      const std::string link = absl::StrCat(libexec, "/", name);
      if (!std::filesystem::exists(link)) std::filesystem::create_symlink(*path, link);
    }
    ChildOptions options;
    const auto program = Binaries().Find("batond");
    ASSERT_TRUE(program.ok()) << program.status();
    options.program = *program;
    options.arguments = {"--config", directory_->File("config"), "--libexec", libexec};
    options.log_path = directory_->File("batond.log");
    auto started = ChildProcess::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    batond_ = *std::move(started);
    ASSERT_TRUE(batond_->ReadLineWith("batond ready", kTimeout).ok()) << batond_->LogTail();
  }

  std::unique_ptr<ChildProcess> StartAsOther(const std::string& name,
                                             const std::vector<std::string>& arguments) {
    ChildOptions options;
    options.program = "/usr/bin/setpriv";
    options.arguments = {absl::StrCat("--reuid=", kOtherUid), "--clear-groups",
                         directory_->File(name)};
    options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
    options.log_path = directory_->File(name + ".log");
    auto started = ChildProcess::Start(options);
    EXPECT_TRUE(started.ok()) << started.status();
    return started.ok() ? *std::move(started) : nullptr;
  }

  std::unique_ptr<ChildProcess> StartLedgerAsOther() {
    return StartAsOther("ledger-v1", {"--socket", directory_->File("state/ledger.sock"), "--listen",
                                      "127.0.0.1:0"});
  }

  static int ExitStatus(ChildProcess& process) {
    const auto end = process.WaitEnd(kTimeout);
    EXPECT_TRUE(end.ok()) << end.status();
    return end.ok() && WIFEXITED(*end) ? WEXITSTATUS(*end) : -1;
  }

  std::optional<harness::TempDirectory> directory_;
  std::unique_ptr<ChildProcess> batond_;
};

TEST_F(PermissionsTest, shouldServeAWorkerOfAUserThatTheServiceNames) {
  ASSERT_NO_FATAL_FAILURE(StartBatond("", absl::StrCat("worker_uids: ", kOtherUid)));
  const auto worker = StartLedgerAsOther();
  ASSERT_NE(worker, nullptr);
  EXPECT_TRUE(worker->ReadLineWith("ledger ready", kTimeout).ok()) << worker->LogTail();
}

TEST_F(PermissionsTest, shouldRefuseAWorkerOfAnotherUser) {
  // Another service's user can reach the directory, and still not this service.
  ASSERT_NO_FATAL_FAILURE(StartBatond("", "worker_uids: 12345"));
  const auto worker = StartLedgerAsOther();
  ASSERT_NE(worker, nullptr);
  EXPECT_NE(ExitStatus(*worker), 0);
  EXPECT_THAT(worker->LogTail(), HasSubstr("uid 65534 may not attach to service ledger"));
  EXPECT_THAT(worker->LogTail(), HasSubstr("worker_uids"));
}

TEST_F(PermissionsTest, shouldAnswerAnOperatorThatTheConfigurationNames) {
  ASSERT_NO_FATAL_FAILURE(StartBatond(absl::StrCat("operator_uids: ", kOtherUid), ""));
  const auto status =
      StartAsOther("baton", {"--state-dir", directory_->File("state"), "-o", "json", "status"});
  ASSERT_NE(status, nullptr);
  EXPECT_EQ(ExitStatus(*status), 0) << status->LogTail();
}

TEST_F(PermissionsTest, shouldRefuseAnotherOperator) {
  ASSERT_NO_FATAL_FAILURE(StartBatond("operator_uids: 12345", ""));
  const auto status = StartAsOther("baton", {"--state-dir", directory_->File("state"), "status"});
  ASSERT_NE(status, nullptr);
  EXPECT_EQ(ExitStatus(*status), 5);  // as documented: not permitted
  EXPECT_THAT(status->LogTail(), HasSubstr("operator_uids"));
}

TEST_F(PermissionsTest, shouldLetAViewerLookAndChangeNothing) {
  ASSERT_NO_FATAL_FAILURE(StartBatond(absl::StrCat("viewer_uids: ", kOtherUid), ""));
  const auto status = StartAsOther("baton", {"--state-dir", directory_->File("state"), "status"});
  ASSERT_NE(status, nullptr);
  EXPECT_EQ(ExitStatus(*status), 0) << status->LogTail();
  const auto kill = StartAsOther("baton", {"--state-dir", directory_->File("state"), "worker",
                                           "kill", "ledger", "1", "--yes"});
  ASSERT_NE(kill, nullptr);
  EXPECT_EQ(ExitStatus(*kill), 5);
  EXPECT_THAT(kill->LogTail(), HasSubstr("uid 65534 may look and change nothing"));
  EXPECT_THAT(kill->LogTail(), HasSubstr("operator_uids"));
}

// A worker of one of these users serves a peer meanwhile.
TEST_F(PermissionsTest, shouldGoByTheUsersThatAReloadNames) {
  const std::string other = absl::StrCat(kOtherUid), state = directory_->File("state");
  const auto reload = [&](const std::string& operators, const std::string& workers) {
    WriteConfig(operators, workers);
    std::string log;
    ASSERT_EQ(RunToEnd(Program("baton"), {"--state-dir", state, "reload"}, &log), 0) << log;
  };
  const auto look = [&] {
    const auto status = StartAsOther("baton", {"--state-dir", state, "status"});
    return status == nullptr ? -1 : ExitStatus(*status);
  };
  ASSERT_NO_FATAL_FAILURE(StartBatond("viewer_uids: 12345", "worker_uids: 12345"));
  EXPECT_EQ(look(), 5);
  const auto refused = StartLedgerAsOther();
  ASSERT_NE(refused, nullptr);
  EXPECT_NE(ExitStatus(*refused), 0);

  ASSERT_NO_FATAL_FAILURE(reload("viewer_uids: " + other, "worker_uids: " + other));
  EXPECT_EQ(look(), 0);
  const auto worker = StartLedgerAsOther();
  ASSERT_NE(worker, nullptr);
  const auto line = worker->ReadLineWith("ledger ready", kTimeout);
  ASSERT_TRUE(line.ok()) << line.status() << worker->LogTail();
  const size_t said = line->find(" port=");
  ASSERT_NE(said, std::string::npos) << *line;
  PeerOptions options;
  options.program = Program("baton-peer");
  options.log_path = directory_->File("peer.log");
  options.fabric = ClusterOptions().fabric;
  options.port = static_cast<uint16_t>(std::atoi(line->c_str() + said + 6));
  const auto peer = harness::PeerProcess::Start(options);
  ASSERT_TRUE(peer.ok()) << peer.status();

  ASSERT_NO_FATAL_FAILURE(reload("viewer_uids: 12345", "worker_uids: " + other));
  EXPECT_EQ(look(), 5);
  ASSERT_TRUE((*peer)->Settle().ok());
  harness::ExpectNothingLost(**peer);
}

TEST_F(PermissionsTest, shouldMakeTheStateDirectoryPassableAndNoMore) {
  for (const char* others : {"viewer_gids: 12345", "operator_uids: 12345"}) {
    ASSERT_NO_FATAL_FAILURE(StartBatond(others, ""));
    struct stat directory = {};
    ASSERT_EQ(stat(directory_->File("state").c_str(), &directory), 0);
    EXPECT_EQ(directory.st_mode & 07777, 0711u) << others;
    ASSERT_TRUE(batond_->Terminate(kTimeout).ok());
    std::filesystem::remove_all(directory_->File("state"));
  }
  ASSERT_NO_FATAL_FAILURE(StartBatond("", "worker_uids: 12345"));
  struct stat directory = {};
  ASSERT_EQ(stat(directory_->File("state").c_str(), &directory), 0);
  EXPECT_EQ(directory.st_mode & 07777, 0711u);
}

TEST_F(PermissionsTest, shouldSayWhoMayPassWhereTheStateDirectoryIsClosed) {
  ASSERT_NO_FATAL_FAILURE(StartBatond("", ""));
  ASSERT_EQ(chmod(directory_->File("state").c_str(), 0700), 0);
  const auto status = StartAsOther("baton", {"--state-dir", directory_->File("state"), "status"});
  ASSERT_NE(status, nullptr);
  EXPECT_EQ(ExitStatus(*status), 5);
  EXPECT_THAT(status->LogTail(),
              HasSubstr(absl::StrCat("uid ", kOtherUid, " may not pass: run as ", "root, as uid ",
                                     geteuid(), ", who has ", directory_->File("state"))));
}

}  // namespace
}  // namespace baton
