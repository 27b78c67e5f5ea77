// The code with which native workers drive their queues is replaced under load, by that of another
// release and by a file that is none.
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/version.h"
#include "tests/harness/baton_command.h"
#include "tests/harness/binaries.h"
#include "tests/harness/cluster.h"
#include "tests/harness/cluster_fixture.h"
#include "tests/harness/expectations.h"
#include "tests/harness/file_content.h"
#include "tests/harness/peer_process.h"
#include "tests/harness/wait_until.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr char kOtherCode[] = "0.9.1";  // as long as ours
constexpr size_t kNativeWorkers = 2;

class NativeCode : public harness::ClusterFixture {
 protected:
  void SetUp() override {
    harness::ClusterOptions options;
    options.own_programs = true;
    options.native_object = harness::Binaries().Find("ledger-v1.so").value();
    options.batond_arguments = {"--native-workers", std::to_string(kNativeWorkers)};
    ASSERT_OK_AND_ASSIGN(cluster_, harness::Cluster::Start(options));
    ASSERT_OK(cluster_->WaitUntilListening());
    AwaitWorkers(0);
    ASSERT_OK_AND_ASSIGN(peer_, cluster_->StartPeer(harness::SteadyLoad()));
    ASSERT_OK(peer_->Settle());
  }
  void TearDown() override {
    if (peer_) harness::ExpectNothingLost(*peer_);
    ClusterFixture::TearDown();
  }

  std::string CodeFile() const { return cluster_->libexec() + "/libbaton-driver.so"; }
  void InstallOtherRelease() {
    const std::string renamed = harness::WithRelease(harness::ReadFile(CodeFile()), kOtherCode);
    ASSERT_NE(renamed, "");
    harness::InstallProgram(CodeFile(), renamed);
  }
  v1::GetServiceResponse Service() {
    return cluster_->GetService().value_or(v1::GetServiceResponse());
  }
  // Returns the workers once as many as are configured are ready, none of them `dead`.
  std::vector<pid_t> AwaitWorkers(pid_t dead) {
    std::vector<pid_t> pids;
    EXPECT_OK(harness::WaitUntil(
        "the workers",
        [&] {
          pids.clear();
          const v1::GetServiceResponse service = Service();
          for (const v1::Worker& worker : service.workers()) {
            if (worker.state() == v1::WORKER_STATE_READY) pids.push_back(worker.pid());
          }
          return pids.size() == kNativeWorkers && !std::count(pids.begin(), pids.end(), dead);
        },
        harness::Patient(std::chrono::seconds(30))));
    return pids;
  }
  // Whether the worker has mapped the file that is in place now.
  bool HasFileInPlace(pid_t worker) const {
    struct stat file = {};
    EXPECT_EQ(stat(CodeFile().c_str(), &file), 0);
    std::ifstream maps(absl::StrCat("/proc/", worker, "/maps"));
    std::string line;
    while (std::getline(maps, line)) {
      if (absl::StrContains(line, absl::StrCat(" ", file.st_ino, " "))) return true;
    }
    return false;
  }
  std::vector<pid_t> KillWorker(pid_t worker) {
    EXPECT_EQ(kill(worker, SIGKILL), 0);
    return AwaitWorkers(worker);
  }
  harness::CommandResult Upgrade() {
    return harness::RunBaton(*cluster_, {"upgrade", "--baton", "--watch-window", "1", "ledger"});
  }

  std::unique_ptr<harness::PeerProcess> peer_;
};

TEST_F(NativeCode, shouldBeThatOfTheReleaseThatServesUntilItIsReplaced) {
  EXPECT_EQ(Service().service().driver_code_release(), kRelease);
  ASSERT_NO_FATAL_FAILURE(InstallOtherRelease());
  std::vector<pid_t> workers = KillWorker(AwaitWorkers(0)[0]);
  for (const pid_t worker : workers) EXPECT_FALSE(HasFileInPlace(worker));
  const harness::CommandResult upgrade = Upgrade();
  EXPECT_EQ(upgrade.status, 0) << upgrade.err;
  EXPECT_THAT(upgrade.out, HasSubstr("drive their queues with release 0.9.1, after 0.1.0"));
  EXPECT_EQ(Service().service().driver_code_release(), kOtherCode);
  // Workers that were there go on, and their successors have it.
  EXPECT_EQ(AwaitWorkers(0), workers);
  for (size_t i = 0; i < kNativeWorkers; ++i) {
    ASSERT_OK(peer_->Settle());
    const std::vector<pid_t> next = KillWorker(workers[i]);
    EXPECT_EQ(
        std::count_if(next.begin(), next.end(), [&](pid_t one) { return HasFileInPlace(one); }),
        static_cast<long>(i) + 1);
  }
}

TEST_F(NativeCode, shouldBeThatBeforeAgainIfAWorkerCannotHaveTheNext) {
  ASSERT_NO_FATAL_FAILURE(InstallOtherRelease());
  const std::string fine = harness::ReadFile(CodeFile());
  // Another program of Baton's, which has a release, and nothing that could be loaded.
  harness::InstallProgram(CodeFile(), harness::ReadFile(cluster_->libexec() + "/baton-nic"));
  EXPECT_EQ(Upgrade().status, 0);
  (void)KillWorker(AwaitWorkers(0)[0]);
  EXPECT_THAT(Service().service().driver_code_given_up(), HasSubstr("is given up"));
  EXPECT_EQ(Service().service().driver_code_release(), kRelease);
  EXPECT_THAT(harness::RunBaton(*cluster_, {"events", "ledger"}).out,
              HasSubstr("is no code of drivers"));
  ASSERT_OK(peer_->Settle());
  // A file that tells no release is refused at once.
  harness::InstallProgram(CodeFile(), "#!/bin/sh\nexit 3\n");
  const harness::CommandResult refused = Upgrade();
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("tells no release"));
  harness::InstallProgram(CodeFile(), fine);
  EXPECT_EQ(Upgrade().status, 0);
  EXPECT_EQ(Service().service().driver_code_release(), kOtherCode);
  EXPECT_EQ(Service().service().driver_code_given_up(), "");
}

}  // namespace
}  // namespace baton
