// `baton inspect` and `baton snapshot` on a Baton under load, on one that stands still, and on what
// dead processes have left.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "lib/base/check.h"
#include "lib/base/file_descriptor.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/v1/inspect.pb.h"
#include "tests/harness/baton_command.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/file_content.h"
#include "tests/harness/temp_directory.h"
#include "tests/harness/wait_until.h"

namespace baton {
namespace {

using harness::Cluster;
using harness::ClusterOptions;
using harness::CommandResult;
using harness::PeerOptions;
using harness::ReadFile;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::vector<std::string> kEverything = {"--queues", "--work-requests", "--state"};

// Whether a letter of /proc/PID/task/*/stat says of each thread that it is stopped.
bool IsStopped(int pid) {
  std::error_code error;
  const std::string tasks = absl::StrCat("/proc/", pid, "/task");
  for (const auto& task : std::filesystem::directory_iterator(tasks, error)) {
    const std::string stat = ReadFile(task.path() / "stat");
    const size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos || stat.substr(name_end + 2, 1) != "T") return false;
  }
  return !error;
}

class InspectTest : public harness::ClusterFixture {
 protected:
  void SetUp() override {
    decoder_ = Decoder();
    ASSERT_NE(decoder_, "");
    ClusterOptions options;
    options.shards = 2;
    // Nobody is killed for standing still.
    options.batond_arguments = {"--state-decoder", decoder_, "--hang-timeout-ms", "600000"};
    ASSERT_OK_AND_ASSIGN(cluster_, Cluster::Start(options));
    ASSERT_OK_AND_ASSIGN(worker_, cluster_->StartLedger(1));
    PeerOptions load;
    load.connections = 16;
    load.rate = 4000;
    ASSERT_OK_AND_ASSIGN(peer_, cluster_->StartPeer(load));
    ASSERT_TRUE(peer_->Settle().ok());
    const auto status = cluster_->operators().GetStatus();
    ASSERT_TRUE(status.ok()) << status.status();
    driver_ = status->services(0).driver_pid();
    control_ = status->control_pid();
  }
  void TearDown() override {
    for (const int pid : stopped_) kill(pid, SIGCONT);
    ClusterFixture::TearDown();
  }

  // Returns the decoder that the service is configured with.
  virtual std::string Decoder() const {
    const auto decoder = harness::Binaries().Find("ledger-state");
    EXPECT_TRUE(decoder.ok()) << decoder.status();
    return decoder.ok() ? std::filesystem::absolute(*decoder).string() : "";
  }

  CommandResult Baton(const std::vector<std::string>& arguments) {
    return harness::RunBaton(*cluster_, arguments);
  }
  CommandResult Look(std::vector<std::string> more,
                     const std::vector<std::string>& parts = kEverything) {
    std::vector<std::string> arguments = {"inspect", "ledger"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.insert(arguments.end(), parts.begin(), parts.end());
    return Baton(arguments);
  }
  v1::Inspection Parsed(const CommandResult& output) {
    v1::Inspection inspection;
    EXPECT_EQ(output.status, 0) << output.err;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(output.out, &inspection).ok())
        << output.out;
    return inspection;
  }

  // The memories of the driver, byte by byte.
  std::map<std::string, std::string> Arena() const {
    std::map<std::string, std::string> memories;
    for (const auto& entry : std::filesystem::directory_iterator(Fds())) {
      std::error_code error;
      const std::string link = std::filesystem::read_symlink(entry.path(), error);
      if (link.find("/memfd:baton-") == std::string::npos) continue;
      memories[link] = ReadFile(entry.path());
    }
    return memories;
  }
  std::string Fds() const { return absl::StrCat("/proc/", driver_, "/fd"); }

  void Stop(int pid) {
    stopped_.push_back(pid);
    ASSERT_EQ(kill(pid, SIGSTOP), 0);
    ASSERT_TRUE(harness::WaitUntil("a process to stop", [&] { return IsStopped(pid); }).ok());
  }
  void Continue() {
    for (const int pid : stopped_) ASSERT_EQ(kill(pid, SIGCONT), 0);
    stopped_.clear();
  }
  void ExpectNothingLost() {
    ASSERT_TRUE(peer_->Settle().ok());
    harness::ExpectNothingLost(*peer_);
  }

