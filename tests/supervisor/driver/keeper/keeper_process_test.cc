// A driver's keeper, of shell scripts: when it counts as hung, and which program is started.
#include "supervisor/driver/keeper/keeper_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/harness/expectations.h"
#include "tests/harness/temp_directory.h"
#include "tests/harness/wait_until.h"

namespace baton::driver_process {
namespace {

using Silence = KeeperProcess::Silence;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr char kStays[] = "exec sleep 1000";

class KeeperProcessTest : public ::testing::Test {
 protected:
  // In place of what there was, as a package does it.
  void Put(const std::string& script, mode_t mode = 0755) {
    const std::string file = program_ + ".new";
    std::ofstream(file) << "#!/bin/bash\n" << script << "\n";
    ASSERT_EQ(chmod(file.c_str(), mode), 0);
    std::filesystem::rename(file, program_);
  }
  std::string AwaitEnd(KeeperProcess& keeper, int* exit_code = nullptr) {
    std::string how;
    int code = -1;
    EXPECT_OK(harness::WaitUntil("the end", [&] {
      const auto end = keeper.Reap(&code);
      how = end.value_or("");
      return end.has_value();
    }));
    if (exit_code != nullptr) *exit_code = code;
    return how;
  }
  static void AwaitOrder(KeeperProcess& keeper) {
    ASSERT_OK(harness::WaitUntil("what it says", [&] {
      pollfd orders = {keeper.orders().fd(), POLLIN, 0};
      return poll(&orders, 1, 0) > 0;
    }));
  }
  static std::string CommandLineOf(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  const harness::TempDirectory directory_ = harness::TempDirectory::Create().value();
  const std::string program_ = directory_.File("baton-keeper");
};

TEST_F(KeeperProcessTest, shouldNoticeAHangAndEndItWhereItIsToldTo) {
  Put(kStays);
  KeeperProcess keeper(program_, milliseconds(1), /*network=*/-1);
  ASSERT_OK(keeper.Start(""));
  // One that has never shown life is given its time to start.
  EXPECT_EQ(keeper.LookForHang(), Silence::kNone);
  EXPECT_EQ(keeper.hang_begins(), std::nullopt);
  keeper.NoteLife();
  EXPECT_LE(keeper.hang_begins(), KeeperProcess::Clock::now() + milliseconds(1));
  ASSERT_OK(
      harness::WaitUntil("the hang", [&] { return keeper.LookForHang() == Silence::kBegins; }));
  EXPECT_EQ(keeper.hang_begins(), std::nullopt);
  EXPECT_TRUE(keeper.runs());
  keeper.NoteLife();
  EXPECT_EQ(keeper.LookForHang(), Silence::kEnds);
  keeper.SetKillsHung(true);
  ASSERT_OK(
      harness::WaitUntil("the hang", [&] { return keeper.LookForHang() == Silence::kBegins; }));
  EXPECT_THAT(AwaitEnd(keeper), HasSubstr("signal 9"));
}

// It may have shown life with what the driver has not read.
TEST_F(KeeperProcessTest, shouldNotCountAnUnreadKeeperAsHung) {
  Put("printf x >&$BATON_ORDERS_FD; exec sleep 1000");
  KeeperProcess keeper(program_, milliseconds(0), /*network=*/-1);
  ASSERT_OK(keeper.Start(""));
  keeper.NoteLife();
  ASSERT_NO_FATAL_FAILURE(AwaitOrder(keeper));
  (void)keeper.LookForHang();  // it may have been silent before
  EXPECT_NE(keeper.LookForHang(), Silence::kBegins);
  keeper.Signal(SIGKILL);
  (void)AwaitEnd(keeper);
}

TEST_F(KeeperProcessTest, shouldCountCrashes) {
  Put("exit 3");
  KeeperProcess keeper(program_, milliseconds(1000), /*network=*/-1);
  ASSERT_OK(keeper.Start(""));
  int exit_code = 0;
  EXPECT_THAT(AwaitEnd(keeper, &exit_code), HasSubstr("exit code 3"));
  EXPECT_EQ(exit_code, 3);
  EXPECT_EQ(keeper.crashes(), 1u);
  EXPECT_FALSE(keeper.TakeGivenUp());  // there is no other program
}

// Peers wait for the next keeper, whatever kills one after the other. Keepers that crash cost time.
TEST_F(KeeperProcessTest, shouldPauseForLongOnlyAfterCrashesInARow) {
  const std::string crash = directory_.File("crash");
  Put("[ ! -e " + crash + " ] || exit 3; " + kStays);
  KeeperProcess keeper(program_, milliseconds(1000), /*network=*/-1);
  const auto pause_after = [&](int signal) {
    EXPECT_OK(keeper.Start(""));
    if (signal != 0) keeper.Signal(signal);
    (void)AwaitEnd(keeper);
    return keeper.NextPause();
  };
  for (int i = 0; i < 12; ++i) EXPECT_LE(pause_after(SIGKILL), KeeperProcess::kMostPause);
  std::ofstream(crash) << "now";
  for (int i = 0; i < 3; ++i) EXPECT_LE(pause_after(0), KeeperProcess::kMostPause);
  EXPECT_EQ(pause_after(0), KeeperProcess::kMostPauseAfterCrashes);
  EXPECT_EQ(keeper.crashes(), 4u);
  std::filesystem::remove(crash);
  EXPECT_EQ(pause_after(SIGKILL), KeeperProcess::kMostPause);
  EXPECT_EQ(keeper.crashes(), 0u);
}

TEST_F(KeeperProcessTest, shouldSayThatThereIsNoProgram) {
  KeeperProcess keeper(program_, milliseconds(1000), /*network=*/-1);
  EXPECT_THAT(std::string(keeper.Start("").message()), HasSubstr(program_));
  EXPECT_FALSE(keeper.runs());
}

// A package puts another file in the place of the one that runs.
class ReplacedKeeperTest : public KeeperProcessTest {
 protected:
  void SetUp() override {
    Put(kStays);
    ASSERT_OK(keeper_.Start(""));
    keeper_.NoteLife();
  }
  std::string AwaitGivenUp() {
    std::string why;
    EXPECT_OK(harness::WaitUntil("the end of the probation", [&] {
      keeper_.LookAtNext();
      why = keeper_.TakeGivenUp().value_or("");
      return !why.empty();
    }));
    return why;
  }
  // Kills the keeper, and expects `script`'s to be started.
  void ExpectProgramOf(const std::string& script) {
    keeper_.Signal(SIGKILL);
    (void)AwaitEnd(keeper_);
    ASSERT_OK(keeper_.Start(""));
    ExpectRuns(script);
  }
  void ExpectRuns(const std::string& script) {
    const std::string last = script.substr(script.rfind(' ') + 1);
    EXPECT_OK(harness::WaitUntil("the program", [&] {
      return CommandLineOf(keeper_.pid()).find(last) != std::string::npos;
    }));
  }
  void AwaitNext() { AwaitNextOf(keeper_); }
  // Until the one that runs has ended for the one beside it.
  void AwaitNextOf(KeeperProcess& keeper) {
    EXPECT_OK(harness::WaitUntil("the end of the former keeper", [&] {
      keeper.LookAtNext();
      int code = 0;
      return keeper.Reap(&code).has_value();
    }));
    ASSERT_TRUE(keeper.FollowWithNext());
  }

