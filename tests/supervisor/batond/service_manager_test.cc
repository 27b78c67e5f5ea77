// batond and its service manager: what it tells it, and what that keeps for the next batond.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "tests/supervisor/batond/batond_process.h"
#include "tests/supervisor/batond/fake_manager.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What a service manager gives its services, and listens at.
class NotifySocket {
 public:
  explicit NotifySocket(const std::string& path)
      : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const timeval patience = {kPatience.count(), 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  // Empty when none came.
  std::string Next() const {
    char text[512];
    const ssize_t length = recv(socket_.get(), text, sizeof(text), 0);
    return std::string(text, length > 0 ? static_cast<size_t>(length) : 0);
  }

 private:
  FileDescriptor socket_;
};

// 30 s each for keepers and control, and some for batond.
constexpr char kStarting[] = "EXTEND_TIMEOUT_USEC=65000000\nSTATUS=starting, services: ledger";

TEST(ServiceManagerTest, TellsSystemdAndItsChildrenDoNot) {
  const Stage stage;
  const std::string path = stage.path() + "/notify";
  const NotifySocket socket(path);
  BatondProcess batond(stage, WithEnvironment("NOTIFY_SOCKET", path));
  EXPECT_EQ(socket.Next(), kStarting);
  ASSERT_EQ(socket.Next(), "READY=1\nSTATUS=running, services: ledger");
  EXPECT_FALSE(HasInEnvironment(stage.lives("keeper")[0].pid, "NOTIFY_SOCKET"));
  EXPECT_TRUE(HasInEnvironment(stage.lives("keeper")[0].pid, "BATON_READY_FD"));
  batond.Signal(SIGTERM);
  EXPECT_EQ(socket.Next(), "STOPPING=1\nSTATUS=stopping");
  EXPECT_EQ(batond.Wait(), 0);
}

// The keeper, a fake one here, would fill and register 1 TiB.
TEST(ServiceManagerTest, TellsSystemdHowLongALargeArenaMayTake) {
  const Stage stage;
  const std::string path = stage.path() + "/notify";
  const NotifySocket socket(path);
  BatondProcess::Options options =
      WithArguments({"--dev", "--state-dir", stage.state_dir(), "--libexec", stage.libexec(),
                     "--buffer-bytes", std::to_string(uint64_t{1} << 40)});
  options.environment["NOTIFY_SOCKET"] = path;
  BatondProcess batond(stage, std::move(options));
  EXPECT_EQ(socket.Next(), "EXTEND_TIMEOUT_USEC=4161000000\nSTATUS=starting, services: ledger");
}

TEST(ServiceManagerTest, TellsSystemdWhichChildIsMissing) {
  const Stage stage;
  const std::string path = stage.path() + "/notify";
  const NotifySocket socket(path);
  BatondProcess batond(stage, WithEnvironment("NOTIFY_SOCKET", path));
  EXPECT_EQ(socket.Next(), kStarting);
  ASSERT_EQ(socket.Next(), "READY=1\nSTATUS=running, services: ledger");
  kill(stage.lives("keeper")[0].pid, SIGKILL);
  EXPECT_EQ(socket.Next(), "STATUS=degraded, being started again: driver of service ledger");
  EXPECT_EQ(socket.Next(), "STATUS=running, services: ledger");
}

// Between what else it tells, and after it.
TEST(ServiceManagerTest, ShowsSystemdThatItTurns) {
  const Stage stage;
  const std::string path = stage.path() + "/notify";
  const NotifySocket socket(path);
  BatondProcess::Options options = WithEnvironment("NOTIFY_SOCKET", path);
  options.environment["WATCHDOG_USEC"] = "20000";
  BatondProcess batond(stage, std::move(options));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_FALSE(HasInEnvironment(stage.lives("keeper")[0].pid, "WATCHDOG_USEC"));
  std::string told = socket.Next();
  while (!told.empty() && !told.starts_with("READY=1")) told = socket.Next();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(socket.Next(), "WATCHDOG=1");
}

TEST(ServiceManagerTest, ShowsNothingToAWatchdogThatIsAnothers) {
  const Stage stage;
  const std::string path = stage.path() + "/notify";
  const NotifySocket socket(path);
  BatondProcess::Options options = WithEnvironment("NOTIFY_SOCKET", path);
  options.environment["WATCHDOG_USEC"] = "20000";
  options.environment["WATCHDOG_PID"] = "1";
  BatondProcess batond(stage, std::move(options));
  EXPECT_EQ(socket.Next(), kStarting);
  ASSERT_EQ(socket.Next(), "READY=1\nSTATUS=running, services: ledger");
  batond.Signal(SIGTERM);
  EXPECT_EQ(socket.Next(), "STOPPING=1\nSTATUS=stopping");
}

TEST(ServiceManagerTest, TellsSystemdWhyItDoesNotStart) {
  const Stage stage;
  std::filesystem::remove(stage.libexec() + "/baton-driver");
  const std::string path = stage.path() + "/notify";
  const NotifySocket socket(path);
  BatondProcess batond(stage, WithEnvironment("NOTIFY_SOCKET", path));
  EXPECT_EQ(socket.Next(), kStarting);
  EXPECT_THAT(
      socket.Next(),
      testing::StartsWith("STOPPING=1\nSTATUS=giving up: driver of service ledger: cannot run "));
  EXPECT_EQ(batond.Wait(), 1);
}

// ---------------------------------------------------------------- services outlive it

class KeptServiceTest : public testing::Test {
 protected:
  BatondProcess::Options Options(const std::vector<std::string>& more = {"--keep-services"}) {
    BatondProcess::Options options =
        WithArguments({"--dev", "--state-dir", stage_.state_dir(), "--libexec", stage_.libexec()});
    options.arguments.insert(options.arguments.end(), more.begin(), more.end());
    options.environment["NOTIFY_SOCKET"] = manager_.path();
    options.given_back = manager_.Kept();
    return options;
  }

