// batond and its service manager: what it tells it, and what that keeps for the next batond.
#include <fcntl.h>
#include <linux/kcmp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/check.h"
#include "lib/base/file_descriptor.h"
#include "tests/supervisor/batond/batond_process.h"

namespace baton {

// A service manager's end of NOTIFY_SOCKET, as far as it keeps descriptors (systemd 252's
// service_add_fd_store): no file twice, up to a limit, given back in any order.
class FakeManager {
 public:
  using Named = std::pair<std::string, FileDescriptor>;

  // Listens at `path`, with a thread of its own. Keeps at most `most`.
  explicit FakeManager(const std::string& path, size_t most = 1000);
  ~FakeManager();
  FakeManager(const FakeManager&) = delete;
  FakeManager& operator=(const FakeManager&) = delete;

  const std::string& path() const { return path_; }
  // Keeps `descriptor`, too.
  void Add(const std::string& name, FileDescriptor descriptor);
  // Copies of all that is kept, the latest first, when everything that was sent before has been
  // heeded.
  std::vector<Named> Kept();
  // Closes all that is kept, as when batond was stopped for good.
  void LetGo();
  // What else was told, likewise: "STATUS=..."
  std::vector<std::string> Told();

 private:
  void Serve();
  void Heed(const std::string& message, FileDescriptor descriptor);
  void Keep(const std::string& name, FileDescriptor descriptor);
  void CatchUp();

