#include "supervisor/driver/engine/refusals.h"

#include <gtest/gtest.h>

#include <string>

namespace baton::driver_process {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

TEST(RefusalsTest, shouldTellTheSameOnceASecondAndCountTheRest) {
  Refusals refusals;
  EXPECT_EQ(refusals.Tell("no slot", 5 * kSecondNs), "no slot");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(refusals.Tell("no slot", 5 * kSecondNs + 1), std::nullopt);
  EXPECT_EQ(refusals.Tell("no slot", 6 * kSecondNs), "no slot (3 more were refused like this)");
}

TEST(RefusalsTest, shouldTellLessOftenTheLongerItGoesOn) {
  Refusals refusals;
  int told = 0;
  constexpr int kSeconds = 3600;
  for (int i = 0; i < kSeconds * 10; ++i) {
    told += refusals.Tell("drained", kSecondNs + i * (kSecondNs / 10)).has_value();
  }
  EXPECT_GT(told, kSeconds / 60);
  EXPECT_LT(told, kSeconds / 60 + 10);
}

TEST(RefusalsTest, shouldTellAtOnceAfterARest) {
  Refusals refusals;
  for (int i = 0; i < 100; ++i) (void)refusals.Tell("drained", kSecondNs + i * kSecondNs / 2);
  EXPECT_TRUE(refusals.Tell("drained", 200 * kSecondNs).has_value());
  EXPECT_EQ(refusals.Tell("drained", 300 * kSecondNs), "drained");  // nothing was left untold
  EXPECT_EQ(refusals.Tell("drained", 300 * kSecondNs + 1), std::nullopt);
  EXPECT_EQ(refusals.Tell("drained", 301 * kSecondNs), "drained (1 more were refused like this)");
}

TEST(RefusalsTest, shouldTellAnotherReasonAtOnceAndKnowBoth) {
  Refusals refusals;
  EXPECT_EQ(refusals.Tell("no slot", 5 * kSecondNs), "no slot");
  EXPECT_EQ(refusals.Tell("broken", 5 * kSecondNs), "broken");
  EXPECT_EQ(refusals.Tell("no slot", 5 * kSecondNs), std::nullopt);
  EXPECT_EQ(refusals.Tell("broken", 5 * kSecondNs), std::nullopt);
}

TEST(RefusalsTest, shouldForgetThatWhichWasToldLongestAgo) {
  Refusals refusals;
  for (uint64_t i = 0; i < 9; ++i) {
    EXPECT_TRUE(refusals.Tell(std::to_string(i), kSecondNs + i).has_value());
  }
  EXPECT_TRUE(refusals.Tell("0", kSecondNs + 9).has_value());
  EXPECT_EQ(refusals.Tell("8", kSecondNs + 9), std::nullopt);
}

}  // namespace
}  // namespace baton::driver_process
