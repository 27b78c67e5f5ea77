// Limits of the machine: each ends in an error that names the cause and the cure, and harms nothing
// that was there before.
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/channel/message_channel.h"
#include "tests/harness/cluster.h"

namespace baton {
namespace {

using harness::Binaries;
using harness::ChildOptions;
using harness::ChildProcess;
using harness::Cluster;
using harness::ClusterOptions;
using harness::PeerOptions;
using harness::TempDirectory;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::chrono::seconds kTimeout{20};

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
  const auto result = (*peer)->Stop();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->Flag("ok")) << result->text();
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

}  // namespace
}  // namespace baton
