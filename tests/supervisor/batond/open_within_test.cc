// Files of the configuration, and one on a file system that does not answer.
#include "supervisor/batond/open_within.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "tests/supervisor/batond/batond_process.h"

namespace {

bool g_file_system_answers = true;

}  // namespace

// In the place of libc's.
extern "C" int fstat(int fd, struct stat* status) noexcept {
  while (!g_file_system_answers) pause();
  return static_cast<int>(syscall(SYS_fstat, fd, status));
}

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::seconds kPatient(30);

bool HasChildren() { return waitpid(-1, nullptr, WNOHANG) >= 0; }

class OpenWithinTest : public ::testing::Test {
 protected:
  void TearDown() override { g_file_system_answers = true; }

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
  EXPECT_FALSE(HasChildren());
}

TEST_F(OpenWithinTest, shouldTellWhyAFileCannotBeOpened) {
  const absl::Status status = OpenWithin(PathOf("none"), O_RDONLY, 0, kPatient).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(PathOf("none")));
  EXPECT_FALSE(HasChildren());
}

TEST_F(OpenWithinTest, shouldRefuseWhatIsNoFile) {
  ASSERT_EQ(mkfifo(PathOf("fifo").c_str(), 0600), 0);
  for (const std::string& path : {PathOf("fifo"), directory_.path()}) {
    const absl::Status status = OpenWithin(path, O_RDONLY, 0, kPatient).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_EQ(status.message(), path + " is not a file");
  }
  EXPECT_FALSE(HasChildren());
}

TEST_F(OpenWithinTest, shouldGiveUpAFileSystemThatDoesNotAnswer) {
  g_file_system_answers = false;
  const std::string path = PathOf("stuck");
  const absl::Status status =
      OpenWithin(path, O_WRONLY | O_CREAT, 0600, std::chrono::milliseconds(100)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(status.message(), path + ": not opened within 100 ms: does its file system answer?");
  g_file_system_answers = true;
  // A later call reaps the process that was killed.
  while (HasChildren()) {
    ASSERT_TRUE(OpenWithin(path, O_WRONLY, 0, kPatient).ok());
    std::this_thread::yield();
  }
}

}  // namespace
}  // namespace baton
