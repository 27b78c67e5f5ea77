// A client of control: how long it waits while somebody sets the clock, and `baton --address`, over
// TCP with a certificate.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/cli/client.h"
#include "tests/harness/stopped_clock.h"
#include "tests/supervisor/cli/cli_fixture.h"
#include "tests/supervisor/control/test_certificates.h"

namespace baton {
namespace {

using std::chrono::steady_clock;

constexpr double kTimeoutSeconds = 2;
constexpr int64_t kStepSeconds = 60;

class ClientClockTest : public testing::Test {
 protected:
  // A socket that a killed control has left: nobody listens.
  void SetUp() override {
    // Bazel's own directories have longer names than a socket may have.
    char directory[] = "/tmp/baton-clock-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    path_ = std::string(directory) + "/client_clock.sock";
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    ASSERT_LT(path_.size(), sizeof(address.sun_path));
    std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
    const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  void TearDown() override {
    std::filesystem::remove_all(std::filesystem::path(path_).parent_path());
  }

  // How long a client waits when the clock is set meanwhile.
  steady_clock::duration WaitWhileTheClockIsSet(int64_t seconds) {
    const auto begin = steady_clock::now();
    auto waiting = std::async(std::launch::async, [this] {
      return OperatorClient::Connect(path_, kTimeoutSeconds).status();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const harness::SetClock clock(seconds);
    EXPECT_EQ(waiting.get().code(), absl::StatusCode::kUnavailable);
    return steady_clock::now() - begin;
  }

  std::string path_;
};

TEST_F(ClientClockTest, shouldNotWaitLongerWhenTheClockIsSetBack) {
  EXPECT_LT(WaitWhileTheClockIsSet(-kStepSeconds), std::chrono::seconds(kStepSeconds / 2));
}

TEST_F(ClientClockTest, shouldNotGiveUpEarlyWhenTheClockIsSetForward) {
  EXPECT_GT(WaitWhileTheClockIsSet(kStepSeconds), std::chrono::milliseconds(1500));
}

using ::testing::HasSubstr;

class TlsTest : public CliFixture {
 protected:
  void SetUp() override {
    certificates_.MakeAuthority("ca");
    certificates_.Make("ca", "server", "baton", "IP:127.0.0.1,DNS:kv1.example");
    certificates_.Make("ca", "alice", "alice");
    certificates_.Make("ca", "carol", "carol");
    v1::OperatorEndpoint* endpoint = config_.mutable_operator_endpoint();
    endpoint->set_address("127.0.0.1:0");
    endpoint->set_certificate_file(certificates_.Certificate("server"));
    endpoint->set_key_file(certificates_.Key("server"));
    endpoint->set_client_ca_file(certificates_.Certificate("ca"));
    endpoint->add_operators("alice");
    endpoint->add_viewers("carol");
    CliFixture::SetUp();
  }

  std::string Address() const { return absl::StrCat("127.0.0.1:", control_->operator_port()); }

  CliResult RunAs(const std::string& name, const std::vector<std::string>& command) const {
    std::vector<std::string> words = {"--address",  Address(),
                                      "--tls-ca",   certificates_.Certificate("ca"),
                                      "--tls-cert", certificates_.Certificate(name),
                                      "--tls-key",  certificates_.Key(name)};
    words.insert(words.end(), command.begin(), command.end());
    return RunBare(words);
  }

  const TestCertificates certificates_;
};

TEST_F(TlsTest, shouldOperateWithACertificate) {
  const CliResult status = RunAs("alice", {"status"});
  EXPECT_EQ(status.code, kExitOk) << status.err;
  EXPECT_THAT(status.out, HasSubstr("kv "));
  const CliResult kill = RunAs("alice", {"worker", "kill", "kv", "2", "--yes"});
  EXPECT_EQ(kill.code, kExitOk) << kill.err;
  const CliResult named = RunAs("alice", {"--tls-server-name", "kv1.example", "status"});
  EXPECT_EQ(named.code, kExitOk) << named.err;
}

TEST_F(TlsTest, shouldTellAViewerWhatItMayNot) {
  EXPECT_EQ(RunAs("carol", {"service", "list"}).code, kExitOk);
  const CliResult kill = RunAs("carol", {"worker", "kill", "kv", "2", "--yes"});
  EXPECT_EQ(kill.code, kExitPermissionDenied);
  EXPECT_THAT(kill.err, HasSubstr("add that name to operators of operator_endpoint"));
}

TEST_F(TlsTest, shouldSayWhatIsInTheWay) {
  const CliResult other = RunAs("alice", {"--tls-server-name", "elsewhere.example", "status"});
  EXPECT_EQ(other.code, kExitUnreachable);
  EXPECT_THAT(other.err, HasSubstr("cannot reach Baton at " + Address()));
  const CliResult without = RunBare({"--address", Address(), "status"});
  EXPECT_EQ(without.code, kExitUsage);
  EXPECT_THAT(without.err, HasSubstr("--tls-"));
  const CliResult both = RunAs("alice", {"--socket", "/nowhere", "status"});
  EXPECT_EQ(both.code, kExitUsage);
  const CliResult nowhere = RunBare({"--address", Address(), "--tls-ca", "/nowhere/ca.crt",
                                     "--tls-cert", certificates_.Certificate("alice"), "--tls-key",
                                     certificates_.Key("alice"), "status"});
  EXPECT_EQ(nowhere.code, kExitUsage);
  EXPECT_THAT(nowhere.err, HasSubstr("--tls-ca /nowhere/ca.crt: No such file"));
}

TEST_F(TlsTest, shouldLookIntoNoArenaAndTakeNoRelativeProgram) {
  EXPECT_THAT(RunAs("alice", {"inspect", "kv"}).err, HasSubstr("on their own machine"));
  const CliResult upgrade = RunAs("alice", {"upgrade", "kv", "--exec", "kv-1.1", "--dry-run"});
  EXPECT_EQ(upgrade.code, kExitUsage);
  EXPECT_THAT(upgrade.err, HasSubstr("absolute path"));
  const CliResult there =
      RunAs("alice", {"upgrade", "kv", "--exec", "/nowhere/here/kv-1.1", "--dry-run"});
  EXPECT_EQ(there.code, kExitOk) << there.err;
}

TEST_F(TlsTest, shouldHandItsTraceOn) {
  const std::string trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  setenv("TRACEPARENT", trace.c_str(), 1);
  EXPECT_EQ(RunAs("alice", {"worker", "kill", "kv", "2", "--yes"}).code, kExitOk);
  setenv("TRACEPARENT", "00-none", 1);
  EXPECT_EQ(RunAs("alice", {"worker", "kill", "kv", "1", "--yes"}).code, kExitOk);
  unsetenv("TRACEPARENT");
  EXPECT_EQ(keeper_->CountRequests([&](const auto& request) {
    return request.kill_worker().worker_id() == 2 && request.trace_parent() == trace;
  }),
            1u);
  EXPECT_EQ(keeper_->CountRequests([](const auto& request) {
    return request.kill_worker().worker_id() == 1 && request.trace_parent().empty();
  }),
            1u);
}

}  // namespace
}  // namespace baton
