// The programs themselves: baton-control through its standard input and signals, baton as another
// user.
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/heartbeat.h"
#include "supervisor/config/state_files.h"
#include "supervisor/control/config.h"
#include "supervisor/control/loop_thread.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/control/fakes.h"
#include "tests/supervisor/control/test_certificates.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr char kControl[] = "supervisor/control/baton-control";
constexpr char kBaton[] = "supervisor/cli/baton";

class BinaryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/baton-binary-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    state_dir_ = directory;
    std::filesystem::permissions(state_dir_, std::filesystem::perms(0755));
    config_ = "state_dir: \"" + state_dir_ + "\" services: \"kv\"";
  }

  void TearDown() override {
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    std::filesystem::remove_all(state_dir_);
  }

  // With `input` to read, and what it says in the file `name` of the state directory.
  pid_t Spawn(const std::string& program, const std::vector<std::string>& arguments,
              const std::string& input, const std::string& name, uid_t uid = 0) {
    std::ofstream(state_dir_ + "/" + name + ".in") << input;
    const pid_t child = fork();
    if (child == 0) {
      std::vector<char*> argv = {const_cast<char*>(program.c_str())};
      for (const std::string& one : arguments) argv.push_back(const_cast<char*>(one.c_str()));
      argv.push_back(nullptr);
      dup2(open((state_dir_ + "/" + name + ".in").c_str(), O_RDONLY), 0);
      const int output =
          open((state_dir_ + "/" + name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      dup2(output, 1);
      dup2(output, 2);
      if (uid != 0 && (setgroups(0, nullptr) != 0 || setgid(uid) != 0 || setuid(uid) != 0)) {
        _exit(99);
      }
      execv(argv[0], argv.data());
      _exit(98);
    }
    children_.push_back(child);
    return child;
  }

  std::string Said(const std::string& name) {
    std::stringstream text;
    text << std::ifstream(state_dir_ + "/" + name).rdbuf();
    return text.str();
  }

  // Its exit code, or minus the signal that ended it.
  int Wait(pid_t child) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    std::erase(children_, child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  int Run(const std::string& program, const std::vector<std::string>& arguments,
          const std::string& input, const std::string& name, uid_t uid = 0) {
    return Wait(Spawn(program, arguments, input, name, uid));
  }

  // One that answers. While it starts, `baton` says that nobody is there.
  pid_t StartControl() {
    const pid_t control = Spawn(kControl, {}, config_, "control");
    int code = 3;
    for (int i = 0; i < 500 && code == 3; ++i) {
      code = Run(kBaton, {"--state-dir", state_dir_, "status"}, "", "status");
    }
    EXPECT_EQ(code, 0) << Said("status") << Said("control");
    return control;
  }

  std::string state_dir_;
  std::string config_;
  std::vector<pid_t> children_;
};

TEST_F(BinaryTest, ControlEndsCleanlyOnSigterm) {
  const pid_t control = StartControl();
  kill(control, SIGTERM);
  EXPECT_EQ(Wait(control), 0);
  EXPECT_THAT(Said("control"), HasSubstr("ends: Terminated"));
}

TEST_F(BinaryTest, ControlShowsBatondThatItLives) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);  // inherited
  const FileDescriptor reader(ends[0]), writer(ends[1]);
  setenv("BATON_HEARTBEAT_FD", std::to_string(writer.get()).c_str(), 1);
  StartControl();
  unsetenv("BATON_HEARTBEAT_FD");
  for (int i = 0; i < 2; ++i) {
    pollfd entry = {reader.get(), POLLIN, 0};
    ASSERT_EQ(poll(&entry, 1, 20'000), 1);
    char sign = 0;
    ASSERT_EQ(read(reader.get(), &sign, 1), 1);
  }
}

// The thread of this name; 0: the process has none.
pid_t ThreadOf(pid_t process, const std::string& name) {
  const std::string tasks = "/proc/" + std::to_string(process) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::ifstream file(task.path() / "comm");
    std::string comm;
    std::getline(file, comm);
    if (comm == name) return std::stoi(task.path().filename().string());
  }
  return 0;
}

// Stops one thread of a child, as a debugger does, while it lives. The others go on.
class StoppedThread {
 public:
  explicit StoppedThread(pid_t thread) : thread_(thread) {
    int status = 0;
    stopped_ = ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) == 0 &&
               ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) == 0 &&
               waitpid(thread_, &status, __WALL) == thread_ && WIFSTOPPED(status);
  }
  ~StoppedThread() {
    if (stopped_) ptrace(PTRACE_DETACH, thread_, nullptr, nullptr);
  }
  StoppedThread(const StoppedThread&) = delete;
  StoppedThread& operator=(const StoppedThread&) = delete;

  explicit operator bool() const { return stopped_; }

 private:
  const pid_t thread_;
  bool stopped_ = false;
};