  std::unique_ptr<harness::LedgerWorker> worker_;
  std::unique_ptr<harness::PeerProcess> peer_;
  std::string decoder_;
  int driver_ = 0, control_ = 0;
  std::vector<int> stopped_;
};

TEST_F(InspectTest, shouldShowAServiceUnderLoad) {
  constexpr int kLooks = 5;  // each starts a decoder for each connection
  uint64_t requests = 0;
  for (int i = 0; i < kLooks; ++i) {
    const v1::Inspection arena = Parsed(Look({"-o", "json"}));
    EXPECT_EQ(arena.source().pid(), driver_);
    EXPECT_EQ(arena.totals().shards_owned(), 2u);
    ASSERT_EQ(arena.connections_size(), 16);
    EXPECT_THAT(arena.invalid(), IsEmpty());
    for (const v1::InspectedShard& shard : arena.shards()) {
      EXPECT_THAT(shard.invalid(), IsEmpty());
      EXPECT_EQ(shard.owner_worker_id(), worker_->id);
    }
    for (const v1::InspectedConnection& one : arena.connections()) {
      EXPECT_THAT(one.invalid(), IsEmpty()) << one.DebugString();
      EXPECT_EQ(one.state(), "established");
      if (!one.application_state().changing()) {
        EXPECT_THAT(one.application_state().decoded(), HasSubstr(" requests, total "))
            << one.application_state().decoder_error();
      }
      for (const v1::InspectedWorkRequest& request : one.work_requests()) {
        EXPECT_THAT(request.invalid(), IsEmpty()) << request.DebugString();
        ++requests;
      }
    }
  }
  EXPECT_GT(requests, 16u * kLooks);  // the receives that the ledger keeps posted
  const CommandResult people = Look({});
  EXPECT_EQ(people.status, 0);
  EXPECT_EQ(people.err, "");
  EXPECT_THAT(people.out, Not(HasSubstr("nvalid")));
  EXPECT_THAT(people.out, HasSubstr("\nState of connection 15:\n"));
  ExpectNothingLost();
}

TEST_F(InspectTest, shouldNotChangeAByteOfAnArenaThatStandsStill) {
  Stop(driver_);
  Stop(worker_->process->pid());
  Stop(harness::NicOf(driver_));  // it places what peers send
  const auto before = Arena();
  ASSERT_EQ(before.size(), 4u);
  const std::vector<std::string> decoder = {"--decoder", decoder_};
  const std::string live = Look(decoder).out;
  EXPECT_THAT(live, HasSubstr("\nState of connection 0:\n"));
  EXPECT_THAT(live, Not(HasSubstr("changing")));
  EXPECT_EQ(Look({"--shard", "1"}, {}).status, 0);
  const std::string file = cluster_->directory() + "/ledger.snapshot";
  const CommandResult saved = Baton({"snapshot", "ledger", file, "--buffers"});
  EXPECT_EQ(saved.status, 0) << saved.err;
  const auto after = Arena();
  ASSERT_EQ(after.size(), 4u);
  for (const auto& [name, bytes] : before) EXPECT_TRUE(after.at(name) == bytes) << name;

  // The file says the same, but for where it is from and when that was.
  const CommandResult offline = Look({"--offline", file, "--decoder", decoder_});
  EXPECT_EQ(offline.status, 0) << offline.err;
  const auto from = [](const std::string& text, const char* heading) {
    return text.substr(std::min(text.find(heading), text.size()));
  };
  EXPECT_THAT(offline.out, HasSubstr(absl::StrCat("Arena of:      ", file, ", saved ")));
  EXPECT_EQ(from(offline.out, "\nShards:\n"), from(live, "\nShards:\n"));
  Continue();
  ExpectNothingLost();
}

TEST_F(InspectTest, shouldNeedNoControl) {
  Stop(cluster_->batond().pid());  // or there would be another one
  ASSERT_EQ(kill(control_, SIGKILL), 0);
  CommandResult output = Look({}, {"--work-requests"});
  EXPECT_EQ(output.status, 0);
  EXPECT_EQ(output.err, "");
  EXPECT_THAT(output.out, HasSubstr("\nOutstanding work requests:\n"));
  output = Look({"--connection", "0"}, {"--state"});
  EXPECT_EQ(output.status, 0);
  // It is the keeper that says by which program.
  EXPECT_EQ(output.err, "");
  EXPECT_THAT(output.out, HasSubstr("State of connection 0:\n  version 1, 32 bytes:\n    client "));
  Continue();
  ExpectNothingLost();
}

// A process of user 65534 in the place of control: the socket's file is root's.
class OtherUsersRelay {
 public:
  explicit OtherUsersRelay(const std::string& path) {
    int ready[2];
    BATON_CHECK(pipe(ready) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      // An operator's connection, made as root.
      const auto server = ConnectUnix(path);
      unlink(path.c_str());
      const FileDescriptor listening(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_un address = {};
      address.sun_family = AF_UNIX;
      path.copy(address.sun_path, sizeof(address.sun_path) - 1);
      BATON_CHECK(server.ok() && bind(listening.get(), reinterpret_cast<const sockaddr*>(&address),
                                      sizeof(address)) == 0);
      // The kernel tells clients who has called listen.
      BATON_CHECK(setgid(65534) == 0 && setuid(65534) == 0 && listen(listening.get(), 1) == 0);
      close(ready[1]);
      const FileDescriptor client(accept(listening.get(), nullptr, nullptr));
      Relay(client.get(), server->get());
      _exit(0);
    }
    close(ready[1]);
    char end;
    BATON_CHECK(read(ready[0], &end, 1) == 0);  // it listens
    close(ready[0]);
  }
  ~OtherUsersRelay() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  static void Relay(int client, int server) {
    for (;;) {
      pollfd ends[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
      if (poll(ends, 2, -1) < 0) return;
      for (int i = 0; i < 2; ++i) {
        if (ends[i].revents == 0) continue;
        char bytes[4096];
        const ssize_t got = read(ends[i].fd, bytes, sizeof(bytes));
        if (got <= 0 || write(ends[1 - i].fd, bytes, static_cast<size_t>(got)) != got) return;
      }
    }
  }

  pid_t pid_;
};

// A decoder runs with the rights of the user who calls `baton inspect`. So a user who chooses the
// decoder could run any program as that user.
class TellingDecoderTest : public InspectTest {
 protected:
  std::string Decoder() const override {
    std::string program = directory_.File("decoder");
    std::ofstream(program) << "#!/bin/sh\ntouch " << Mark() << "\n";
    std::filesystem::permissions(program, std::filesystem::perms(0755));
    return program;
  }
  std::string Mark() const { return directory_.File("was-run"); }
  bool WasRun() const { return std::filesystem::remove(Mark()); }

  const harness::TempDirectory directory_ = harness::TempDirectory::Create().value();
};

TEST_F(TellingDecoderTest, shouldRunForNoFileAndForNoOtherUsersSocket) {
  EXPECT_EQ(Look({}).status, 0);
  EXPECT_TRUE(WasRun());
  const std::string file = cluster_->directory() + "/ledger.snapshot";
  ASSERT_EQ(Baton({"snapshot", "ledger", file, "--buffers"}).status, 0);
  const CommandResult offline = Look({"--offline", file});
  EXPECT_EQ(offline.status, 0) << offline.err;
  EXPECT_THAT(offline.out, HasSubstr("State of connection 0:"));
  EXPECT_FALSE(WasRun());
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const OtherUsersRelay relay(cluster_->directory() + "/state/ledger.keeper.sock");
  const CommandResult live = Look({});
  EXPECT_EQ(live.status, 0) << live.err;
  EXPECT_THAT(live.out + live.err, HasSubstr("is configured by user 65534 and not run for you"));
  EXPECT_FALSE(WasRun());
}

// Control hears the network, and might be somebody else's by now. It is not asked.
TEST_F(TellingDecoderTest, shouldNotGoByWhatControlSays) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const OtherUsersRelay relay(cluster_->OperatorSocketPath());
  const CommandResult live = Look({});
  EXPECT_EQ(live.status, 0) << live.err;
  EXPECT_TRUE(WasRun()) << live.out << live.err;
}

}  // namespace
}  // namespace baton
