#include "supervisor/config/down_reason.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>

#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "supervisor/config/state_files.h"
#include "tests/harness/temp_directory.h"

namespace baton {
namespace {

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
