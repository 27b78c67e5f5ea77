// How batond starts a process that cannot be started.
#include "supervisor/batond/spawn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace {

// The program is on a file system that does not answer.
bool g_never_entered = false;
// A process that waits for that file system does not die.
bool g_immortal = false;
pid_t g_killed = -1;

}  // namespace

// In the place of libc's.
extern "C" int execve(const char* path, char* const arguments[],
                      char* const environment[]) noexcept {
  while (g_never_entered) pause();
  return static_cast<int>(syscall(SYS_execve, path, arguments, environment));
}

extern "C" int kill(pid_t pid, int signal) noexcept {
  g_killed = pid;
  return g_immortal ? 0 : static_cast<int>(syscall(SYS_kill, pid, signal));
}

namespace baton {
namespace {

using ::testing::HasSubstr;

SpawnRequest Program(const std::string& path,
                     std::chrono::milliseconds enter_timeout = std::chrono::seconds(30)) {
  SpawnRequest request;
  request.program = path;
  request.enter_timeout = enter_timeout;
  return request;
}

constexpr std::chrono::milliseconds kSoon(100);

bool HasChildren() { return waitpid(-1, nullptr, WNOHANG) >= 0; }

class SpawnTest : public ::testing::Test {
 protected:
  void TearDown() override {
    g_never_entered = g_immortal = false;
    g_killed = -1;
  }
};

TEST_F(SpawnTest, shouldReapAProcessWhoseProgramIsNotThere) {
  EXPECT_TRUE(absl::IsNotFound(Spawn(Program("/none")).status()));
  EXPECT_FALSE(HasChildren());
}

TEST_F(SpawnTest, shouldGiveUpAProgramThatIsNotEntered) {
  g_never_entered = true;
  const absl::Status status = Spawn(Program("/bin/true", kSoon)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cannot run /bin/true: it was not entered within 100 ms"));
  EXPECT_FALSE(HasChildren());
}

// The caller may be killed as soon as the program runs: it does not write the number.
TEST_F(SpawnTest, shouldHaveTheProcessWriteItsNumber) {
  const FileDescriptor file(memfd_create("pid", MFD_CLOEXEC));
  ASSERT_EQ(write(file.get(), "1234567890", 10), 10);  // an earlier, longer one
  SpawnRequest request = Program("/bin/true");
  request.pid_file = file.get();
  const absl::StatusOr<SpawnedProcess> child = Spawn(request);
  ASSERT_TRUE(child.ok()) << child.status();
  char text[16] = {};
  EXPECT_GT(pread(file.get(), text, sizeof(text), 0), 0);
  EXPECT_EQ(text, absl::StrCat(child->pid, "\n"));
  EXPECT_EQ(waitpid(child->pid, nullptr, 0), child->pid);
}

TEST_F(SpawnTest, shouldNotWaitForTheDeathOfWhatCannotDie) {
  g_never_entered = g_immortal = true;
  EXPECT_TRUE(absl::IsDeadlineExceeded(Spawn(Program("/bin/true", kSoon)).status()));
  const pid_t stuck = g_killed;
  ASSERT_GT(stuck, 0);
  EXPECT_TRUE(HasChildren());
  // The file system answers again.
  g_never_entered = g_immortal = false;
  ASSERT_EQ(kill(stuck, SIGKILL), 0);
  siginfo_t end = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(stuck), &end, WEXITED | WNOWAIT), 0);
  const absl::StatusOr<SpawnedProcess> child = Spawn(Program("/bin/true"));
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(waitpid(stuck, nullptr, WNOHANG), -1);  // it was reaped
  EXPECT_EQ(waitpid(child->pid, nullptr, 0), child->pid);
}

// A control that outlived its batond runs a file that has lost its name, perhaps.
TEST(ReplaceableProgramTest, shouldGoBackToWhatRanBeforeThoughAnotherStartedIt) {
  ReplaceableProgram program("/bin/true");
  const ProgramFile there = program.ToRun().value();
  const ProgramFile running = ProgramFile::Open("/proc/self/exe").value();
  ASSERT_TRUE(program.Replace(kSoon).ok());
  EXPECT_FALSE(program.on_probation());
  ASSERT_TRUE(program.Replace(kSoon, running).ok());
  EXPECT_TRUE(program.on_probation());
  EXPECT_TRUE(program.ToRun().value() == there);
  program.GiveUp();
  EXPECT_TRUE(program.ToRun().value() == running);
}

}  // namespace
}  // namespace baton