  const Stage stage_;
  FakeManager manager_{stage_.path() + "/notify"};
};

TEST_F(KeptServiceTest, LetsGoOfThePipeWhenServicesAreNotKept) {
  {
    BatondProcess batond(stage_, Options());
    ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
    EXPECT_EQ(manager_.Kept().size(), 2u);
  }
  kill(stage_.lives("keeper").back().pid, SIGKILL);
  BatondProcess batond(stage_, Options({}));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_TRUE(manager_.Kept().empty());
  EXPECT_FALSE(HasInEnvironment(stage_.lives("keeper").back().pid, "LISTEN_FDS"));
}

// It kept descriptors of services, too, and a list of them.
TEST_F(KeptServiceTest, LetsGoOfWhatElseTheReleaseBeforeKept) {
  for (const char* name : {"file.3", "manifest.4"}) {
    manager_.Add(name, FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)));
  }
  BatondProcess batond(stage_, Options());
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  std::set<std::string> names;
  for (const auto& [name, descriptor] : manager_.Kept()) names.insert(name);
  EXPECT_THAT(names, testing::ElementsAre("file.1", "file.2"));
}

// The manager's store was full.
TEST_F(KeptServiceTest, MakesAnotherPipeWhenAnEndIsMissing) {
  {
    BatondProcess batond(stage_, Options());
    ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  }
  kill(stage_.lives("keeper").back().pid, SIGKILL);
  BatondProcess::Options options = Options();
  std::erase_if(options.given_back, [](const auto& one) { return one.first == "file.2"; });
  BatondProcess batond(stage_, std::move(options));
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  EXPECT_EQ(manager_.Kept().size(), 2u);
  batond.Signal(SIGTERM);
  EXPECT_EQ(batond.Wait(), 0);
  EXPECT_FALSE(IsDead(stage_.lives("keeper").back().pid));
}

// Systemd restarts batond by telling it to stop.
TEST_F(KeptServiceTest, GoesOnWhileBatondIsRestarted) {
  for (int generation = 0; generation < 3; ++generation) {
    BatondProcess batond(stage_, Options());
    ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
    batond.Signal(SIGTERM);
    EXPECT_EQ(batond.Wait(), 0);
  }
  EXPECT_EQ(stage_.lives("keeper").size(), 1u);
  EXPECT_FALSE(IsDead(stage_.lives("keeper")[0].pid));
}

TEST_F(KeptServiceTest, EndsWhenTheManagerLetsGoOfWhatItKeeps) {
  BatondProcess batond(stage_, Options());
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  batond.Signal(SIGTERM);
  EXPECT_EQ(batond.Wait(), 0);
  const pid_t keeper = stage_.lives("keeper")[0].pid;
  EXPECT_FALSE(IsDead(keeper));
  manager_.LetGo();
  EXPECT_TRUE(Eventually([&] { return IsDead(keeper); }));
}

// A keeper that the former batond started without a service manager, or before it kept anything.
TEST_F(KeptServiceTest, IsTiedToTheManagerOfTheBatondThatTakesItIn) {
  {
    BatondProcess batond(stage_, Options({}));
    ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  }
  BatondProcess batond(stage_, Options());
  ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  batond.Signal(SIGTERM);
  EXPECT_EQ(batond.Wait(), 0);
  const pid_t keeper = stage_.lives("keeper")[0].pid;
  EXPECT_FALSE(IsDead(keeper));
  manager_.LetGo();
  EXPECT_TRUE(Eventually([&] { return IsDead(keeper); }));
}

}  // namespace
}  // namespace baton
