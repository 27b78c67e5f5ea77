#include "supervisor/config/replace_file.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"

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
