// Workers and operators of another uid: let in where the configuration names them, refused with the
// cause and the cure where it does not.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/temp_directory.h"

namespace baton {
namespace {

using harness::Binaries;
using harness::ChildOptions;
using harness::ChildProcess;
using testing::HasSubstr;

constexpr int kOtherUid = 65534;
constexpr std::chrono::seconds kTimeout{30};

class PermissionsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to run programs as another user";
    auto directory = harness::TempDirectory::Create();
    ASSERT_TRUE(directory.ok()) << directory.status();
    directory_.emplace(*std::move(directory));
    // What the other user runs has to be where that user may go.
    ASSERT_EQ(chmod(directory_->path().c_str(), 0755), 0);
    for (const char* name : {"ledger-v1", "baton"}) {
      const auto path = Binaries().Find(name);
      ASSERT_TRUE(path.ok()) << path.status();
      std::filesystem::copy_file(std::filesystem::canonical(*path), directory_->File(name));
      ASSERT_EQ(chmod(directory_->File(name).c_str(), 0755), 0);
    }
  }

  // `permissions` of the whole configuration and of its service.
  void StartBatond(const std::string& operators, const std::string& workers) {
    std::ofstream(directory_->File("config"))
        << "state_dir: \"" << directory_->File("state") << "\"\n"
        << operators << "\nservices { name: \"ledger\" device { soft {} } " << workers << " }\n";
    const std::string libexec = directory_->File("libexec");
    std::filesystem::create_directory(libexec);
    for (const char* name : {"baton-driver", "baton-keeper", "baton-control"}) {
      const auto path = Binaries().Find(name);
      ASSERT_TRUE(path.ok()) << path.status();
      const std::string link = absl::StrCat(libexec, "/", name);
      if (!std::filesystem::exists(link)) std::filesystem::create_symlink(*path, link);
    }
    ChildOptions options;
    const auto program = Binaries().Find("batond");
    ASSERT_TRUE(program.ok()) << program.status();
    options.program = *program;
    options.arguments = {"--config", directory_->File("config"), "--libexec", libexec};
    options.log_path = directory_->File("batond.log");
    auto started = ChildProcess::Start(options);
    ASSERT_TRUE(started.ok()) << started.status();
    batond_ = *std::move(started);
    ASSERT_TRUE(batond_->ReadLineWith("batond ready", kTimeout).ok()) << batond_->LogTail();
  }

  std::unique_ptr<ChildProcess> StartAsOther(const std::string& name,
                                             const std::vector<std::string>& arguments) {
    ChildOptions options;
    options.program = "/usr/bin/setpriv";
    options.arguments = {absl::StrCat("--reuid=", kOtherUid), "--clear-groups",
                         directory_->File(name)};
    options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
    options.log_path = directory_->File(name + ".log");
    auto started = ChildProcess::Start(options);
    EXPECT_TRUE(started.ok()) << started.status();
    return started.ok() ? *std::move(started) : nullptr;
  }

  std::unique_ptr<ChildProcess> StartLedgerAsOther() {
    return StartAsOther("ledger-v1", {"--socket", directory_->File("state/ledger.sock"), "--listen",
                                      "127.0.0.1:0"});
  }

  static int ExitStatus(ChildProcess& process) {
    const auto end = process.WaitEnd(kTimeout);
    EXPECT_TRUE(end.ok()) << end.status();
    return end.ok() && WIFEXITED(*end) ? WEXITSTATUS(*end) : -1;
  }

  std::optional<harness::TempDirectory> directory_;
  std::unique_ptr<ChildProcess> batond_;
};

TEST_F(PermissionsTest, shouldServeAWorkerOfAUserThatTheServiceNames) {
  ASSERT_NO_FATAL_FAILURE(StartBatond("", absl::StrCat("worker_uids: ", kOtherUid)));
  const auto worker = StartLedgerAsOther();
  ASSERT_NE(worker, nullptr);
  EXPECT_TRUE(worker->ReadLineWith("ledger ready", kTimeout).ok()) << worker->LogTail();
}

