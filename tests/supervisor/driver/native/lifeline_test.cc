#include "supervisor/driver/native/lifeline.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

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
  // As who has forked them all.
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

}  // namespace
}  // namespace baton::driver_process
