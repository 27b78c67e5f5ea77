#include "lib/base/fork_mark.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace baton {
namespace {

TEST(ForkMarkTest, shouldTellAProcessFromItsChildrenAndTheirs) {
  const ForkMark mark = ForkMark::Create().value();
  EXPECT_TRUE(mark.IsOurs());
  const pid_t child = fork();
  if (child == 0) {
    if (mark.IsOurs()) _exit(1);
    const pid_t grandchild = fork();
    if (grandchild == 0) _exit(mark.IsOurs() ? 2 : 0);
    int status = 0;
    waitpid(grandchild, &status, 0);
    _exit(WEXITSTATUS(status));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(mark.IsOurs());
}

TEST(ForkMarkTest, shouldBeTheChildsOwnWhenThatCreatesOne) {
  const ForkMark mark = ForkMark::Create().value();
  const pid_t child = fork();
  if (child == 0) _exit(ForkMark::Create().value().IsOurs() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace baton
