#include "supervisor/keeper/refusals.h"

#include <gtest/gtest.h>

namespace baton::keeper {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

TEST(RefusalsTest, shouldTellTheSameOnceASecondAndCountTheRest) {
  Refusals refusals;
  EXPECT_EQ(refusals.Tell("no slot", 5 * kSecondNs), "no slot");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(refusals.Tell("no slot", 5 * kSecondNs + 1), std::nullopt);
  EXPECT_EQ(refusals.Tell("no slot", 6 * kSecondNs), "no slot (3 more were refused like the last)");
  EXPECT_EQ(refusals.Tell("no slot", 7 * kSecondNs), "no slot");
}

TEST(RefusalsTest, shouldTellAnotherReasonAtOnce) {
  Refusals refusals;
  EXPECT_EQ(refusals.Tell("no slot", 5 * kSecondNs), "no slot");
  EXPECT_EQ(refusals.Tell("no slot", 5 * kSecondNs), std::nullopt);
  EXPECT_EQ(refusals.Tell("broken", 5 * kSecondNs), "broken (1 more were refused like the last)");
}

}  // namespace
}  // namespace baton::keeper
