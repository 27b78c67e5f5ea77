#include <poll.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/heartbeat.h"
#include "supervisor/keeper/sessions/hang_watch.h"
#include "supervisor/keeper/sessions/worker_session.h"
#include "tests/harness/child_process.h"
#include "tests/harness/wait_until.h"
#include "tests/supervisor/keeper/keeper_thread.h"

namespace baton::keeper {
namespace {

constexpr uint32_t kPatience = 3;

TEST(HeartbeatTest, shouldBeSilentAfterSoManyLooksInVain) {
  Heartbeat heartbeat;
  heartbeat.Look(7, kPatience);
  for (uint32_t look = 1; look <= kPatience; ++look) {
    EXPECT_FALSE(heartbeat.IsSilent(kPatience)) << look;
    heartbeat.Look(7, kPatience);
  }
  EXPECT_TRUE(heartbeat.IsSilent(kPatience));
  heartbeat.Look(8, kPatience);
  EXPECT_FALSE(heartbeat.IsSilent(kPatience));
}

TEST(HeartbeatTest, shouldCountFromARestart) {
  Heartbeat heartbeat;
  for (uint32_t look = 0; look < 10 * kPatience; ++look) heartbeat.Look(0, kPatience);
  EXPECT_TRUE(heartbeat.IsSilent(kPatience));
  heartbeat.Restart();
  for (uint32_t look = 1; look < kPatience; ++look) heartbeat.Look(0, kPatience);
  EXPECT_FALSE(heartbeat.IsSilent(kPatience));
  EXPECT_GT(heartbeat.seen_ns(), 0u);
}

using testing::KeeperThread;

// baton-driver and its keeper, as batond sees that they live. Also that what the keeper says of a
// hang is what its policy says.
TEST(HeartbeatTest, shouldShowItselfFromItsLoopAgainAndAgain) {
  KeeperThread places;  // not started: its directory
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);  // inherited
  const FileDescriptor reader(ends[0]);
  FileDescriptor writer(ends[1]);
  harness::ChildOptions options;
  options.program = "supervisor/driver/baton-driver";
  options.environment = {{"BATON_HEARTBEAT_FD", std::to_string(writer.get())}};
  const auto keeper = harness::ChildProcess::Start(options);
  ASSERT_TRUE(keeper.ok()) << keeper.status();
  writer.Reset();
  std::string config;
  ASSERT_TRUE(
      google::protobuf::TextFormat::PrintToString(places.Config([](v1::ServiceConfig* service) {
        service->mutable_policy()->set_on_keeper_hang(v1::ON_KEEPER_HANG_RESTART);
      }),
                                                  &config));
  ASSERT_EQ((*keeper)->WriteLine(config), absl::OkStatus());
  (*keeper)->CloseInput();
  const auto next = [&] {
    pollfd entry = {reader.get(), POLLIN, 0};
    char sign = 0;
    EXPECT_EQ(poll(&entry, 1, 20'000 * harness::Slowness()), 1);
    EXPECT_EQ(read(reader.get(), &sign, 1), 1);
    return static_cast<AfterLastSign>(sign);
  };
  EXPECT_EQ(next(), AfterLastSign::kRestart);
  EXPECT_EQ(next(), AfterLastSign::kRestart);
  internal::ManagementRequest request;
  request.mutable_set_policy()->mutable_policy()->set_on_keeper_hang(v1::ON_KEEPER_HANG_REPORT);
  ASSERT_TRUE(places.Ask(request).ok());
  AfterLastSign sign = next();
  if (sign == AfterLastSign::kRestart) sign = next();  // was on its way
  EXPECT_EQ(sign, AfterLastSign::kReport);
}

TEST(LooksUntilHungTest, shouldRoundUp) {
  // Two looks were 200 ms: a worker that beats each 125 ms would be killed between two beats.
  EXPECT_EQ(LooksUntilHung(125, 250, 100), 3u);
  EXPECT_EQ(LooksUntilHung(1000, 300'001, 100), 3001u);
}

TEST(LooksUntilHungTest, shouldBeNoMoreThanTheTimeoutNeeds) {
  EXPECT_EQ(LooksUntilHung(100, 300, 100), 3u);
  EXPECT_EQ(LooksUntilHung(1, 2, 1), 2u);
}

TEST(LooksUntilHungTest, shouldWaitForTwoHeartbeats) {
  EXPECT_EQ(LooksUntilHung(1000, 300, 100), 20u);
  EXPECT_EQ(LooksUntilHung(1000, 1, 100), 20u);
}

TEST(LooksUntilHungTest, shouldTakeTheLongestTimeout) {
  EXPECT_EQ(LooksUntilHung(100, 4'294'967'295, 100), 42'949'673u);
}

}  // namespace
}  // namespace baton::keeper
