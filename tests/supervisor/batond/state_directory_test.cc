#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "supervisor/batond/state_directory.h"
#include "supervisor/config/audit_chain.h"
#include "supervisor/config/state_files.h"
#include "tests/supervisor/batond/batond_process.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

const ProgramUser kSelf = {geteuid(), getegid()};  // as if it were somebody else

class AuditDirectoryTest : public ::testing::Test {
 protected:
  AuditDirectoryTest() {
    fs::create_directory(state_);
    fs::create_directory(logs_);
  }
  ~AuditDirectoryTest() override { unsetenv("LOGS_DIRECTORY"); }

  void KeepLogs() { ASSERT_EQ(setenv("LOGS_DIRECTORY", (logs_ + ":/elsewhere").c_str(), 1), 0); }

  // All files of a trail, each with its own age in it.
  static void WriteTrail(const std::string& directory) {
    for (int age = 0; age < kAuditFiles; ++age) {
      std::ofstream(AuditFile(AuditTrailPath(directory), age)) << age;
    }
  }
  static int CountOfTrail(const std::string& directory) {
    int count = 0;
    for (int age = 0; age < kAuditFiles; ++age) {
      const std::string file = AuditFile(AuditTrailPath(directory), age);
      count += !fs::is_symlink(file) && ReadWholeFile(file) == std::to_string(age);
    }
    return count;
  }

  const TemporaryDirectory directory_;
  const std::string state_ = directory_.path() + "/state";
  const std::string logs_ = directory_.path() + "/logs";
};

TEST_F(AuditDirectoryTest, shouldBeTheStateDirectory) {
  WriteTrail(state_);
  EXPECT_EQ(MakeAuditDirectory(state_, std::nullopt), state_);
  EXPECT_EQ(CountOfTrail(state_), kAuditFiles);
}

TEST_F(AuditDirectoryTest, shouldBeWhereTheServiceManagerKeepsLogs) {
  std::ofstream(AuditTrailPath(state_)) << "of before";
  KeepLogs();
  EXPECT_EQ(MakeAuditDirectory(state_, std::nullopt), logs_);
  EXPECT_EQ(fs::read_symlink(AuditTrailPath(state_)), AuditTrailPath(logs_));
  EXPECT_EQ(ReadWholeFile(AuditTrailPath(state_) + ".before"), "of before");
}

TEST_F(AuditDirectoryTest, shouldBeControlsOwnWithAllFilesThatThereAre) {
  WriteTrail(state_);
  EXPECT_EQ(MakeAuditDirectory(state_, kSelf), state_ + "/control");
  EXPECT_EQ(CountOfTrail(state_ + "/control"), kAuditFiles);
  EXPECT_EQ(fs::read_symlink(AuditTrailPath(state_)), state_ + "/control/audit.log");
  struct stat status = {};
  ASSERT_EQ(stat((state_ + "/control").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  // And again, and back.
  EXPECT_EQ(MakeAuditDirectory(state_, kSelf), state_ + "/control");
  EXPECT_EQ(CountOfTrail(state_ + "/control"), kAuditFiles);
  EXPECT_EQ(MakeAuditDirectory(state_, std::nullopt), state_);
  EXPECT_EQ(CountOfTrail(state_), kAuditFiles);
}

// Services' logs are beside it, opened by batond: the directory above stays batond's.
TEST_F(AuditDirectoryTest, shouldBeBelowTheServiceManagersForLogs) {
  WriteTrail(logs_);
  KeepLogs();
  EXPECT_EQ(MakeAuditDirectory(state_, kSelf), logs_ + "/control");
  EXPECT_EQ(CountOfTrail(logs_ + "/control"), kAuditFiles);
  EXPECT_EQ(fs::read_symlink(AuditTrailPath(state_)), logs_ + "/control/audit.log");
  EXPECT_EQ(MakeAuditDirectory(state_, std::nullopt), logs_);
  EXPECT_EQ(CountOfTrail(logs_), kAuditFiles);
  EXPECT_EQ(fs::read_symlink(AuditTrailPath(state_)), AuditTrailPath(logs_));
}

TEST_F(AuditDirectoryTest, shouldGoOnMovingWhatWasEndedInTheMiddle) {
  WriteTrail(state_);
  fs::create_directory(state_ + "/control");
  for (const char* age : {".15", ".14"}) {
    fs::rename(AuditTrailPath(state_) + age, state_ + "/control/audit.log" + age);
  }
  (void)MakeAuditDirectory(state_, kSelf);
  EXPECT_EQ(CountOfTrail(state_ + "/control"), kAuditFiles);
}

TEST_F(AuditDirectoryTest, shouldNotPutOneTrailInThePlaceOfAnother) {
  WriteTrail(state_);
  fs::create_directory(state_ + "/control");
  std::ofstream(state_ + "/control/audit.log") << "another";
  (void)MakeAuditDirectory(state_, kSelf);
  EXPECT_EQ(ReadWholeFile(state_ + "/control/audit.log"), "another");
  EXPECT_EQ(CountOfTrail(state_), kAuditFiles);
}

// A compromised control may have made that link.
TEST_F(AuditDirectoryTest, shouldTakeNoFileWithAnotherNameFromControl) {
  const std::string secret = directory_.path() + "/secret";
  std::ofstream(secret) << "secret";
  fs::create_directory(state_ + "/control");
  fs::create_hard_link(secret, state_ + "/control/audit.log");
  (void)MakeAuditDirectory(state_, std::nullopt);
  EXPECT_FALSE(fs::exists(AuditTrailPath(state_)));
  fs::remove(state_ + "/control/audit.log");
  std::ofstream(state_ + "/control/audit.log") << 0;
  fs::create_symlink(secret, state_ + "/control/audit.log.1");
  (void)MakeAuditDirectory(state_, std::nullopt);
  EXPECT_FALSE(fs::exists(AuditTrailPath(state_) + ".1"));
}

}  // namespace
}  // namespace baton
