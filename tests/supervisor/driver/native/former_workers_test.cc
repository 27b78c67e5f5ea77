#include "supervisor/driver/native/former_workers.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "tests/harness/temp_directory.h"

namespace baton::driver_process {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class FormerWorkersTest : public ::testing::Test {
 protected:
  // A former driver with one worker, which outlives it.
  void SetUp() override {
    const FileDescriptor presence = FollowFormerWorkers(path_, Survivors::kAreAnError).value();
    worker_ = fork();
    if (worker_ == 0) {
      for (;;) pause();
    }
  }
  void TearDown() override { EndWorker(); }
  void EndWorker() {
    kill(worker_, SIGKILL);
    waitpid(worker_, nullptr, 0);
  }
  bool IsLocked() const {
    const FileDescriptor other(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    return other && flock(other.get(), LOCK_EX | LOCK_NB) != 0;
  }

  const harness::TempDirectory directory_ = *harness::TempDirectory::Create();
  const std::string path_ = directory_.File("kv.workers.lock");
  pid_t worker_ = 0;
};

TEST_F(FormerWorkersTest, shouldDelayTheNextDriverUntilTheLastIsGone) {
  constexpr milliseconds kLife{300};
  const auto start = std::chrono::steady_clock::now();
  std::thread end([&] {
    std::this_thread::sleep_for(kLife);
    kill(worker_, SIGKILL);
  });
  const auto presence = FollowFormerWorkers(path_, Survivors::kAreAnError);
  EXPECT_TRUE(presence.ok()) << presence.status();
  EXPECT_GE(std::chrono::steady_clock::now() - start, kLife);
  EXPECT_TRUE(IsLocked());
  end.join();
}

TEST_F(FormerWorkersTest, shouldSayWhoSurvives) {
  const absl::Status status =
      FollowFormerWorkers(path_, Survivors::kAreAnError, milliseconds(50)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("`fuser " + path_ + "` names them"));
  EndWorker();
  EXPECT_TRUE(FollowFormerWorkers(path_, Survivors::kAreAnError, milliseconds(50)).ok());
}

// The workers of the driver that starts all the same hold a lock of their own.
TEST_F(FormerWorkersTest, shouldBeLeftBehindByAServiceWithoutOutsideEffects) {
  {
    const auto presence = FollowFormerWorkers(path_, Survivors::kAreLogged, milliseconds(50));
    ASSERT_TRUE(presence.ok()) << presence.status();
    EXPECT_TRUE(IsLocked());
  }
  EXPECT_FALSE(IsLocked());
  EXPECT_EQ(waitpid(worker_, nullptr, WNOHANG), 0);
}

}  // namespace
}  // namespace baton::driver_process
