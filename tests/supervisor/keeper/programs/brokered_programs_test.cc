#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/channel/carried_status.h"
#include "supervisor/keeper/programs/brokered_programs.h"
#include "supervisor/keeper/programs/watched_process.h"
#include "tests/harness/binaries.h"
#include "tests/harness/temp_directory.h"
#include "tests/lib/driver/commit_writer.h"

namespace baton::keeper {
namespace {

using ::testing::HasSubstr;

// Knows one order: to hold.
class HoldingDriverClient final : public DriverClient {
 public:
  const arena::Arena& arena() const override { return arena_; }
  std::string_view device_name() const override { return "none"; }
  int news_fd() const override { return -1; }
  internal::DriverAnswer Execute(const internal::DriverOrder& order, std::vector<FileDescriptor>,
                                 std::vector<FileDescriptor>*) override {
    internal::DriverAnswer answer;
    if (order.has_hold()) SetStatus(holds, &answer);
    return answer;
  }

  absl::Status holds;

 protected:
  std::vector<internal::DriverNews> TakeNews() override { return {}; }

 private:
  const arena::Arena arena_ = arena::Arena::Create(driver::testing::TestShape(), "kv").value();
};

// A process that a keeper starts runs its program once the next keeper would know what it is for.
class BrokeredProgramsTest : public ::testing::Test {
 protected:
  absl::StatusOr<StartedProgram> Start() {
    internal::Program program;
    program.set_path("/bin/sh");
    program.add_arguments("-c");
    program.add_arguments("echo >" + mark_);
    program.set_directory(directory_.path());
    program.set_uid(geteuid());
    program.set_gid(getegid());
    return programs_->Start(program);
  }
  std::string AwaitEnd(const StartedProgram& started) {
    constexpr int kEndTimeoutMs = 20'000;
    pollfd end = {started.pidfd.get(), POLLIN, 0};
    EXPECT_EQ(poll(&end, 1, kEndTimeoutMs), 1);
    return driver_process::ReapProgram(started.pidfd.get());
  }
  bool HasRun() const { return std::filesystem::exists(mark_); }

  const harness::TempDirectory directory_ = harness::TempDirectory::Create().value();
  const std::string mark_ = directory_.File("mark");
  HoldingDriverClient driver_;
  std::optional<boost::asio::io_context> loop_{std::in_place};
  std::optional<BrokeredPrograms> programs_{
      std::in_place, *loop_, harness::Binaries().Find("baton-launch").value(), driver_};
};

TEST_F(BrokeredProgramsTest, shouldLetAProcessRunItsProgramInTheNextTurnOfTheLoop) {
  const auto started = Start();
  ASSERT_TRUE(started.ok()) << started.status();
  loop_->poll();
  EXPECT_EQ(AwaitEnd(*started), "ended with status 0");
  EXPECT_TRUE(HasRun());
}

TEST_F(BrokeredProgramsTest, shouldNotLetItRunIfTheKeeperDiesInTheTurnThatStartsIt) {
  auto started = Start();
  ASSERT_TRUE(started.ok()) << started.status();
  started->entered.Reset();
  programs_.reset();
  loop_.reset();
  EXPECT_EQ(AwaitEnd(*started), "ended with status 127");
  EXPECT_FALSE(HasRun());
}

TEST_F(BrokeredProgramsTest, shouldLeaveNoProcessThatTheDriverDoesNotHold) {
  driver_.holds = absl::ResourceExhaustedError("1024 entries are held");
  EXPECT_THAT(std::string(Start().status().message()), HasSubstr("does not hold the process"));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
  loop_->poll();
  EXPECT_FALSE(HasRun());
}

using std::chrono::milliseconds;

constexpr uint64_t kShort = 1'000'000;
constexpr uint64_t kLong = 2'000'000'000;

v1::Policy Restart(uint32_t first_ms, uint32_t max_ms) {
  v1::Policy policy;
  policy.mutable_restart()->set_first_delay_ms(first_ms);
  policy.mutable_restart()->set_max_delay_ms(max_ms);
  return policy;
}

TEST(RestartDelayTest, shouldBeDoubledWithEachDeathInARow) {
  RestartDelay delay;
  const v1::Policy policy = Restart(300, 1000);
  for (const int expected : {300, 600, 1000, 1000}) {
    delay.NoteEnd(kShort, /*served=*/true, policy);
    EXPECT_EQ(delay.length(), milliseconds(expected));
  }
  delay.NoteEnd(kLong, true, policy);
  EXPECT_EQ(delay.length(), milliseconds(300));
  delay.NoteEnd(kShort, true, policy);
  EXPECT_EQ(delay.length(), milliseconds(300));
}

TEST(RestartDelayTest, shouldHeedAPolicyThatHasChanged) {
  RestartDelay delay;
  for (int i = 0; i < 20; ++i) delay.NoteEnd(kShort, false, Restart(1, 100'000));
  delay.NoteEnd(kShort, false, Restart(7, 50));
  EXPECT_EQ(delay.length(), milliseconds(50));
}

TEST(RestartDelayTest, shouldBeShortOfWorkersThatServedWithoutAPolicy) {
  RestartDelay delay;
  EXPECT_EQ(delay.length(), milliseconds(10));
  for (const int expected : {10, 20, 40, 80, 100, 100}) {
    delay.NoteEnd(kShort, /*served=*/true, {});
    EXPECT_EQ(delay.length(), milliseconds(expected));
  }
  for (int i = 0; i < 10; ++i) delay.NoteEnd(kShort, /*served=*/false, {});
  EXPECT_EQ(delay.length(), milliseconds(5000));
}

}  // namespace
}  // namespace baton::keeper
