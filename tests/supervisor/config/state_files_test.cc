#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "supervisor/config/state_files.h"

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

}  // namespace
}  // namespace baton
