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

using ::testing::HasSubstr;

class InitTest : public ::testing::Test {
 protected:
  // Runs `script` under baton-init. It finds its directory in $1, and how often it has run in $n.
  BatondProcess::Options Running(const std::string& script) const {
    std::ofstream(path("script")) << "echo run >>$1/runs; n=$(wc -l <$1/runs)\n" << script;
    BatondProcess::Options options = WithArguments({"/bin/sh", path("script"), directory_.path()});
    options.program = BuiltBatond().substr(0, BuiltBatond().rfind('/')) + "/baton-init";
    return options;
  }
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }
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
  BatondProcess init(stage_,
                     Running("trap 'exit 7' TERM; echo >$1/up; while :; do sleep 0.01; done"));
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(path("up")); }));
  init.Signal(SIGTERM);
  EXPECT_EQ(init.Wait(), 7);
  EXPECT_EQ(runs(), 1u);
}

TEST_F(InitTest, shouldNotStartAgainWhatDiesWhileItStops) {
  BatondProcess init(
      stage_, Running("trap 'kill -KILL $$' TERM; echo >$1/up; while :; do sleep 0.01; done"));
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(path("up")); }));
  init.Signal(SIGTERM);
  EXPECT_EQ(init.Wait(), 128 + SIGKILL);
  EXPECT_EQ(runs(), 1u);
}

TEST_F(InitTest, shouldPassOnOtherSignals) {
  BatondProcess init(stage_,
                     Running("trap 'exit 0' HUP; echo >$1/up; while :; do sleep 0.01; done"));
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(path("up")); }));
  init.Signal(SIGHUP);
  EXPECT_EQ(init.Wait(), 0);
}

// As the init process would, where it is not that.
TEST_F(InitTest, shouldReapOrphans) {
  BatondProcess init(stage_, Running("(sh -c 'echo $$ >$0/new; mv $0/new $0/orphan' $1 &)\n"
                                     "while :; do sleep 0.01; done"));
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(path("orphan")); }));
  const pid_t orphan = std::stoi(ReadWholeFile(path("orphan")));
  EXPECT_TRUE(Eventually([&] { return kill(orphan, 0) != 0; }));
  init.Signal(SIGTERM);
  EXPECT_EQ(init.Wait(), 128 + SIGTERM);
}

}  // namespace
}  // namespace baton
