// baton-init, with shell scripts in the place of batond.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/supervisor/batond/batond_process.h"

namespace baton {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// Notes that the script waits, and what it would leave behind; a signal interrupts the wait.
constexpr char kWait[] = "tail -f /dev/null & echo $! >$1/left; echo >$1/up; wait";

class InitTest : public ::testing::Test {
 protected:
  // Runs `script` under baton-init. It finds its directory in $1, and how often it has run in $n.
  BatondProcess::Options Running(const std::string& script) const {
    std::ofstream(path("script")) << "echo run >>$1/runs; n=$(wc -l <$1/runs)\n" << script;
    BatondProcess::Options options = WithArguments({"/bin/sh", path("script"), directory_.path()});
    options.program = Init();
    return options;
  }
  static std::string Init() {
    return BuiltBatond().substr(0, BuiltBatond().rfind('/')) + "/baton-init";
  }
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }
  bool waits() const {
    return Eventually([&] { return std::filesystem::exists(path("up")); });
  }
  pid_t left() const { return std::stoi(ReadWholeFile(path("left"))); }
  size_t runs() const { return ReadWholeFile(path("runs")).size() / 4; }

  const Stage stage_;
  const TemporaryDirectory directory_;
};

TEST_F(InitTest, shouldEndWithWhatEndedInOrder) {
  BatondProcess init(stage_, Running("exit 0"));
  EXPECT_EQ(init.Wait(), 0);
  EXPECT_EQ(runs(), 1u);
}

TEST_F(InitTest, shouldNotRepeatAWrongConfiguration) {
  BatondProcess init(stage_, Running("exit 2"));
  EXPECT_EQ(init.Wait(), 2);
  EXPECT_EQ(runs(), 1u);
}

TEST_F(InitTest, shouldStartAgainWhatWasKilledOrFailed) {
  BatondProcess init(stage_, Running("case $n in 1) kill -KILL $$;; 2) exit 1;; esac; exit 0"));
  EXPECT_EQ(init.Wait(), 0);
  EXPECT_EQ(runs(), 3u);
  EXPECT_THAT(init.standard_error(), HasSubstr("was killed by signal 9; it is started again"));
  EXPECT_THAT(init.standard_error(), HasSubstr("ended with exit code 1; it is started again"));
}

TEST_F(InitTest, shouldSayWhatItCannotRun) {
  BatondProcess::Options options = Running("");
  options.arguments = {"/no/such/program"};
  BatondProcess init(stage_, std::move(options));
  EXPECT_EQ(init.Wait(), 126);
  EXPECT_THAT(init.standard_error(), HasSubstr("cannot run /no/such/program: No such file"));
}

TEST_F(InitTest, shouldPassOnThatItIsToldToStop) {
  BatondProcess init(stage_, Running("trap 'exit 7' TERM; " + std::string(kWait)));
  ASSERT_TRUE(waits());
  init.Signal(SIGTERM);
  EXPECT_EQ(init.Wait(), 7);
  EXPECT_EQ(runs(), 1u);
}

TEST_F(InitTest, shouldNotStartAgainWhatDiesWhileItStops) {
  BatondProcess init(stage_, Running("trap 'kill -KILL $$' TERM; " + std::string(kWait)));
  ASSERT_TRUE(waits());
  init.Signal(SIGTERM);
  EXPECT_EQ(init.Wait(), 128 + SIGKILL);
  EXPECT_EQ(runs(), 1u);
  EXPECT_TRUE(IsDead(left()));
}

// batond takes the second for haste.
TEST_F(InitTest, shouldPassOnThatItIsToldToStopTwice) {
  BatondProcess init(stage_, Running("trap 'echo >$1/once; trap \"exit 8\" TERM' TERM; " +
                                     std::string(kWait) + "; wait"));
  ASSERT_TRUE(waits());
  init.Signal(SIGTERM);
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(path("once")); }));
  init.Signal(SIGTERM);
  EXPECT_EQ(init.Wait(), 8);
  EXPECT_EQ(runs(), 1u);
}

// Wherever the signal finds it: dead, as a rule, or about to die again.
TEST_F(InitTest, shouldKillWhatIsLeftWhenToldToStopBetweenTwoLives) {
  BatondProcess init(
      stage_, Running("[ $n -gt 1 ] || { tail -f /dev/null & echo $! >$1/left; }; kill -KILL $$"));
  ASSERT_TRUE(Eventually([&] { return runs() >= 3; }));
  EXPECT_FALSE(IsDead(left()));
  init.Signal(SIGTERM);
  EXPECT_THAT(init.Wait(), AnyOf(1, 128 + SIGKILL, 128 + SIGTERM));
  EXPECT_TRUE(IsDead(left()));
}

TEST_F(InitTest, shouldTryAgainWhatHasRunAndCannotBeRunForNow) {
  BatondProcess init(stage_, Running("case $n in 1) exit 1;; 2) exit 126;; esac; exit 0"));
  EXPECT_EQ(init.Wait(), 0);
  EXPECT_EQ(runs(), 3u);
}

