#include "supervisor/batond/child.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/native/mappings.h"

namespace baton {
namespace {

// A child of that name that has ended, and that nobody has waited for.
pid_t EndedChild(const char* name) {
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_NAME, name);
    _exit(0);
  }
  siginfo_t ended = {};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  return child;
}

TEST(OrphansTest, shouldReapUnmappers) {
  const pid_t first = EndedChild(native::kUnmapperName), second = EndedChild(native::kUnmapperName);
  ReapOrphans();
  EXPECT_EQ(waitpid(first, nullptr, WNOHANG), -1);
  EXPECT_EQ(waitpid(second, nullptr, WNOHANG), -1);
}

TEST(OrphansTest, shouldReapWhatDeadDriversHaveLeft) {
  for (const char* name : {"baton-nic", "baton-twin", "baton-keeper", "baton-broker"}) {
    const pid_t orphan = EndedChild(name);
    ReapOrphans();
    EXPECT_EQ(waitpid(orphan, nullptr, WNOHANG), -1) << name;
  }
}

TEST(OrphansTest, shouldLeaveOthersToWhoWaitsForThem) {
  const pid_t other = EndedChild("baton-driver");
  const pid_t unmapper = EndedChild(native::kUnmapperName);
  ReapOrphans();
  EXPECT_EQ(waitpid(unmapper, nullptr, WNOHANG), -1);
  EXPECT_EQ(waitpid(other, nullptr, WNOHANG), other);
}

TEST(OrphansTest, shouldNotWait) {
  const pid_t living = fork();
  if (living == 0) {
    for (;;) pause();
  }
  ReapOrphans();
  EXPECT_EQ(waitpid(living, nullptr, WNOHANG), 0);
  kill(living, SIGKILL);
  EXPECT_EQ(waitpid(living, nullptr, 0), living);
}

}  // namespace
}  // namespace baton