  const std::string path_;
  const size_t most_;
  FileDescriptor socket_;
  std::mutex mutex_;
  std::condition_variable caught_up_;
  std::vector<Named> kept_;
  std::vector<std::string> told_;
  int syncs_ = 0;
  std::thread thread_;
};

namespace {

constexpr char kSync[] = "SYNC";
constexpr char kEnd[] = "END";

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

void SendTo(const std::string& path, const std::string& text) {
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = AddressOf(path);
  BATON_CHECK(sendto(socket.get(), text.data(), text.size(), 0,
                     reinterpret_cast<const sockaddr*>(&address), sizeof(address)) > 0);
}

// The value of KEY= in a line of its own; empty: there is none.
std::string ValueOf(const std::string& message, const std::string& key) {
  const std::string lines = "\n" + message + "\n";
  const size_t start = lines.find("\n" + key + "=");
  if (start == std::string::npos) return "";
  const size_t value = start + key.size() + 2;
  return lines.substr(value, lines.find('\n', value) - value);
}

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

class ServiceManagerTest : public testing::Test {
 protected:
  const Stage stage_;
  const std::string path_ = stage_.path() + "/notify";
  const NotifySocket socket_{path_};
};

TEST_F(ServiceManagerTest, TellsSystemdAndItsChildrenDoNot) {
  BatondProcess batond(stage_, WithEnvironment("NOTIFY_SOCKET", path_));
  EXPECT_EQ(socket_.Next(), kStarting);
  ASSERT_EQ(socket_.Next(), "READY=1\nSTATUS=running, services: ledger");
  EXPECT_FALSE(HasInEnvironment(stage_.lives("keeper")[0].pid, "NOTIFY_SOCKET"));
  EXPECT_TRUE(HasInEnvironment(stage_.lives("keeper")[0].pid, "BATON_READY_FD"));
  batond.Signal(SIGTERM);
  EXPECT_EQ(socket_.Next(), "STOPPING=1\nSTATUS=stopping");
  EXPECT_EQ(batond.Wait(), 0);
}

// The keeper, a fake one here, would fill and register 1 TiB.
TEST_F(ServiceManagerTest, TellsSystemdHowLongALargeArenaMayTake) {
  BatondProcess::Options options =
      WithArguments({"--dev", "--state-dir", stage_.state_dir(), "--libexec", stage_.libexec(),
                     "--buffer-bytes", std::to_string(uint64_t{1} << 40)});
  options.environment["NOTIFY_SOCKET"] = path_;
  BatondProcess batond(stage_, std::move(options));
  EXPECT_EQ(socket_.Next(), "EXTEND_TIMEOUT_USEC=4161000000\nSTATUS=starting, services: ledger");
}

TEST_F(ServiceManagerTest, TellsSystemdWhichChildIsMissing) {
  BatondProcess batond(stage_, WithEnvironment("NOTIFY_SOCKET", path_));
  EXPECT_EQ(socket_.Next(), kStarting);
  ASSERT_EQ(socket_.Next(), "READY=1\nSTATUS=running, services: ledger");
  kill(stage_.lives("keeper")[0].pid, SIGKILL);
  EXPECT_EQ(socket_.Next(), "STATUS=degraded, being started again: driver of service ledger");
  EXPECT_EQ(socket_.Next(), "STATUS=running, services: ledger");
}

// Between what else it tells, and after it.
TEST_F(ServiceManagerTest, ShowsSystemdThatItTurns) {
  BatondProcess::Options options = WithEnvironment("NOTIFY_SOCKET", path_);
  options.environment["WATCHDOG_USEC"] = "20000";
  BatondProcess batond(stage_, std::move(options));
  // Read all the time: batond waits while the socket is full.
  std::string told = socket_.Next();
  while (!told.empty() && !told.starts_with("READY=1")) told = socket_.Next();
  ASSERT_FALSE(told.empty()) << batond.standard_error();
  EXPECT_FALSE(HasInEnvironment(stage_.lives("keeper")[0].pid, "WATCHDOG_USEC"));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(socket_.Next(), "WATCHDOG=1");
}

TEST_F(ServiceManagerTest, ShowsNothingToAWatchdogThatIsAnothers) {
  BatondProcess::Options options = WithEnvironment("NOTIFY_SOCKET", path_);
  options.environment["WATCHDOG_USEC"] = "20000";
  options.environment["WATCHDOG_PID"] = "1";
  BatondProcess batond(stage_, std::move(options));
  EXPECT_EQ(socket_.Next(), kStarting);
  ASSERT_EQ(socket_.Next(), "READY=1\nSTATUS=running, services: ledger");
  batond.Signal(SIGTERM);
  EXPECT_EQ(socket_.Next(), "STOPPING=1\nSTATUS=stopping");
}

TEST_F(ServiceManagerTest, TellsSystemdWhyItDoesNotStart) {
  std::filesystem::remove(stage_.libexec() + "/baton-driver");
  BatondProcess batond(stage_, WithEnvironment("NOTIFY_SOCKET", path_));
  EXPECT_EQ(socket_.Next(), kStarting);
  EXPECT_THAT(
      socket_.Next(),
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
  // A batond becomes ready, and is told to stop.
  void ServeOnce(BatondProcess::Options options) {
    BatondProcess batond(stage_, std::move(options));
    ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
    batond.Signal(SIGTERM);
    EXPECT_EQ(batond.Wait(), 0);
  }
  // The child lives as long as the manager keeps what it was given.
  void ExpectEndWhenTheManagerLetsGo(pid_t child) {
    EXPECT_FALSE(IsDead(child));
    manager_.LetGo();
    EXPECT_TRUE(Eventually([&] { return IsDead(child); }));
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
    ASSERT_NO_FATAL_FAILURE(ServeOnce(Options()));
  }
  EXPECT_EQ(stage_.lives("keeper").size(), 1u);
  EXPECT_FALSE(IsDead(stage_.lives("keeper")[0].pid));
}

TEST_F(KeptServiceTest, KeepsControlUntilTheManagerLetsGoOfWhatItKeeps) {
  for (int generation = 0; generation < 3; ++generation) {
    BatondProcess::Options options = Options();
    options.environment["FAKE_CONTROL"] = "outlives";
    ASSERT_NO_FATAL_FAILURE(ServeOnce(std::move(options)));
  }
  const std::vector<Life> lives = stage_.lives("control");
  ASSERT_FALSE(lives.empty());
  for (const Life& life : lives) EXPECT_EQ(life.pid, lives[0].pid);
  ExpectEndWhenTheManagerLetsGo(lives[0].pid);
}

TEST_F(KeptServiceTest, EndsWhenTheManagerLetsGoOfWhatItKeeps) {
  ASSERT_NO_FATAL_FAILURE(ServeOnce(Options()));
  ExpectEndWhenTheManagerLetsGo(stage_.lives("keeper")[0].pid);
}

// A keeper that the former batond started without a service manager, or before it kept anything.
TEST_F(KeptServiceTest, IsTiedToTheManagerOfTheBatondThatTakesItIn) {
  {
    BatondProcess batond(stage_, Options({}));
    ASSERT_TRUE(batond.WaitUntilReady()) << batond.standard_error();
  }
  ASSERT_NO_FATAL_FAILURE(ServeOnce(Options()));
  ExpectEndWhenTheManagerLetsGo(stage_.lives("keeper")[0].pid);
}

}  // namespace

FakeManager::FakeManager(const std::string& path, size_t most)
    : path_(path), most_(most), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  const sockaddr_un address = AddressOf(path);
  BATON_CHECK(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
              0);
  thread_ = std::thread([this] { Serve(); });
}

FakeManager::~FakeManager() {
  SendTo(path_, kEnd);
  thread_.join();
}

void FakeManager::Serve() {
  for (;;) {
    char text[4096];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    iovec data = {text, sizeof(text)};
    msghdr header = {};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const ssize_t length = recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
    BATON_CHECK(length > 0);
    FileDescriptor descriptor;
    if (const cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(item), sizeof(number));
      descriptor.Reset(number);
    }
    const std::string message(text, static_cast<size_t>(length));
    if (message == kEnd) return;
    Heed(message, std::move(descriptor));
  }
}