TEST_F(InitTest, shouldPassOnOtherSignals) {
  BatondProcess init(stage_, Running("trap 'exit 0' HUP; " + std::string(kWait)));
  ASSERT_TRUE(waits());
  init.Signal(SIGHUP);
  EXPECT_EQ(init.Wait(), 0);
}

// baton-init reaps orphans also where it is not process 1.
TEST_F(InitTest, shouldReapOrphans) {
  BatondProcess init(stage_, Running("(sh -c 'echo $$ >$0/new; mv $0/new $0/orphan' $1 &)\n" +
                                     std::string(kWait)));
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(path("orphan")); }));
  const pid_t orphan = std::stoi(ReadWholeFile(path("orphan")));
  EXPECT_TRUE(Eventually([&] { return kill(orphan, 0) != 0; }));
  ASSERT_TRUE(waits());
  init.Signal(SIGTERM);
  EXPECT_EQ(init.Wait(), 128 + SIGTERM);
  EXPECT_TRUE(IsDead(left()));
}

TEST_F(InitTest, shouldKillABatondThatHangsAndStartItAgain) {
  BatondProcess::Options options = WithArguments(
      {BuiltBatond(), "--dev", "--state-dir", stage_.state_dir(), "--libexec", stage_.libexec()});
  options.program = Init();
  options.environment["WATCHDOG_USEC"] = "3000000";
  BatondProcess init(stage_, std::move(options));
  ASSERT_TRUE(init.WaitUntilReady()) << init.standard_error();
  const std::string thread = std::to_string(init.pid());
  const pid_t batond =
      std::stoi(ReadWholeFile("/proc/" + thread + "/task/" + thread + "/children"));
  kill(batond, SIGSTOP);
  // The next batond starts another control, and finds the driver.
  ASSERT_TRUE(Eventually([&] { return stage_.lives("control").size() >= 2; }))
      << init.standard_error();
  EXPECT_TRUE(IsDead(batond));
  EXPECT_EQ(stage_.lives("keeper").size(), 1u);
  EXPECT_THAT(init.standard_error(), HasSubstr("has shown no sign of life for 3000 ms"));
  EXPECT_THAT(init.standard_error(), HasSubstr("hung, and was killed by signal 9; it is started"));
  EXPECT_TRUE(
      init.Tells("batond_followed: the batond before this one hung, and was killed by signal 9; "
                 "this one"))
      << init.standard_error();
  init.Signal(SIGTERM);
  EXPECT_EQ(init.Wait(), 0) << init.standard_error();
}

TEST_F(InitTest, shouldLeaveAloneWhatHasNeverShownLife) {
  BatondProcess::Options options = Running("trap 'exit 0' HUP; " + std::string(kWait));
  options.environment["WATCHDOG_USEC"] = "1000";
  BatondProcess init(stage_, std::move(options));
  ASSERT_TRUE(waits());
  init.Signal(SIGHUP);
  EXPECT_EQ(init.Wait(), 0);
  EXPECT_EQ(runs(), 1u);
}

TEST_F(InitTest, shouldTellBatondWhereToShowLifeAndHowTheFormerEnded) {
  BatondProcess init(stage_,
                     Running("case $n in 1) kill -KILL $$;; esac\n"
                             "[ $WATCHDOG_PID = $$ ] && [ $BATON_INIT = 1 ] || exit 0\n"
                             "echo $NOTIFY_SOCKET $WATCHDOG_USEC $BATON_FORMER_END >$1/told"));
  EXPECT_EQ(init.Wait(), 0);
  const std::string told = ReadWholeFile(path("told"));
  EXPECT_TRUE(told.starts_with("@")) << told;
  EXPECT_THAT(told, HasSubstr(" 60000000 was killed by signal 9\n"));
}

TEST_F(InitTest, shouldLeaveTheWatchToWhoeverListensAlready) {
  BatondProcess::Options options = Running("echo $NOTIFY_SOCKET $BATON_INIT >$1/told");
  options.environment["NOTIFY_SOCKET"] = path("manager");
  BatondProcess init(stage_, std::move(options));
  EXPECT_EQ(init.Wait(), 0);
  EXPECT_EQ(ReadWholeFile(path("told")), path("manager") + "\n");
}

// Ignored signals of children hide their ends, and a process that ignores them hands that on.
TEST_F(InitTest, shouldNoticeEndsWhereSignalsOfChildrenAreIgnored) {
  BatondProcess::Options options = Running("exit 0");
  options.arguments.insert(options.arguments.begin(), options.program);
  options.arguments.insert(options.arguments.begin(), "--ignore-signal=CHLD");
  options.program = "/usr/bin/env";
  BatondProcess init(stage_, std::move(options));
  EXPECT_EQ(init.Wait(), 0);
}

}  // namespace
}  // namespace baton
