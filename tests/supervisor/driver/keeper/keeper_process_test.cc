// A driver's keeper, of shell scripts: when it counts as hung, and which program is started.
#include "supervisor/driver/keeper/keeper_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

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
    std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
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
  keeper.NoteLife();
  ASSERT_OK(
      harness::WaitUntil("the hang", [&] { return keeper.LookForHang() == Silence::kBegins; }));
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
  ASSERT_OK(harness::WaitUntil("what it says", [&] {
    pollfd orders = {keeper.orders().fd(), POLLIN, 0};
    return poll(&orders, 1, 0) > 0;
  }));
  (void)keeper.LookForHang();  // it may have been silent before
  EXPECT_NE(keeper.LookForHang(), Silence::kBegins);
  keeper.Signal(SIGKILL);
  (void)AwaitEnd(keeper);
}

TEST_F(KeeperProcessTest, shouldCountCrashesAndNoKills) {
  Put("exit 3");
  KeeperProcess keeper(program_, milliseconds(1000), /*network=*/-1);
  ASSERT_OK(keeper.Start(""));
  int exit_code = 0;
  EXPECT_THAT(AwaitEnd(keeper, &exit_code), HasSubstr("exit code 3"));
  EXPECT_EQ(exit_code, 3);
  EXPECT_EQ(keeper.crashes(), 1u);
  EXPECT_FALSE(keeper.TakeGivenUp());  // there is no other program
  Put(kStays);
  ASSERT_OK(keeper.Start(""));
  keeper.Signal(SIGKILL);
  (void)AwaitEnd(keeper);
  EXPECT_EQ(keeper.crashes(), 1u);
}

TEST_F(KeeperProcessTest, shouldSayThatThereIsNoProgram) {
  KeeperProcess keeper(program_, milliseconds(1000), /*network=*/-1);
  EXPECT_THAT(std::string(keeper.Start("").message()), HasSubstr(program_));
  EXPECT_FALSE(keeper.runs());
}

// A keeper that has lived for long proves its program, to which the driver goes back.
class ProvenProgramTest : public KeeperProcessTest {
 protected:
  void SetUp() override {
    Put(kStays);
    ASSERT_OK(keeper_.Start(""));
    keeper_.NoteLife();
    const auto proven = std::chrono::steady_clock::now() + KeeperProcess::kLongLife;
    ASSERT_OK(harness::WaitUntil(
        "a long life", [&] { return std::chrono::steady_clock::now() >= proven; },
        KeeperProcess::kLongLife * 4));
    keeper_.Signal(SIGKILL);
    (void)AwaitEnd(keeper_);
  }
  void ExpectTheFormerProgram() {
    ASSERT_OK(keeper_.Start(""));
    ASSERT_OK(harness::WaitUntil("the former program", [this] {
      return CommandLineOf(keeper_.pid()).find("sleep") != std::string::npos;
    }));
    keeper_.Signal(SIGKILL);
    (void)AwaitEnd(keeper_);
  }

  KeeperProcess keeper_{program_, milliseconds(60'000), /*network=*/-1};
};

TEST_F(ProvenProgramTest, shouldHaveItsFileOpenOnce) {
  const auto open = [this] {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      count += std::filesystem::read_symlink(entry, error) == program_;
    }
    return count;
  };
  EXPECT_EQ(open(), 1u);
  ExpectTheFormerProgram();
  EXPECT_EQ(open(), 1u);
}

TEST_F(ProvenProgramTest, shouldBeStartedAgainAfterOneThatDoesNotServe) {
  for (const char* const bad : {"exit 3", "kill -SEGV $$", "exit 0"}) {
    Put(bad);
    ASSERT_OK(keeper_.Start(""));
    (void)AwaitEnd(keeper_);
    EXPECT_TRUE(keeper_.TakeGivenUp()) << bad;
    EXPECT_FALSE(keeper_.TakeGivenUp()) << bad;
    EXPECT_TRUE(keeper_.has_given_up()) << bad;
    ExpectTheFormerProgram();
    ExpectTheFormerProgram();
    EXPECT_FALSE(keeper_.TakeGivenUp()) << bad;
  }
  // One that cannot be run, and none.
  Put("", 0644);
  ExpectTheFormerProgram();
  EXPECT_TRUE(keeper_.TakeGivenUp());
  std::filesystem::remove(program_);
  ExpectTheFormerProgram();
  // Another file is tried. That it was killed says nothing of it.
  Put("exec sleep 2000");
  ASSERT_OK(keeper_.Start(""));
  EXPECT_FALSE(keeper_.has_given_up());
  keeper_.Signal(SIGKILL);
  (void)AwaitEnd(keeper_);
  EXPECT_FALSE(keeper_.TakeGivenUp());
}

}  // namespace
}  // namespace baton::driver_process