TEST_F(PermissionsTest, shouldRefuseAWorkerOfAnotherUser) {
  // Another service's user can reach the directory, and still not this service.
  ASSERT_NO_FATAL_FAILURE(StartBatond("", "worker_uids: 12345"));
  const auto worker = StartLedgerAsOther();
  ASSERT_NE(worker, nullptr);
  EXPECT_NE(ExitStatus(*worker), 0);
  EXPECT_THAT(worker->LogTail(), HasSubstr("uid 65534 may not attach to service ledger"));
  EXPECT_THAT(worker->LogTail(), HasSubstr("worker_uids"));
}

TEST_F(PermissionsTest, shouldAnswerAnOperatorThatTheConfigurationNames) {
  ASSERT_NO_FATAL_FAILURE(StartBatond(absl::StrCat("operator_uids: ", kOtherUid), ""));
  const auto status =
      StartAsOther("baton", {"--state-dir", directory_->File("state"), "-o", "json", "status"});
  ASSERT_NE(status, nullptr);
  EXPECT_EQ(ExitStatus(*status), 0) << status->LogTail();
}

TEST_F(PermissionsTest, shouldRefuseAnotherOperator) {
  ASSERT_NO_FATAL_FAILURE(StartBatond("operator_uids: 12345", ""));
  const auto status = StartAsOther("baton", {"--state-dir", directory_->File("state"), "status"});
  ASSERT_NE(status, nullptr);
  EXPECT_EQ(ExitStatus(*status), 5);  // as documented: not permitted
  EXPECT_THAT(status->LogTail(), HasSubstr("operator_uids"));
}

TEST_F(PermissionsTest, shouldLetAViewerLookAndChangeNothing) {
  ASSERT_NO_FATAL_FAILURE(StartBatond(absl::StrCat("viewer_uids: ", kOtherUid), ""));
  const auto status = StartAsOther("baton", {"--state-dir", directory_->File("state"), "status"});
  ASSERT_NE(status, nullptr);
  EXPECT_EQ(ExitStatus(*status), 0) << status->LogTail();
  const auto kill = StartAsOther("baton", {"--state-dir", directory_->File("state"), "worker",
                                           "kill", "ledger", "1", "--yes"});
  ASSERT_NE(kill, nullptr);
  EXPECT_EQ(ExitStatus(*kill), 5);
  EXPECT_THAT(kill->LogTail(), HasSubstr("uid 65534 may look and change nothing"));
  EXPECT_THAT(kill->LogTail(), HasSubstr("operator_uids"));
}

TEST_F(PermissionsTest, shouldMakeTheStateDirectoryPassableAndNoMore) {
  for (const char* others : {"viewer_gids: 12345", "operator_uids: 12345"}) {
    ASSERT_NO_FATAL_FAILURE(StartBatond(others, ""));
    struct stat directory = {};
    ASSERT_EQ(stat(directory_->File("state").c_str(), &directory), 0);
    EXPECT_EQ(directory.st_mode & 07777, 0711u) << others;
    ASSERT_TRUE(batond_->Terminate(kTimeout).ok());
    std::filesystem::remove_all(directory_->File("state"));
  }
  ASSERT_NO_FATAL_FAILURE(StartBatond("", "worker_uids: 12345"));
  struct stat directory = {};
  ASSERT_EQ(stat(directory_->File("state").c_str(), &directory), 0);
  EXPECT_EQ(directory.st_mode & 07777, 0711u);
}

TEST_F(PermissionsTest, shouldSayWhoMayPassWhereTheStateDirectoryIsClosed) {
  ASSERT_NO_FATAL_FAILURE(StartBatond("", ""));
  ASSERT_EQ(chmod(directory_->File("state").c_str(), 0700), 0);
  const auto status = StartAsOther("baton", {"--state-dir", directory_->File("state"), "status"});
  ASSERT_NE(status, nullptr);
  EXPECT_EQ(ExitStatus(*status), 5);
  EXPECT_THAT(status->LogTail(),
              HasSubstr(absl::StrCat("uid ", kOtherUid, " may not pass: run as ", "root, as uid ",
                                     geteuid(), ", who has ", directory_->File("state"))));
}

}  // namespace
}  // namespace baton