// The thread of its loop is stopped, and no other one: it does nothing more, as in a call that
// blocks, and a sign of life that another thread gave would be seen.
TEST_F(BinaryTest, ControlThatHangsShowsNoSignOfLifeUntilItGoesOn) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);  // inherited
  const FileDescriptor reader(ends[0]), writer(ends[1]);
  setenv("BATON_HEARTBEAT_FD", std::to_string(writer.get()).c_str(), 1);
  const pid_t control = StartControl();
  unsetenv("BATON_HEARTBEAT_FD");
  const pid_t loop = ThreadOf(control, LoopThread::kName);
  ASSERT_NE(loop, 0);
  std::optional<StoppedThread> hang(std::in_place, loop);
  ASSERT_TRUE(*hang) << "the thread cannot be traced: " << strerror(errno);
  const pid_t list = Spawn(kBaton, {"--state-dir", state_dir_, "shard", "list", "kv"}, "", "list");
  char signs[64];
  while (read(reader.get(), signs, sizeof(signs)) > 0) {
  }
  pollfd entry = {reader.get(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 3 * static_cast<int>(kHeartbeat.count())), 0);
  hang.reset();
  EXPECT_EQ(poll(&entry, 1, 20'000), 1);
  EXPECT_EQ(Wait(list), 3) << Said("list");
}

TEST_F(BinaryTest, shouldNotHangWhereAFifoStandsForWhyAKeeperIsGone) {
  StartControl();
  ASSERT_EQ(mkfifo(DownReasonPath(state_dir_, "kv").c_str(), 0644), 0);
  EXPECT_EQ(Run(kBaton, {"--state-dir", state_dir_, "shard", "list", "kv"}, "", "list"), 3);
  EXPECT_THAT(Said("list"), HasSubstr("the keeper of service \"kv\" cannot be reached"));
}

TEST_F(BinaryTest, ControlStartsOverTheSocketsOfOneThatWasKilled) {
  FakeKeeper keeper(ManagementSocketPath(state_dir_, "kv"));
  keeper.Start();
  for (int i = 0; i < 3; ++i) {
    const pid_t control = StartControl();
    EXPECT_EQ(Run(kBaton, {"--state-dir", state_dir_, "shard", "list", "kv"}, "", "list"), 0)
        << Said("list");
    kill(control, SIGKILL);
    EXPECT_EQ(Wait(control), -SIGKILL);
    EXPECT_EQ(Run(kBaton, {"--state-dir", state_dir_, "--timeout", "0.2", "status"}, "", "status"),
              3);
  }
}

TEST_F(BinaryTest, ASecondControlSaysThatTheFirstIsThere) {
  StartControl();
  EXPECT_EQ(Run(kControl, {}, config_, "second"), 1);
  EXPECT_THAT(Said("second"), HasSubstr("another process listens on it"));
}

TEST_F(BinaryTest, ControlRefusesWhatItDoesNotUnderstand) {
  EXPECT_EQ(Run(kControl, {}, "shoes: 1", "bad"), 2);
  EXPECT_THAT(Said("bad"), HasSubstr("line 1"));
  EXPECT_EQ(Run(kControl, {"--shoes"}, config_, "bad"), 2);
  EXPECT_THAT(Said("bad"), HasSubstr("usage:"));
  EXPECT_EQ(Run(kControl, {"--help"}, "", "help"), 0);
}

// One who says what is no TLS, and waits until that is refused.
void SpeakNonsense(int port) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  (void)!send(socket.get(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
  char answer[256];
  while (recv(socket.get(), answer, sizeof(answer), 0) > 0) {
  }
}

TEST_F(BinaryTest, ControlBoundsWhatFailedHandshakesLog) {
  const TestCertificates certificates;
  certificates.MakeAuthority("ca");
  certificates.Make("ca", "server", "baton");
  config_ += " log_format: JSON operator_endpoint { address: \"127.0.0.1:0\" certificate_file: \"" +
             certificates.Certificate("server") + "\" key_file: \"" + certificates.Key("server") +
             "\" client_ca_file: \"" + certificates.Certificate("ca") + "\" viewers: \"x\" }";
  const auto began = std::chrono::steady_clock::now();
  const pid_t control = StartControl();
  const std::string beginning = "over TLS are served at port ";
  // The operators' socket, by which StartControl knows that it runs, may answer before.
  size_t place = std::string::npos;
  const absl::Status said = harness::WaitUntil(
      "the port", [&] { return (place = Said("control").find(beginning)) != std::string::npos; });
  ASSERT_TRUE(said.ok()) << said << Said("control");
  const int port = std::atoi(Said("control").c_str() + place + beginning.size());
  constexpr int kTimes = 500;
  for (int i = 0; i < kTimes; ++i) ASSERT_NO_FATAL_FAILURE(SpeakNonsense(port));
  kill(control, SIGTERM);
  EXPECT_EQ(Wait(control), 0);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::istringstream lines(Said("control"));
  int told = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line.starts_with("{\"time\":\"") && line.ends_with("\"}")) << line;
    told += line.find("gRPC: ") == std::string::npos ? 0 : 1;
  }
  EXPECT_GE(told, 1);
  EXPECT_LE(told, 20 + 2 * took.count() + 1);
}

TEST_F(BinaryTest, BatonTellsAnotherUserThatItMayNot) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  StartControl();
  // Bazel's own directories are closed to other users.
  const std::string baton = state_dir_ + "/baton";
  std::filesystem::copy_file(kBaton, baton);
  EXPECT_EQ(Run(baton, {"--state-dir", state_dir_, "status"}, "", "other", 65534), 5);
  EXPECT_THAT(Said("other"), HasSubstr("uid 65534 may not operate Baton"));
}

}  // namespace
}  // namespace baton
