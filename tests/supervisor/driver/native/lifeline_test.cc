#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "supervisor/driver/native/lifeline.h"
#include "tests/harness/temp_directory.h"

namespace baton::driver_process {
namespace {

// A worker's process. It says that it is tied by closing its end of a pipe.
pid_t StartWorker(Pipe& lifeline) {
  int tied[2];
  if (pipe2(tied, O_CLOEXEC) != 0) return -1;
  const pid_t worker = fork();
  if (worker == 0) {
    lifeline.writing.Reset();
    absl::StatusOr<FileDescriptor> own = OpenOwnEnd(lifeline.reading.get());
    if (!own.ok() || !TieToLifeline(own->Release()).ok()) _exit(1);
    close(tied[0]);
    close(tied[1]);
    for (;;) pause();
  }
  close(tied[1]);
  char byte;
  (void)!read(tied[0], &byte, 1);
  close(tied[0]);
  return worker;
}

bool WasKilled(pid_t worker) {
  int status = 0;
  return waitpid(worker, &status, 0) == worker && WIFSIGNALED(status) &&
         WTERMSIG(status) == SIGKILL;
}

class LifelineTest : public ::testing::Test {
 protected:
  void SetUp() override { lifeline_ = MakePipe().value(); }
  // Closes the last writing end, as the end of the process that forked all workers would.
  void LetGo() { lifeline_.writing.Reset(); }
  Pipe lifeline_;
};

TEST_F(LifelineTest, shouldKillAllWorkersWhenNobodyHoldsItAnyMore) {
  const pid_t first = StartWorker(lifeline_), second = StartWorker(lifeline_);
  LetGo();
  EXPECT_TRUE(WasKilled(first));
  EXPECT_TRUE(WasKilled(second));
}

TEST_F(LifelineTest, shouldKillAWorkerThatIsStopped) {
  const pid_t worker = StartWorker(lifeline_);
  kill(worker, SIGSTOP);
  LetGo();
  EXPECT_TRUE(WasKilled(worker));
}

TEST_F(LifelineTest, shouldKillNobodyWhileSomebodyHoldsIt) {
  const FileDescriptor other(fcntl(lifeline_.writing.get(), F_DUPFD_CLOEXEC, 0));
  const pid_t worker = StartWorker(lifeline_);
  LetGo();
  EXPECT_EQ(waitpid(worker, nullptr, WNOHANG), 0);
  kill(worker, SIGKILL);
  EXPECT_TRUE(WasKilled(worker));
}

TEST_F(LifelineTest, shouldNotTieToWhatIsLetGo) {
  FileDescriptor own = OpenOwnEnd(lifeline_.reading.get()).value();
  LetGo();
  signal(SIGIO, SIG_IGN);
  EXPECT_TRUE(absl::IsUnavailable(TieToLifeline(own.get())));
}

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