void FakeManager::Heed(const std::string& message, FileDescriptor descriptor) {
  const std::lock_guard lock(mutex_);
  const std::string name = ValueOf(message, "FDNAME");
  if (message == kSync) {
    ++syncs_;
    caught_up_.notify_all();
  } else if (ValueOf(message, "FDSTORE") == "1") {
    // Otherwise it is given up as soon as it polls as broken.
    BATON_CHECK(ValueOf(message, "FDPOLL") == "0");
    Keep(name, std::move(descriptor));
  } else if (ValueOf(message, "FDSTOREREMOVE") == "1") {
    std::erase_if(kept_, [&](const Named& one) { return one.first == name; });
  } else {
    told_.push_back(message);
  }
}

void FakeManager::Keep(const std::string& name, FileDescriptor descriptor) {
  if (kept_.size() >= most_) return;
  for (const Named& one : kept_) {
    if (syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, one.second.get(), descriptor.get()) == 0) {
      return;
    }
  }
  kept_.insert(kept_.begin(), Named(name, std::move(descriptor)));
}

void FakeManager::Add(const std::string& name, FileDescriptor descriptor) {
  const std::lock_guard lock(mutex_);
  Keep(name, std::move(descriptor));
}

void FakeManager::CatchUp() {
  std::unique_lock lock(mutex_);
  const int before = syncs_;
  lock.unlock();
  SendTo(path_, kSync);
  lock.lock();
  caught_up_.wait(lock, [&] { return syncs_ > before; });
}

std::vector<FakeManager::Named> FakeManager::Kept() {
  CatchUp();
  const std::lock_guard lock(mutex_);
  std::vector<Named> copies;
  for (const auto& [name, descriptor] : kept_) {
    copies.emplace_back(name, FileDescriptor(fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0)));
  }
  return copies;
}

void FakeManager::LetGo() {
  CatchUp();
  const std::lock_guard lock(mutex_);
  kept_.clear();
}

std::vector<std::string> FakeManager::Told() {
  CatchUp();
  const std::lock_guard lock(mutex_);
  return told_;
}

}  // namespace baton
