// Which file SpawnPlan runs, and what the program inherits.
#include "supervisor/driver/workers/spawn_plan.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/program_start.h"
#include "tests/harness/expectations.h"
#include "tests/harness/temp_directory.h"

namespace baton::driver_process {
namespace {

using ::testing::HasSubstr;

class SpawnPlanTest : public ::testing::Test {
 protected:
  // In place of what there was, as a package does it.
  void Put(const std::string& script, mode_t mode = 0755) {
    const std::string file = program_ + ".new";
    std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
    ASSERT_EQ(chmod(file.c_str(), mode), 0);
    std::filesystem::rename(file, program_);
  }
  static FileDescriptor Open(const std::string& path) {
    return FileDescriptor(open(path.c_str(), O_PATH | O_CLOEXEC));
  }
  // Returns the exit code.
  static int Run(const std::string& program, std::vector<std::string> words = {}) {
    SpawnPlan plan;
    plan.CloseFrom(STDERR_FILENO + 1);
    const absl::StatusOr<pid_t> pid = plan.Spawn(program, std::move(words));
    EXPECT_OK(pid);
    int status = 0;
    if (!pid.ok() || waitpid(*pid, &status, 0) != *pid) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // Returns 0 if sh, run by its open file, finds that `condition` holds, else 1.
  static int Holds(const std::string& condition) {
    const FileDescriptor shell = Open("/bin/sh");
    return Run(OpenFilePath(shell.get()), {"-c", absl::StrCat("test ", condition)});
  }

  const harness::TempDirectory directory_ = harness::TempDirectory::Create().value();
  const std::string program_ = directory_.File("baton-launch");
};

TEST_F(SpawnPlanTest, shouldRunTheOpenFileWhateverTakesItsPlace) {
  Put("exit 3");
  const FileDescriptor file = Open(program_);
  Put("exit 4");
  EXPECT_EQ(Run(program_), 4);
  EXPECT_EQ(Run(OpenFilePath(file.get())), 3);
  std::filesystem::remove(program_);
  EXPECT_EQ(Run(OpenFilePath(file.get())), 3);
}

TEST_F(SpawnPlanTest, shouldNameTheProgramByItsPlace) {
  const std::string place = std::filesystem::canonical("/bin/sh");
  EXPECT_EQ(Holds(absl::StrCat("\"$0\" = ", place)), 0);
}

TEST_F(SpawnPlanTest, shouldGiveTheProgramItsOwnFileAndNoOther) {
  const FileDescriptor other(fcntl(STDERR_FILENO, F_DUPFD, 10));  // not close-on-exec
  ASSERT_TRUE(other);
  EXPECT_EQ(Holds("-e /proc/self/fd/3"), 0);
  EXPECT_EQ(Holds("-e /proc/self/fd/4"), 1);
  EXPECT_EQ(Holds(absl::StrCat("-e /proc/self/fd/", other.get())), 1);
}

// A descriptor that is given may have the number at which the program's own file was.
TEST_F(SpawnPlanTest, shouldRunAFileWhoseNumberAnotherTakes) {
  Put("exit 3");
  const FileDescriptor file = Open(program_);
  SpawnPlan plan;
  plan.Give(STDERR_FILENO, file.get());
  plan.CloseFrom(file.get() + 1);
  const absl::StatusOr<pid_t> pid = plan.Spawn(OpenFilePath(file.get()));
  ASSERT_OK(pid);
  int status = 0;
  ASSERT_EQ(waitpid(*pid, &status, 0), *pid);
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

TEST_F(SpawnPlanTest, shouldNameTheFileThatCannotBeRun) {
  Put("exit 3", 0644);
  const FileDescriptor file = Open(program_);
  SpawnPlan plan;
  plan.CloseFrom(STDERR_FILENO + 1);
  const absl::Status status = plan.Spawn(OpenFilePath(file.get())).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("cannot run ", program_)));
}

}  // namespace
}  // namespace baton::driver_process
