#include "supervisor/keeper/sessions/worker_session.h"

#include "gtest/gtest.h"

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

}  // namespace
}  // namespace baton::keeper
