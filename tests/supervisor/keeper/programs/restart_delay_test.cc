#include "supervisor/keeper/programs/restart_delay.h"

#include <gtest/gtest.h>

namespace baton::keeper {
namespace {

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