  KeeperProcess keeper_{program_, milliseconds(60'000), /*network=*/-1};
};

constexpr char kNext[] = "printf x >&$BATON_ORDERS_FD; exec sleep 2000";

TEST_F(ReplacedKeeperTest, shouldRunWhatRanBeforeUntilToldOtherwise) {
  Put(kNext);
  ASSERT_NO_FATAL_FAILURE(ExpectProgramOf(kStays));
  std::filesystem::remove(program_);
  ASSERT_NO_FATAL_FAILURE(ExpectProgramOf(kStays));
}

TEST_F(ReplacedKeeperTest, shouldBeFollowedByTheOneBesideItOnceThatGivesAnOrder) {
  Put(kNext);
  const pid_t former = keeper_.pid();
  ASSERT_OK(keeper_.StartNext(""));
  EXPECT_EQ(keeper_.pid(), former);
  EXPECT_EQ(keeper_.StartNext("").code(), absl::StatusCode::kAborted);
  ASSERT_NO_FATAL_FAILURE(AwaitNext());
  EXPECT_NE(keeper_.pid(), former);
  ASSERT_NO_FATAL_FAILURE(ExpectRuns(kNext));
  // A kill from outside says nothing of its program.
  ASSERT_NO_FATAL_FAILURE(ExpectProgramOf(kNext));
  EXPECT_FALSE(keeper_.TakeGivenUp());
}

TEST_F(ReplacedKeeperTest, shouldGoOnWhenTheOneBesideItDoesNotServe) {
  const pid_t former = keeper_.pid();
  for (const char* const bad : {"exit 3", "kill -SEGV $$", "exit 0"}) {
    Put(bad);
    ASSERT_OK(keeper_.StartNext(""));
    EXPECT_THAT(AwaitGivenUp(), HasSubstr("before it gave an order")) << bad;
    EXPECT_EQ(keeper_.pid(), former);
  }
  // One that cannot be run, and none.
  Put("", 0644);
  EXPECT_FALSE(keeper_.StartNext("").ok());
  std::filesystem::remove(program_);
  EXPECT_FALSE(keeper_.StartNext("").ok());
  EXPECT_EQ(keeper_.pid(), former);
  ASSERT_NO_FATAL_FAILURE(ExpectProgramOf(kStays));
}

// It had begun, and crashes soon.
TEST_F(ReplacedKeeperTest, shouldReturnToTheProgramBeforeWhenTheNextCrashes) {
  Put("printf x >&$BATON_ORDERS_FD; while :; do sleep 0.05; done");
  ASSERT_OK(keeper_.StartNext(""));
  ASSERT_NO_FATAL_FAILURE(AwaitNext());
  keeper_.NoteLife();
  keeper_.Signal(SIGSEGV);
  (void)AwaitEnd(keeper_);
  EXPECT_THAT(keeper_.TakeGivenUp().value_or(""), HasSubstr("its first keeper was killed"));
  ASSERT_OK(keeper_.Start(""));
  ASSERT_NO_FATAL_FAILURE(ExpectRuns(kStays));
}

// A keeper that has lived for long has proven its program, which is the one to go back to.
TEST_F(ReplacedKeeperTest, shouldKeepAProgramWhoseKeeperHasLivedForLong) {
  KeeperProcess watched(program_, milliseconds(60'000), /*network=*/-1);
  ASSERT_OK(watched.Start(""));
  Put(kNext);
  ASSERT_OK(watched.StartNext("", std::chrono::minutes(1)));
  ASSERT_NO_FATAL_FAILURE(AwaitNextOf(watched));
  watched.NoteLife();
  ASSERT_OK(keeper_.StartNext(""));
  ASSERT_NO_FATAL_FAILURE(AwaitNext());
  keeper_.NoteLife();
  const auto proven = std::chrono::steady_clock::now() + KeeperProcess::kLongLife;
  ASSERT_OK(harness::WaitUntil(
      "a long life", [&] { return std::chrono::steady_clock::now() >= proven; },
      KeeperProcess::kLongLife * 4));
  keeper_.NoteLife();
  Put("exit 3");
  ASSERT_OK(keeper_.StartNext(""));
  (void)AwaitGivenUp();
  keeper_.Signal(SIGSEGV);
  (void)AwaitEnd(keeper_);
  EXPECT_FALSE(keeper_.TakeGivenUp());
  ASSERT_OK(keeper_.Start(""));
  ASSERT_NO_FATAL_FAILURE(ExpectRuns(kNext));
  // A longer probation was asked for.
  watched.NoteLife();
  watched.Signal(SIGSEGV);
  (void)AwaitEnd(watched);
  EXPECT_THAT(watched.TakeGivenUp().value_or(""), HasSubstr("its first keeper was killed"));
}

// Whatever the policy says of keepers that have proven themselves.
TEST_F(ReplacedKeeperTest, shouldReturnToTheProgramBeforeWhenTheNextHangs) {
  KeeperProcess keeper(program_, milliseconds(1), /*network=*/-1);
  ASSERT_OK(keeper.Start(""));
  Put("exec sleep 2000");
  ASSERT_OK(keeper.StartNext(""));
  keeper.Signal(SIGKILL);
  (void)AwaitEnd(keeper);
  // Nobody knows whether it would have served.
  EXPECT_FALSE(keeper.FollowWithNext());
  EXPECT_THAT(keeper.TakeGivenUp().value_or(""), HasSubstr("ended first"));
  Put(kNext);
  ASSERT_OK(keeper.Start(""));
  ASSERT_OK(keeper.StartNext(""));
  ASSERT_OK(harness::WaitUntil("the end of the former keeper", [&] {
    keeper.LookAtNext();
    int code = 0;
    return keeper.Reap(&code).has_value();
  }));
  ASSERT_TRUE(keeper.FollowWithNext());
  char order = 0;
  ASSERT_EQ(read(keeper.orders().fd(), &order, 1), 1);
  keeper.NoteLife();
  ASSERT_OK(
      harness::WaitUntil("the hang", [&] { return keeper.LookForHang() == Silence::kBegins; }));
  (void)AwaitEnd(keeper);
  EXPECT_THAT(keeper.TakeGivenUp().value_or(""), HasSubstr("signal 9"));
}

TEST_F(ReplacedKeeperTest, shouldReturnToTheProgramBeforeWhenTheNextSpeaksNonsense) {
  Put(kNext);
  ASSERT_OK(keeper_.StartNext(""));
  ASSERT_NO_FATAL_FAILURE(AwaitNext());
  keeper_.KillFaulty();
  (void)AwaitEnd(keeper_);
  EXPECT_TRUE(keeper_.TakeGivenUp());
  ASSERT_OK(keeper_.Start(""));
  ASSERT_NO_FATAL_FAILURE(ExpectRuns(kStays));
}

// A keeper that is asked to end and does not is killed: the next one waits.
TEST_F(ReplacedKeeperTest, shouldBeKilledWhenItDoesNotEndForTheNext) {
  Put("trap '' TERM; printf x >&$BATON_ORDERS_FD; while :; do sleep 0.05; done");
  KeeperProcess stubborn(program_, milliseconds(60'000), /*network=*/-1);
  ASSERT_OK(stubborn.Start(""));
  ASSERT_NO_FATAL_FAILURE(AwaitOrder(stubborn));
  Put(kNext);
  ASSERT_OK(stubborn.StartNext(""));
  std::string how;
  ASSERT_OK(harness::WaitUntil(
      "its end",
      [&] {
        stubborn.LookAtNext();
        int code = 0;
        how = stubborn.Reap(&code).value_or("");
        return !how.empty();
      },
      KeeperProcess::kEndTimeout * 5));
  EXPECT_THAT(how, HasSubstr("signal 9"));
  EXPECT_TRUE(stubborn.FollowWithNext());
}

// The keeper that a package has not replaced starts workers with the launcher of its release.
TEST_F(KeeperProcessTest, shouldHandOverTheLauncherOfTheProgramThatItRuns) {
  const auto put_launcher = [this](const char* text) {
    std::ofstream(directory_.File("launcher.new")) << text;
    std::filesystem::rename(directory_.File("launcher.new"), directory_.File("baton-launch"));
  };
  const auto launcher_of = [](KeeperProcess& keeper) {
    AwaitOrder(keeper);
    char text[16] = {};
    const ssize_t length = recv(keeper.orders().fd(), text, sizeof(text), 0);
    return std::string(text, length > 0 ? static_cast<size_t>(length) : 0);
  };
  put_launcher("first");
  Put("printf %s $(cat /proc/self/fd/$BATON_LAUNCHER_FD) >&$BATON_ORDERS_FD; exec sleep 1000");
  KeeperProcess keeper(program_, milliseconds(60'000), /*network=*/-1);
  ASSERT_OK(keeper.Start(""));
  EXPECT_EQ(launcher_of(keeper), "first");
  put_launcher("second");
  keeper.Signal(SIGKILL);
  (void)AwaitEnd(keeper);
  ASSERT_OK(keeper.Start(""));
  EXPECT_EQ(launcher_of(keeper), "first");
  // Only the launcher is another: that is a new program, too.
  ASSERT_OK(keeper.StartNext(""));
  ASSERT_OK(harness::WaitUntil("the end of the former keeper", [&] {
    keeper.LookAtNext();
    int code = 0;
    return keeper.Reap(&code).has_value();
  }));
  ASSERT_TRUE(keeper.FollowWithNext());
  EXPECT_EQ(launcher_of(keeper), "second");
  keeper.Signal(SIGKILL);
  (void)AwaitEnd(keeper);
}

}  // namespace
}  // namespace baton::driver_process
