// How long a client waits for control while somebody sets the clock.
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

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/cli/client.h"
#include "tests/harness/stopped_clock.h"

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

}  // namespace
}  // namespace baton
