// Files of the configuration, and one on a file system that does not answer.
#include "supervisor/batond/open_within.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "tests/supervisor/batond/batond_process.h"

namespace {

bool g_file_system_answers = true;
// A process that waits for that file system does not die.
bool g_immortal = false;
pid_t g_killed = -1;

}  // namespace

// In the place of libc's.
extern "C" int fstat(int fd, struct stat* status) noexcept {
  while (!g_file_system_answers) pause();
  return static_cast<int>(syscall(SYS_fstat, fd, status));
}

extern "C" int kill(pid_t pid, int signal) noexcept {
  g_killed = pid;
  return g_immortal ? 0 : static_cast<int>(syscall(SYS_kill, pid, signal));
}

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::seconds kPatient(30);

// Reaps none.
bool HasChildren() {
  siginfo_t end = {};
  return waitid(P_ALL, 0, &end, WEXITED | WNOHANG | WNOWAIT) == 0;
}

class OpenWithinTest : public ::testing::Test {
 protected:
  void TearDown() override {
    g_file_system_answers = true;
    g_immortal = false;
    g_killed = -1;
  }

  std::string PathOf(const std::string& name) const { return directory_.path() + "/" + name; }

  const TemporaryDirectory directory_;
};

TEST_F(OpenWithinTest, shouldOpenAsFlagsAndModeSay) {
  const std::string path = PathOf("log");
  for (const std::string text : {"one", "two"}) {
    const absl::StatusOr<FileDescriptor> log =
        OpenWithin(path, O_WRONLY | O_APPEND | O_CREAT, 0640, kPatient);
    ASSERT_TRUE(log.ok()) << log.status();
    EXPECT_EQ(write(log->get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    EXPECT_EQ(fcntl(log->get(), F_GETFD), FD_CLOEXEC);
  }
  const absl::StatusOr<FileDescriptor> log = OpenWithin(path, O_RDONLY, 0, kPatient);
  ASSERT_TRUE(log.ok()) << log.status();
  char bytes[16];
  ASSERT_EQ(read(log->get(), bytes, sizeof(bytes)), 6);
  EXPECT_EQ(std::string(bytes, 6), "onetwo");
}

TEST_F(OpenWithinTest, shouldTellWhyAFileCannotBeOpened) {
  const absl::Status status = OpenWithin(PathOf("none"), O_RDONLY, 0, kPatient).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(PathOf("none")));
}

TEST_F(OpenWithinTest, shouldRefuseWhatIsNoFile) {
  ASSERT_EQ(mkfifo(PathOf("fifo").c_str(), 0600), 0);
  for (const std::string& path : {PathOf("fifo"), directory_.path()}) {
    for (const int flags : {O_RDONLY, O_WRONLY | O_APPEND | O_CREAT}) {
      const absl::Status status = OpenWithin(path, flags, 0600, kPatient).status();
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_EQ(status.message(), path + " is not a file");
    }
  }
}

TEST_F(OpenWithinTest, shouldGiveUpAFileSystemThatDoesNotAnswer) {
  g_file_system_answers = false;
  const std::string path = PathOf("stuck");
  const absl::Status status =
      OpenWithin(path, O_WRONLY | O_CREAT, 0600, std::chrono::milliseconds(100)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(status.message(), path + ": not opened within 100 ms: does its file system answer?");
  g_file_system_answers = true;
  // Later calls reap the process that was killed, and nothing else does.
  while (HasChildren()) (void)OpenWithin(path, O_WRONLY, 0, kPatient);
  EXPECT_TRUE(OpenWithin(path, O_WRONLY, 0, kPatient).ok());
}

// It may live for ever.
TEST_F(OpenWithinTest, shouldLeaveNothingToAProcessThatDoesNotDie) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const FileDescriptor ours(ends[0]);
  FileDescriptor lifeline(ends[1]);
  g_file_system_answers = false;
  g_immortal = true;
  const std::string path = PathOf("stuck");
  ASSERT_TRUE(absl::IsDeadlineExceeded(
      OpenWithin(path, O_WRONLY | O_CREAT, 0600, std::chrono::milliseconds(100)).status()));
  const pid_t stuck = g_killed;
  lifeline.Reset();
  char byte;
  EXPECT_EQ(read(ours.get(), &byte, 1), 0);  // nobody else has the other end
  // Neither is it joined by another one.
  const absl::Status again = OpenWithin(path, O_WRONLY, 0, kPatient).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(again)) << again;
  EXPECT_EQ(g_killed, stuck);
  g_file_system_answers = true;
  g_immortal = false;
  ASSERT_EQ(kill(stuck, SIGKILL), 0);
  siginfo_t end = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(stuck), &end, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(OpenWithin(path, O_WRONLY, 0, kPatient).ok());
}

}  // namespace
}  // namespace baton
