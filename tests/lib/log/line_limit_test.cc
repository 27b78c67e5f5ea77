#include "lib/log/line_limit.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::log {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint32_t kBurst = LineLimit::kBurst, kPerSecond = LineLimit::kPerSecond;

class LineLimitTest : public ::testing::Test {
 protected:
  // Of so many at the same time, how many were written.
  uint32_t Taken(const std::string& kind, uint32_t lines, uint64_t now_ns) {
    uint32_t taken = 0;
    for (uint32_t i = 0; i < lines; ++i) taken += limit.Take(kind, now_ns);
    return taken;
  }
  std::vector<std::pair<std::string, uint64_t>> LeftOut() {
    std::vector<std::pair<std::string, uint64_t>> all;
    limit.TakeLeftOut(
        [&](std::string_view kind, uint64_t lines) { all.emplace_back(kind, lines); });
    return all;
  }

  LineLimit limit;
};

TEST_F(LineLimitTest, shouldTakeABurstAndThenSoManyInASecond) {
  EXPECT_EQ(Taken("connection", 1000, kSecondNs), kBurst);
  EXPECT_EQ(Taken("connection", 1000, 2 * kSecondNs), kPerSecond);
  EXPECT_EQ(Taken("connection", 1000, 2 * kSecondNs + kSecondNs / 2), kPerSecond / 2);
  EXPECT_EQ(Taken("connection", 1000, 1000 * kSecondNs), kBurst);
}

TEST_F(LineLimitTest, shouldTakeAllOfThoseThatAreNoFlood) {
  for (uint64_t i = 0; i < 1000; ++i) {
    EXPECT_TRUE(limit.Take("connection", kSecondNs + i * kSecondNs / kPerSecond));
  }
  EXPECT_THAT(LeftOut(), IsEmpty());
}

TEST_F(LineLimitTest, shouldCountEachKindForItself) {
  EXPECT_EQ(Taken("connection", 1000, kSecondNs), kBurst);
  EXPECT_EQ(Taken("shard_moved", kBurst, kSecondNs), kBurst);
  EXPECT_EQ(Taken("worker_ended", kBurst + 1, kSecondNs), kBurst);
  EXPECT_THAT(LeftOut(), ElementsAre(Pair("connection", 1000 - kBurst), Pair("worker_ended", 1)));
  EXPECT_THAT(LeftOut(), IsEmpty());
}

TEST_F(LineLimitTest, shouldKnowABoundedNumberOfKinds) {
  for (int i = 0; i < 10'000; ++i) (void)limit.Take(std::to_string(i), kSecondNs);
  // The first ones have their own; the rest are one.
  EXPECT_TRUE(limit.Take("0", kSecondNs));
  EXPECT_FALSE(limit.Take("9999", kSecondNs));
  EXPECT_FALSE(limit.Take("never seen", kSecondNs));
  const uint32_t others = 10'000 - (LineLimit::kMaxKinds - 1);
  EXPECT_THAT(LeftOut(), ElementsAre(Pair("other", others - kBurst + 2)));
}

}  // namespace
}  // namespace baton::log
