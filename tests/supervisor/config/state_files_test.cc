#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/config/state_files.h"
#include "tests/harness/temp_directory.h"

namespace {

std::vector<std::string> g_calls;

std::string NameOf(int fd) {
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd));
}

}  // namespace

// These replace the functions of the C library in this program.
extern "C" int fsync(int fd) {
  g_calls.push_back("fsync " + NameOf(fd));
  return static_cast<int>(syscall(SYS_fsync, fd));
}
extern "C" int rename(const char* from, const char* to) noexcept {
  g_calls.push_back(std::string("rename ") + from);
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

namespace baton {
namespace {

class ReplaceFileTest : public ::testing::Test {
 protected:
  ReplaceFileTest() { path_ = directory_ + "/file"; }
  ~ReplaceFileTest() override { std::filesystem::remove_all(directory_); }

  std::string Contents() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string pattern_ = "/tmp/replace_file_test.XXXXXX";
  const std::string directory_ = mkdtemp(pattern_.data());
  std::string path_;
};

TEST_F(ReplaceFileTest, shouldMakeAndReplaceAFile) {
  ASSERT_TRUE(ReplaceFile(path_, "one, which is longer\n").ok());
  EXPECT_EQ(Contents(), "one, which is longer\n");
  ASSERT_TRUE(ReplaceFile(path_, "two\n").ok());
  EXPECT_EQ(Contents(), "two\n");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
}

TEST_F(ReplaceFileTest, shouldSurviveALossOfPower) {
  g_calls.clear();
  ASSERT_TRUE(ReplaceFile(path_, "one\n").ok());
  EXPECT_EQ(g_calls, (std::vector<std::string>{"fsync " + path_ + ".new",
                                               "rename " + path_ + ".new", "fsync " + directory_}));
}

TEST_F(ReplaceFileTest, shouldLeaveTheFileAsItWasWhenItCannotBeWritten) {
  ASSERT_TRUE(ReplaceFile(path_, "one\n").ok());
  ASSERT_EQ(mkdir((path_ + ".new").c_str(), 0700), 0);  // in the way
  EXPECT_FALSE(ReplaceFile(path_, "two\n").ok());
  EXPECT_EQ(Contents(), "one\n");
}

TEST_F(ReplaceFileTest, shouldLeaveNothingWhenItCannotTakeThePlace) {
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  EXPECT_FALSE(ReplaceFile(path_, "one\n").ok());
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
}

class DownReasonTest : public ::testing::Test {
 protected:
  std::string Reason() const { return DownReason(directory_.path(), "kv"); }

  const harness::TempDirectory directory_ = harness::TempDirectory::Create().value();
  const std::string path_ = DownReasonPath(directory_.path(), "kv");
};

TEST_F(DownReasonTest, shouldBeWhatWasSetUntilThatIsTakenBack) {
  EXPECT_EQ(Reason(), "");
  SetDownReason(directory_.path(), "kv", "no device:\nit was removed");
  EXPECT_EQ(Reason(), "no device: it was removed");
  SetDownReason(directory_.path(), "kv", "");
  EXPECT_EQ(Reason(), "");
}

TEST_F(DownReasonTest, shouldBeTheFirstLineAndOfThatWholeCharacters) {
  std::ofstream(path_) << "first\nsecond\n";
  EXPECT_EQ(Reason(), "first");
  std::ofstream(path_) << std::string(20'000, 'x');
  EXPECT_EQ(Reason(), std::string(1024, 'x'));
  for (const size_t before : {1021, 1022, 1023}) {
    std::ofstream(path_) << std::string(before, 'x') << "\xf0\x9f\x94\xa5 and more";
    EXPECT_EQ(Reason(), std::string(before, 'x'));
  }
}

TEST_F(DownReasonTest, shouldNotWaitForAFifoThatNobodyWrites) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  std::future<std::string> reason = std::async(std::launch::async, [this] { return Reason(); });
  EXPECT_EQ(reason.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  {
    // It fails unless somebody waits all the same, who then goes on.
    const FileDescriptor writer(open(path_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    EXPECT_FALSE(writer);
  }
  EXPECT_EQ(reason.get(), "");
}

TEST_F(DownReasonTest, shouldBeNothingWhereThereIsNoFileButSomethingElse) {
  const std::string other = directory_.File("secret");
  std::ofstream(other) << "secret\n";
  std::filesystem::create_symlink(other, path_);
  EXPECT_EQ(Reason(), "");
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_EQ(Reason(), "");
}

}  // namespace
}  // namespace baton
