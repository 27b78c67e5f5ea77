#include "supervisor/driver/broker/broker_board.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "tests/harness/expectations.h"
#include "tests/harness/wait_until.h"

namespace baton::driver_process {
namespace {

class BrokerBoardTest : public ::testing::Test {
 protected:
  // A process that takes the lock, says so on the board, and keeps it.
  pid_t Driver() {
    const pid_t child = fork();
    if (child != 0) return child;
    if (!TakeDrive(board_.get()).ok()) _exit(1);
    board_->driver.store(getpid());
    for (;;) pause();
  }
  bool Drives(pid_t process) {
    return harness::WaitUntil("the lock", [&] { return board_->driver.load() == process; }).ok();
  }
  void Kill(pid_t process) {
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
  }

  const SharedBoard board_ = SharedBoard::Make().value();
};

TEST_F(BrokerBoardTest, shouldLetOneDriveAfterTheOther) {
  pid_t former = Driver();
  ASSERT_TRUE(Drives(former));
  for (int i = 0; i < 20; ++i) {
    const pid_t heir = Driver();
    EXPECT_EQ(board_->driver.load(), former);
    Kill(former);
    EXPECT_TRUE(Drives(heir));
    former = heir;
  }
  Kill(former);
}

// Two wait, and one of them dies first.
TEST_F(BrokerBoardTest, shouldLoseNoLockWithAWaiter) {
  const pid_t former = Driver();
  ASSERT_TRUE(Drives(former));
  const pid_t dies = Driver(), heir = Driver();
  Kill(dies);
  Kill(former);
  EXPECT_TRUE(Drives(heir));
  Kill(heir);
}

TEST_F(BrokerBoardTest, shouldKeepTheFirstStatus) {
  BoardStatus& status = board_->lost;
  EXPECT_OK(status.Load());
  status.Store(absl::UnavailableError(std::string(1000, 'x')));
  status.Store(absl::InternalError("later"));
  EXPECT_TRUE(absl::IsUnavailable(status.Load()));
  EXPECT_EQ(status.Load().message(), std::string(sizeof(status.message) - 1, 'x'));
}

}  // namespace
}  // namespace baton::driver_process
